"""Where spans go, as the OTEL_* variables say. Imported only where they are on.

A worker process exports its own: one around each handler, and whatever handlers begin themselves.
"""

from __future__ import annotations

import logging
import os
import threading

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

log = logging.getLogger("onward.tracing")

LAST_WORDS_S = 2.0  # how long a worker that ends waits for its last spans to be taken


def resource(name: str) -> Resource:
    """As the environment names this process; otherwise by our own name."""
    found = Resource.create()
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        return found.merge(Resource({SERVICE_NAME: name}))
    return found


def exporter() -> SpanExporter:
    if os.environ.get("OTEL_TRACES_EXPORTER", "").strip() == "console":
        return ConsoleSpanExporter()
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    if os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol) != "http/protobuf":
        log.warning("spans go out as http/protobuf; any other protocol is not spoken")
    return OTLPSpanExporter()


class WorkerSpans:
    """This process' own, unless the program has set up OpenTelemetry itself."""

    def __init__(self) -> None:
        self._provider: TracerProvider | None = None
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # not set yet
            self._provider = TracerProvider(
                resource=resource("onward-worker"), shutdown_on_exit=False
            )
            self._provider.add_span_processor(BatchSpanProcessor(exporter()))
            trace.set_tracer_provider(self._provider)

    def close(self) -> None:
        """Hand over what is left, as far as a collector takes it soon."""
        if self._provider is not None:
            # A daemon: its exporter may try again for half a minute, and the process ends before.
            last = threading.Thread(target=self._provider.shutdown, daemon=True)
            last.start()
            last.join(LAST_WORDS_S)
