"""Whether this server writes traces: decided from the environment, before anything is imported."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import Literal

import structlog

from onward.core.errors import Invalid

log = structlog.get_logger("onward.tracing")

EXTRA = "pip install 'onward[otel]'"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

Wanted = Literal["auto", "on", "off"]


def traced(wanted: Wanted, environment: Mapping[str, str] = os.environ) -> bool:
    """Left to itself, it is on where the standard environment names a collector."""
    if wanted == "off" or _turned_off(environment):
        return False
    if wanted == "auto" and not any(environment.get(name) for name in ENDPOINTS):
        return False
    if _installed():
        return True
    if wanted == "on":
        raise Invalid("traces need OpenTelemetry", hint=EXTRA)
    # The variables may be meant for somebody else on this machine: no reason not to start.
    log.warning("no traces: OpenTelemetry is not installed", hint=EXTRA)
    return False


def _turned_off(environment: Mapping[str, str]) -> bool:
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return disabled or environment.get("OTEL_TRACES_EXPORTER", "").strip() == "none"


def _installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False
