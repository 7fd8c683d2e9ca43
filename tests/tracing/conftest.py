"""A collector that the environment names, and a caller with spans of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer

from onward.tracing import server
from tests.tracing.collector import Collector, collecting


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """From here on, the environment of this test names it."""
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        # A server that has stopped has handed over its last span, however slow this machine is.
        monkeypatch.setattr(server, "LAST_WORDS_S", 60.0)
        yield collector


@pytest.fixture
def caller() -> Tracer:
    """Makes spans that nobody collects: what is looked at is what becomes of them."""
    return TracerProvider(shutdown_on_exit=False).get_tracer("caller")
