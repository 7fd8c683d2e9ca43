"""A worker in five lines: typed functions in, their tasks done.

It takes what it is given for as long as it lives: over a socket to the server or, if told so, from
Redis streams, as an HTTP server that is called, or over another line. `run` is for a process of its
own and answers signals; `serve` is for a program that has an event loop already.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, Protocol, TypeAlias, TypedDict, TypeVar, Unpack, overload

from onward.client import frames
from onward.client.address import is_explicit, server_url
from onward.client.link import NameTaken, SocketTransport
from onward.client.wire import Wire
from onward.services.function import Service

log = logging.getLogger("onward.worker")

F = TypeVar("F", bound=Callable[..., Any])

THREADS = "onward-handler"
PATIENCE_MS = 7 * 24 * 3_600_000

__all__ = ["NameTaken", "Worker"]


class Transport(Protocol):
    """How tasks come to a worker, and answers go back."""

    @property
    def connected(self) -> bool: ...

    async def serve(self) -> None: ...

    async def drain(self, grace_ms: int) -> None:
        """Take nothing more, and finish what runs as far as the time allows."""
        ...


# Makes a line from who we are, what we do (None: for our group), and what to call to have us go.
MakeTransport: TypeAlias = Callable[
    [frames.Register, Mapping[str | None, Service], Callable[[], None]], Transport
]


class ServiceOptions(TypedDict, total=False):
    name: str
    timeout_ms: int
    max_retries: int
    requires_approval: bool
    sensitive: Sequence[str]  # paths, see docs/privacy.md


class Worker:
    def __init__(
        self,
        url: str | None = None,
        *,
        group: str | None = None,
        queues: Sequence[str] = (),
        concurrency: int = 10,
        id: str | None = None,
        grace_ms: int = 30_000,
    ) -> None:
        """Claims the queue of each service's name, and `queues` besides.

        A task of another queue than its type's is done by the service that its type names, or else
        its queue.
        """
        if concurrency < 1:
            raise ValueError("a worker needs a concurrency of at least 1")
        self.url = server_url(url)
        self.url_is_explicit = is_explicit(url)  # else it is the default address
        self.id = id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.concurrency = concurrency
        self.grace_ms = grace_ms
        self._group = group
        self._queues = (queues,) if isinstance(queues, str) else tuple(queues)
        self._services: dict[str | None, Service] = {}
        self._line: Transport | None = None
        self._drain_asked = asyncio.Event()
        self._told_to_go = False  # by the server
        self._hurried = asyncio.Event()  # by a signal
        self.on_registered: Callable[[str], None] | None = None  # told where it listens

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

    @property
    def services(self) -> Mapping[str, Service]:
        """What it does, by name, for whoever runs the same functions by other means."""
        return {name: service for name, service in self._services.items() if name is not None}

    # Doing it.

    def run(
        self,
        *,
        redis: str | None = None,
        listen: str | None = None,
        transport: MakeTransport | None = None,
    ) -> None:
        """Serve until SIGTERM or SIGINT, then finish what runs; a second signal ends it at once.

        With the URL of a Redis, tasks come from the streams there; with a URL to listen at, the
        server calls us; `over` is for a line that somebody else makes.
        """
        logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%X")
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for each call of ours
        with asyncio.Runner(loop_factory=_fast_loop()) as runner:
            runner.run(self._serve_until_signalled(redis, listen, transport))
        _leave_stuck_threads()

    async def serve(
        self,
        *,
        redis: str | None = None,
        listen: str | None = None,
        transport: MakeTransport | None = None,
    ) -> None:
        """Serve until `drain` is called, then finish what runs."""
        if not self._services or (self._group is not None and None not in self._services):
            missing = "@worker.service" if self._group is None else "@worker.group()"
            raise ValueError(f"nothing to do: decorate a function with {missing}")
        threads = ThreadPoolExecutor(self.concurrency, thread_name_prefix=THREADS)
        wire = Wire(self.url)
        loop = asyncio.get_running_loop()
        asked = loop.create_task(self._drain_asked.wait())
        try:
            if transport is not None:
                line = transport(self._registration(), self._services, self._on_told_to_drain)
            else:
                line = self._built_in_transport(redis, listen, wire, threads)
            self._line = line
            serving = loop.create_task(line.serve())
            try:
                await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
                await self._drain(line)
            finally:
                serving.cancel()
                await asyncio.wait({serving})
        finally:
            self._line = None
            asked.cancel()
            threads.shutdown(wait=False, cancel_futures=True)
            await wire.close()
        if not serving.cancelled():
            serving.result()

    async def _drain(self, line: Transport) -> None:
        """A server that lets us go waits for what runs; whoever sends a signal waits so long."""
        if self._told_to_go and not self._hurried.is_set():
            loop = asyncio.get_running_loop()
            patiently = loop.create_task(line.drain(PATIENCE_MS))
            hurried = loop.create_task(self._hurried.wait())
            await asyncio.wait({patiently, hurried}, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            if patiently.done():
                return
            patiently.cancel()
            await asyncio.wait({patiently})
        await line.drain(self.grace_ms)

    def _built_in_transport(
        self, redis: str | None, listen: str | None, wire: Wire, threads: ThreadPoolExecutor
    ) -> Transport:
        if listen is not None:
            from onward.client.http_worker import HttpTransport

            line = HttpTransport(
                listen, self._registration(), self._services, wire=wire, threads=threads
            )
            line.on_registered = self.on_registered
            line.on_drain = self._on_told_to_drain
            return line
        if redis is None:
            link = SocketTransport(self._registration(), self._services, wire=wire, threads=threads)
            link.on_drain = self._on_told_to_drain
            return link
        from onward.client.streams import StreamTransport

        return StreamTransport(
            redis,
            self._registration(),
            self._services,
            wire=wire if self.url_is_explicit else None,
            threads=threads,
        )

    @property
    def connected(self) -> bool:
        return self._line is not None and self._line.connected

    def drain(self) -> None:
        self._drain_asked.set()

    def _registration(self) -> frames.Register:
        named = [service for name, service in self._services.items() if name is not None]
        return frames.Register(
            worker_id=self.id,
            group=self._group,
            services=[*dict.fromkeys((*(service.name for service in named), *self._queues))],
            concurrency=self.concurrency,
            declare=[service.declaration() for service in named],
        )

    async def _serve_until_signalled(
        self, redis: str | None, listen: str | None, transport: MakeTransport | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):  # Windows
                loop.add_signal_handler(number, self._on_signal, number)
        await self.serve(redis=redis, listen=listen, transport=transport)

    def _on_told_to_drain(self) -> None:
        if not self._drain_asked.is_set():
            log.info("the server wants this worker to go; finishing what runs")
            self._told_to_go = True
            self.drain()

    def _on_signal(self, number: int) -> None:
        if self._hurried.is_set():
            _exit_now(128 + number)
        self._hurried.set()
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
