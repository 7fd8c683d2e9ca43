"""A collector on loopback: what OTLP over HTTP brings, decoded, and as the bytes that came."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Seen:
    """A span as it arrived."""

    def __init__(self, span: Any, service: str) -> None:
        self.service = service
        self.name: str = span.name
        self.trace: str = span.trace_id.hex()
        self.id: str = span.span_id.hex()
        self.parent: str = span.parent_span_id.hex()
        self.kind: int = span.kind
        self.start_ms: int = span.start_time_unix_nano // 1_000_000
        self.end_ms: int = span.end_time_unix_nano // 1_000_000
        self.failed: bool = span.status.code == 2
        self.attributes = _plain(span.attributes)
        self.events = [(event.name, _plain(event.attributes)) for event in span.events]

    def __repr__(self) -> str:
        return f"<{self.name} {self.id} below {self.parent} {self.attributes}>"


class Collector:
    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.raw = b""
        self.mute = threading.Event()  # set: takes a request, and does not answer until it is free
        self.free = threading.Event()
        self.asked = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.asked.set()
                if collector.mute.is_set():
                    collector.free.wait()
                    return
                collector.take(body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # whoever was kept waiting hung up

        self._server = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def take(self, body: bytes) -> None:
        self.raw += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _plain(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [Seen(span, service) for span in scope.spans]

    def named(self, name: str) -> list[Seen]:
        """In the order of their beginning."""
        return sorted([s for s in self.spans if s.name == name], key=lambda span: span.start_ms)

    def one(self, name: str) -> Seen:
        (found,) = self.named(name)
        return found

    def close(self) -> None:
        self.free.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
