"""The process around the application: listening, deadlines for slow callers, and a quiet end.

uvicorn waits for ever for a request to arrive, and for an answer to be read; here one sweep a
second closes on those who do not go on with either. SIGTERM ends claiming first, while workers can
still answer, and then the sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from http import HTTPStatus
from typing import Any, cast

import httptools
import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import HANDLED_SIGNALS

from onward import logs
from onward.corked import Corked
from onward.doors.errors import render
from onward.doors.refusal import Refusal
from onward.settings import Settings, unknown
from onward.urls import is_loopback
from onward.wire.base import MAX_BODY

log = structlog.get_logger("onward.server")

MAX_HEAD = 16 * 1024
# A refused body is read on and thrown away this far, so that a caller who writes first and reads
# afterwards still finds our answer instead of a reset connection.
MAX_LEFTOVER = 4 * MAX_BODY
# Of all answers together that wait to be read; beyond it those who have not read for longest go.
MAX_UNREAD = 256 << 20
TICKS = 10  # of uvicorn's main loop, a tenth of a second each, from sweep to sweep


def run(
    settings: Settings,
    sockets: Sequence[socket.socket],
    *,
    builtin_worker: bool,
    started: Callable[[], None] | None = None,
) -> None:
    from onward.app import build

    logs.configure(settings)
    for name, meant in unknown().items():
        hint = f"did you mean {meant}?" if meant else "docs/reference/settings.md lists them"
        log.warning("no such setting, it is ignored", name=name, hint=hint)
    # A plain handler that computes in a thread holds the interpreter for a whole interval: at the
    # default of 5 ms every database statement beside it would wait as long.
    sys.setswitchinterval(0.0005)
    collect_seldom()
    _allow_files(settings.max_connections)
    if settings.tls_cert is None and not is_loopback(settings.host):
        hint = "--tls-cert and --tls-key, or a proxy with TLS before it"
        log.warning("without TLS, keys can be read on the way here", hint=hint)
    app = build(settings, builtin_worker=builtin_worker)
    # What we say of it ourselves, in three lines, uvicorn need not tell by a stack of frames.
    logging.getLogger("uvicorn.error").addFilter(lambda _: app.onward.refusal is None)
    try:
        made = server(app, settings, drain=app.drain)
        made.on_started = started
        made.run([*sockets])
    except SystemExit:
        if app.onward.refusal is None:
            raise
        raise app.onward.refusal from None


def collect_seldom() -> None:
    """For a process that does little else than tasks: its collector looks less often.

    A task in flight is a few dozen small objects that soon die: to collect after every 700 of them
    is to look mostly at the living. Measured: a fifth of the cost of a task.
    """
    gc.set_threshold(50_000, 20, 50)


def server(
    app: Any, settings: Settings, *, drain: Callable[[], Awaitable[None]] | None = None
) -> Server:
    uvicorns = logging.getLogger("uvicorn.error")
    if uvicorns.getEffectiveLevel() < logging.INFO:
        # At debug it writes heads and frames of sockets: keys and payloads.
        uvicorns.setLevel(logging.INFO)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=HttpConnection,
        ws="websockets-sansio",
        # Too large is less than this, and is answered: to hang up costs a worker its other tasks.
        ws_max_size=8 * MAX_BODY,
        ws_ping_interval=10,
        ws_ping_timeout=10,
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        server_header=False,
        # Any other sender of X-Forwarded-* only claims to be a proxy.
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        limit_concurrency=settings.max_connections,
        timeout_graceful_shutdown=2,
    )
    return Server(
        config,
        header_ms=settings.header_timeout_ms,
        body_ms=settings.body_timeout_ms,
        write_ms=settings.write_timeout_ms,
        drain_ms=settings.drain_ms,
        drain=drain,
    )


class HttpConnection(HttpToolsProtocol):
    """uvicorn's, knowing since when it waits for the rest of a request."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # uvicorn would also turn away those who are connected already; we only let no new ones in.
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._waits_for: str | None = "head"
        self._since = self.loop.time()
        self._late: float | None = None  # since when it had waited, if too long, at the last sweep
        self._head = 0
        self._leftover = 0
        self._doubtful = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, Corked(transport, self.loop)))
        if self._most is not None and len(self.connections) > self._most:
            self.close_with(503, "too_busy", "Too many connections")

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        waited_for = self._waits_for
        if waited_for is None:
            self._waits_for, self._since, self._head = "head", self.loop.time(), 0
        self._doubtful = self._head + len(data) > MAX_HEAD
        super().data_received(data)
        if waited_for == self._waits_for == "head":
            self._head += len(data)
            if self._head > MAX_HEAD:
                self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._waits_for, self._since, self._leftover = "head", self.loop.time(), 0

    def on_headers_complete(self) -> None:
        if self._doubtful and self._head_size() > MAX_HEAD:
            self._refuse_head()
            raise ValueError("the head is too large")  # stops the parser; answered already
        if not self.url.startswith(b"/"):
            self._take_host_from_target()
        super().on_headers_complete()
        self._waits_for, self._since = "body", self.loop.time()

    def on_body(self, body: bytes) -> None:
        if self._answered:
            self._leftover += len(body)
            if self._leftover > MAX_LEFTOVER:
                self.transport.close()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._waits_for = None
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._waits_for = None
        super().handle_websocket_upgrade()

    def sweep(self, now: float, header_s: float, body_s: float) -> None:
        if self._waits_for is None or self.transport.is_closing():
            return
        if self.flow.read_paused:
            self._since = now  # we stopped reading: the wait is not the caller's
        head, waits = self._waits_for == "head", self._answered is False
        # The head of a pipelined request may wait as long as the answer before it takes.
        if (head and waits) or now - self._since <= (header_s if head else body_s):
            return
        if self._late != self._since:
            self._late = self._since  # it may lie in the socket, if it was us who were busy
        elif head:
            self.close_with(408, "request_timeout", "The request did not arrive in time")
        elif waits and not self.cycle.response_started:
            self.close_with(408, "request_timeout", "The body did not arrive in time")
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self.close_with(400, "invalid_request", msg)

    def close_with(self, status: int, code: str, message: str) -> None:
        path = getattr(self, "url", b"").decode("latin-1").partition("?")[0]
        kind, body = render(path, Refusal(status, code, message))
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            f"content-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._waits_for = None
        self.transport.write(head.encode() + body)
        self.transport.close()

    @property
    def _answered(self) -> bool | None:
        """Whether the request we are at has its answer; None before the first."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle.response_complete if cycle is not None else None

    def _take_host_from_target(self) -> None:
        """Of a target in absolute form the host counts, and not the header: RFC 9112, 3.2.2."""
        target = httptools.parse_url(self.url)
        if target.host:
            host = b"[%b]" % target.host if b":" in target.host else target.host
            if target.port:
                host = b"%b:%d" % (host, target.port)
            self.headers[:] = [
                (name, host if name == b"host" else value) for name, value in self.headers
            ]

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse_head(self) -> None:
        if not self.transport.is_closing():
            self.close_with(431, "too_large", f"The head is larger than {MAX_HEAD} bytes")


class Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        *,
        header_ms: int,
        body_ms: int,
        write_ms: int,
        drain_ms: int,
        drain: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(config)
        self._header_s = header_ms / 1000
        self._body_s = body_ms / 1000
        self._write_s = write_ms / 1000
        self._drain_s = drain_ms / 1000
        self._drain = drain
        self.on_started: Callable[[], None] | None = None
        self._every = max(1, min(TICKS, min(header_ms, body_ms, write_ms) // 200))
        self._swept_at = 0.0
        self._watched_s = 1.0

    async def on_tick(self, counter: int) -> bool:
        if counter % self._every == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, HttpConnection):
                    connection.sweep(now, self._header_s, self._body_s)
            # Callers who could not read because this process stood still are not silent: of the
            # time between two sweeps no more than twice the usual counts.
            self._watched_s += min(now - self._swept_at, 2 * self._every / 10)
            self._swept_at = now
            self._cut_unread(self._watched_s)
        return await super().on_tick(counter)

    def _cut_unread(self, now: float) -> None:
        """WebSockets as well, and those that are closing: a transport flushes first, for ever."""
        total, silent = 0, []
        for connection in self.server_state.connections:
            transport = cast(Corked, connection.transport)
            silent_s, waiting = transport.unread(now)
            if waiting:
                total += waiting
                silent.append((silent_s, waiting, transport))
        silent.sort(key=lambda one: one[0], reverse=True)
        for silent_s, waiting, transport in silent:
            # One that has read since the last sweep is no burden, however much waits for it.
            if silent_s <= 0 or (silent_s <= self._write_s and total <= MAX_UNREAD):
                break
            total -= waiting
            transport.abort()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            port = self.config.port or self.servers[0].sockets[0].getsockname()[1]
            log.info("listening", host=self.config.host, port=port)
            if self.on_started is not None:
                self.on_started()

    async def shutdown(self, sockets: Any = None) -> None:
        log.info("stopping")
        for listener in self.servers:
            listener.close()
        if self._drain is not None:
            await self._drain_first(asyncio.ensure_future(self._drain()))
        await super().shutdown(sockets)

    async def _drain_first(self, draining: asyncio.Future[None]) -> None:
        """uvicorn cuts websockets first of all; a worker's last results would be lost with them."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._drain_s + 1
        while not (draining.done() or self.force_exit or loop.time() > until):
            await asyncio.wait({draining}, timeout=0.1)
        draining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await draining

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As uvicorn's, but a signal that was obeyed is not raised again: the exit code is 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _allow_files(connections: int) -> None:
    """Each connection is a file; many systems allow 1024 until a program asks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = connections + 512
    if hard != resource.RLIM_INFINITY:
        want = min(want, hard)
    if soft != resource.RLIM_INFINITY and soft < want:
        resource.setrlimit(resource.RLIMIT_NOFILE, (want, hard))
