"""Workers that are called, written from the protocol alone: a plain HTTP server in a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.running_app import App
from tests.support import wait_until

Exec = Callable[["Request"], Any]


class Request:
    """One POST, and the ways to answer it that HTTP leaves open."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        self._handler = handler
        self.path = handler.path
        self.headers = handler.headers
        self.raw = body
        self.body = json.loads(body)

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self._handler.send_response(status)
        headers.setdefault("content-length", str(len(body)))
        for name, value in headers.items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.end_headers()
        self._handler.wfile.write(body)

    def write(self, data: bytes) -> None:
        self._handler.wfile.write(data)

    def hang_up(self) -> None:
        self._handler.close_connection = True
        self._handler.connection.close()


class PlainWorker:
    """Answers `{"result", "error"}`; whatever else it should do, it is told per test."""

    def __init__(self, answer: Exec) -> None:
        self.answer = answer
        self.calls: list[Request] = []
        self.cancels: list[dict[str, Any]] = []
        worker = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                request = Request(self, body)
                if self.path == "/cancel":
                    worker.cancels.append(request.body)
                    request.reply(200, b"{}")
                    return
                worker.calls.append(request)
                result = worker.answer(request)
                if result is not request:  # else it has seen to the answer itself
                    request.reply(200, json.dumps({"result": result, "error": ""}).encode())

            def log_message(self, *_: Any) -> None:
                pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                pass  # the caller hung up: some tests have it do so

        self._server = Listener(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def inputs(self) -> list[Any]:
        return [call.body["input"] for call in self.calls]


def raw(status: int, body: Any = b"", **headers: str) -> Any:
    """A worker that answers like this, whatever it is asked."""

    def answer(request: Request) -> Request:
        said = body if isinstance(body, bytes) else json.dumps(body).encode()
        request.reply(status, said, **headers)
        return request

    return answer


Hire = Callable[..., PlainWorker]


@pytest.fixture
def hire() -> Iterator[Hire]:
    """A plain worker that listens; what it answers unless told otherwise is its input."""
    with ExitStack() as stack:

        def hire(answer: Exec = lambda request: request.body["input"]) -> PlainWorker:
            worker = PlainWorker(answer)
            stack.callback(worker.stop)
            return worker

        yield hire


async def register(app: App, worker: PlainWorker | str, **more: Any) -> str:
    url = worker if isinstance(worker, str) else worker.url
    answer = await app.post("/workers/register", {"url": url, "services": ["echo"], **more})
    assert answer.status_code == 200, answer.text
    id: str = answer.json()["id"]
    return id


async def submit(app: App, payload: Any = None, **more: Any) -> str:
    return await app.submit("echo", payload=payload, **more)


async def run(app: App, payload: Any = None, **more: Any) -> dict[str, Any]:
    """Submitted, and over."""
    body = {"type": "echo", "payload": payload, **more}
    answer = await app.post("/api/v2/tasks?wait_ms=10000", body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def events(app: App, id: str, *types: str) -> list[tuple[str, dict[str, Any]]]:
    items = await app.events(id)
    return [(item["type"], item["data"]) for item in items if not types or item["type"] in types]


async def until_state(app: App, id: str, *states: str) -> dict[str, Any]:
    return await wait_until(lambda: app.task(id), holds=lambda found: found["state"] in states)


__all__ = ["wait_until"]
