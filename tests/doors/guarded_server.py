"""A real server behind the guard, and callers that speak HTTP to it over raw sockets.

Every wait has a deadline of its own.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from typing import Any

from starlette.requests import ClientDisconnect

from onward import server as serving
from onward.core.clock import SystemClock
from onward.doors.access import Access
from onward.doors.guard import Guard
from onward.ledgers import open_backend
from onward.native.audit import AuditTrail
from onward.native.key_store import KeyStore
from onward.settings import Settings
from onward.wire.base import MAX_BODY
from tests.support import poll_until

HEADER_MS, BODY_MS, WRITE_MS = 1_000, 1_200, 3_000
LARGE = 32 << 20  # more than the kernel keeps for a reader that does not read
PATIENCE = 60.0


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with how much came in; /boom fails, before or after it began to answer."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["type"] == "websocket":
        await _accept(scope, receive, send)
        return
    size = await _size(receive)
    if scope["path"].endswith("/stall"):
        time.sleep(HEADER_MS / 1000 + 0.1)  # noqa: ASYNC251 nobody else gets a turn, but the clock
        GuardedServer.sweep()
    start = {"type": "http.response.start", "status": 200, "headers": []}
    if scope["path"].endswith("/boom"):
        raise RuntimeError("secret inside")
    if scope["path"].endswith("/starlette"):
        await send({**start, "status": 500})
        await send({"type": "http.response.body", "body": b"Internal Server Error"})
        raise RuntimeError("secret inside")
    if scope["path"].endswith("/own-500"):
        await send({**start, "status": 500})
        await send({"type": "http.response.body", "body": b'{"error":"Task timeout"}'})
        return
    await send(start)
    said = json.dumps({"size": size, "id": scope["state"]["request_id"]}).encode()
    body = b"x" * LARGE if scope["path"] == "/large" else said
    await send({"type": "http.response.body", "body": body})


async def _accept(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while scope["path"] == "/flood":
        await send({"type": "websocket.send", "text": "x" * MAX_BODY})
    await send({"type": "websocket.close"})


async def _size(receive: Any) -> int:
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect  # as Starlette does
        size += len(message["body"])
        more = message["more_body"]
    return size


def guarded_echo() -> Guard:
    """Open: no key was ever made on its ledger."""
    backend, clock = open_backend("sqlite:///:memory:"), SystemClock()
    return Guard(
        echo,
        Access(KeyStore(backend, clock, AuditTrail(backend, clock))),
        allowed_hosts=["onward.example"],
        allowed_origins=["https://page.example"],
    )


class GuardedServer:
    def __init__(self, **settings: Any) -> None:
        settings.setdefault("header_timeout_ms", HEADER_MS)
        settings.setdefault("write_timeout_ms", WRITE_MS)
        chosen = Settings(host="127.0.0.1", port=0, body_timeout_ms=BODY_MS, **settings)
        self.server = serving.server(guarded_echo(), chosen)
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()
        poll_until(lambda: self.server.started or not self._thread.is_alive())
        GuardedServer.sweep = self._sweep  # type: ignore[method-assign]
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]

    @staticmethod
    def sweep() -> None:
        """As the server does every now and then; of the one that was started last."""

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self.server.server_state.connections):
            assert isinstance(connection, serving.HttpConnection)
            connection.sweep(now, HEADER_MS / 1000, BODY_MS / 1000)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def connect(self, send: bytes = b"") -> socket.socket:
        caller = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        if send:
            caller.sendall(send)
        return caller

    def ask(self, send: bytes) -> Answer:
        with self.connect(send) as caller:
            return read(caller)


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        line, *headers = head.decode("latin-1").split("\r\n")
        self.status = int(line.split()[1]) if line else 0
        self.headers = {
            name.lower(): value.strip() for name, _, value in (h.partition(":") for h in headers)
        }

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def read(caller: socket.socket) -> Answer:
    """One answer: to its Content-Length, or to the end."""
    raw = b""
    while not _whole(raw):
        try:
            data = caller.recv(65536)
        except ConnectionResetError:
            break
        if not data:
            break
        raw += data
    return Answer(raw)


def _whole(raw: bytes) -> bool:
    head, found, body = raw.partition(b"\r\n\r\n")
    if not found:
        return False
    headers = Answer(head + found).headers
    if "content-length" in headers:
        return len(body) >= int(headers["content-length"])
    return body.endswith(b"0\r\n\r\n")


def is_closed(caller: socket.socket) -> bool:
    try:
        while caller.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True  # a timeout would have raised


def request(
    method: str = "POST", path: str = "/api/openai", body: bytes = b"", **headers: Any
) -> bytes:
    given = {"host": "127.0.0.1", "content-length": str(len(body)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body
