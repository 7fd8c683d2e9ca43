"""A worker in five lines: typed functions in, a socket to the server out.

It connects for as long as it lives and takes what the server gives it. `run` is for a process of
its own and answers signals; `serve` is for a program that has an event loop already.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, TypedDict, TypeVar, Unpack, overload

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from onward.client import frames
from onward.client.address import is_loopback, server_url, socket_url
from onward.client.context import LostTask
from onward.client.link import SocketLink
from onward.client.wire import Wire
from onward.service import Service

log = logging.getLogger("onward.worker")

F = TypeVar("F", bound=Callable[..., Any])

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
STEADY_S = 1.0  # a connection that held this long was a good one: the next pause is short again
THREADS = "onward-handler"
REPLACED = 4001  # the server's close code for a connection whose name somebody else took


class NameTaken(RuntimeError):
    """Somebody else works under this worker's id."""


class ServiceOptions(TypedDict, total=False):
    name: str
    timeout_ms: int
    max_retries: int
    requires_approval: bool
    sensitive: tuple[str, ...]


class Worker:
    def __init__(
        self,
        url: str | None = None,
        *,
        group: str | None = None,
        concurrency: int = 10,
        id: str | None = None,
        grace_ms: int = 30_000,
    ) -> None:
        if concurrency < 1:
            raise ValueError("a worker needs a concurrency of at least 1")
        self.url = server_url(url)
        self.id = id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.concurrency = concurrency
        self.grace_ms = grace_ms
        self._group = group
        self._services: dict[str | None, Service] = {}
        self._link: SocketLink | None = None
        self._drain_asked = asyncio.Event()

    # What it can do.

    @overload
    def service(self, function: F, /) -> F: ...

    @overload
    def service(self, /, **options: Unpack[ServiceOptions]) -> Callable[[F], F]: ...

    def service(
        self, function: F | None = None, /, **options: Unpack[ServiceOptions]
    ) -> F | Callable[[F], F]:
        """A typed function, async or plain, does the tasks of its name."""

        def add(function: F) -> F:
            service = Service(function, **options)
            if service.name in self._services:
                raise ValueError(f"{service.name!r} is served twice")
            self._services[service.name] = service
            return function

        return add if function is None else add(function)

    def group(self, name: str | None = None) -> Callable[[F], F]:
        """A function of `payload` answers what HTTP clients send to this worker group."""
        name = name or self._group or "default"
        if None in self._services or self._group not in (None, name):
            raise ValueError(f"a worker serves one group; this one has {self._group!r} already")
        self._group = name

        def add(function: F) -> F:
            self._services[None] = Service(function, name=f"group:{name}")
            return function

        return add

    # Doing it.

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then finish what runs; a second signal ends it at once."""
        logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%X")
        with asyncio.Runner(loop_factory=_fast_loop()) as runner:
            runner.run(self._serve_until_signalled())
        _leave_stuck_threads()

    async def serve(self) -> None:
        """Serve until `drain` is called, then finish what runs."""
        if not self._services or (self._group is not None and None not in self._services):
            missing = "@worker.service" if self._group is None else "@worker.group()"
            raise ValueError(f"nothing to do: decorate a function with {missing}")
        threads = ThreadPoolExecutor(self.concurrency, thread_name_prefix=THREADS)
        wire = Wire(self.url)
        loop = asyncio.get_running_loop()
        connected = loop.create_task(self._stay_connected(wire, threads))
        asked = loop.create_task(self._drain_asked.wait())
        try:
            await asyncio.wait({connected, asked}, return_when=asyncio.FIRST_COMPLETED)
            if self._link is not None:
                await self._link.drain(self.grace_ms)
        finally:
            connected.cancel()
            asked.cancel()
            await asyncio.wait({connected, asked})
            threads.shutdown(wait=False, cancel_futures=True)
            await wire.close()
        if not connected.cancelled():
            connected.result()

    @property
    def connected(self) -> bool:
        return self._link is not None

    def drain(self) -> None:
        self._drain_asked.set()

    async def _stay_connected(self, wire: Wire, threads: ThreadPoolExecutor) -> None:
        pause = FIRST_PAUSE_S
        while not self._drain_asked.is_set():
            began = monotonic()
            try:
                await self._serve_one_connection(wire, threads)
            except (OSError, WebSocketException, LostTask) as error:
                if isinstance(error, ConnectionClosed) and error.rcvd is not None:
                    self._give_way(error.rcvd.code)
                if monotonic() - began > STEADY_S:
                    pause = FIRST_PAUSE_S
                wait = pause * random.uniform(0.5, 1)
                log.warning("no connection (%s); trying again in %.1f s", error, wait)
                await asyncio.sleep(wait)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    def _give_way(self, code: int) -> None:
        # Both of us coming back for ever would take every task from the other.
        if code == REPLACED:
            raise NameTaken(f"another worker has connected as {self.id!r}; this one stops")

    async def _serve_one_connection(self, wire: Wire, threads: ThreadPoolExecutor) -> None:
        async with connect(
            socket_url(self.url),
            compression=None,  # costs more than it saves on small frames
            max_size=None,  # the server bounds what it takes in; what it took must reach us
            max_queue=256,
            proxy=None if is_loopback(self.url) else True,
        ) as socket:
            link = SocketLink(socket, self._services, wire=wire, threads=threads)
            await link.register(self._registration())
            names = ", ".join(service.name for service in self._services.values())
            log.info("connected to %s as %s, serving %s", self.url, self.id, names)
            self._link = link
            try:
                await link.read()
            finally:
                self._link = None

    def _registration(self) -> frames.Register:
        named = [service for name, service in self._services.items() if name is not None]
        return frames.Register(
            worker_id=self.id,
            group=self._group,
            services=[service.name for service in named],
            concurrency=self.concurrency,
            declare=[service.declaration() for service in named],
        )

    async def _serve_until_signalled(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):  # Windows
                loop.add_signal_handler(number, self._on_signal, number)
        await self.serve()

    def _on_signal(self, number: int) -> None:
        if self._drain_asked.is_set():
            _exit_now(128 + number)
        log.info("finishing what runs; once more to leave at once")
        self.drain()


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _leave_stuck_threads() -> None:
    """A plain function that never ends must not keep a drained process alive."""
    until = monotonic() + 0.5
    for thread in threading.enumerate():
        if thread.name.startswith(THREADS):
            thread.join(max(0.0, until - monotonic()))
            if thread.is_alive():
                log.warning("a handler has not ended; leaving it")
                _exit_now(0)


def _exit_now(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
