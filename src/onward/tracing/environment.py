"""What the standard environment of OpenTelemetry says about traces, and whether it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def named(environment: Mapping[str, str]) -> bool:
    """Whether a collector is."""
    return any(environment.get(name) for name in ENDPOINTS)


def turned_off(environment: Mapping[str, str]) -> bool:
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return disabled or environment.get("OTEL_TRACES_EXPORTER", "").strip() == "none"


def installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False
