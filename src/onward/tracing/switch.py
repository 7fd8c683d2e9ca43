"""Whether this server writes traces: decided from the environment, before anything is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import structlog

from onward.core.errors import Invalid
from onward.tracing.environment import installed, named, turned_off

log = structlog.get_logger("onward.tracing")

EXTRA = "pip install 'onward[otel]'"

Wanted = Literal["auto", "on", "off"]


def traced(wanted: Wanted, environment: Mapping[str, str] = os.environ) -> bool:
    """Left to itself, it is on where the standard environment names a collector."""
    if wanted == "off" or turned_off(environment):
        return False
    if wanted == "auto" and not named(environment):
        return False
    if installed():
        return True
    if wanted == "on":
        raise Invalid("traces need OpenTelemetry", hint=EXTRA)
    # The variables may be meant for another program on this machine: no reason not to start.
    log.warning("no traces: OpenTelemetry is not installed", hint=EXTRA)
    return False
