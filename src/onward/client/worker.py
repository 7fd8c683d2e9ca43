"""A worker in five lines: typed functions do the tasks of their names.

Tasks come over a socket to the server or, if so chosen, from Redis streams, as HTTP calls of the
server, or by another transport. `run` is for a process of its own and handles signals; `serve` is
for a program that has an event loop already.
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
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from time import monotonic
from typing import Any, Protocol, TypeAlias, TypedDict, TypeVar, Unpack, overload

import msgspec

from onward.client import log_format, task_log
from onward.client.address import is_explicit, server_url
from onward.client.api import ServerApi
from onward.client.durations import in_ms, ms
from onward.client.errors import WorkerRefused
from onward.client.failures import Retry
from onward.client.link import NameTaken, SocketTransport
from onward.client.service import Service
from onward.client.submitting import SERVED
from onward.tracing import worker_spans
from onward.wire.frames import RegisterFrame
from onward.wire.limits import Concurrency, RateLimit

log = logging.getLogger("onward.worker")

F = TypeVar("F", bound=Callable[..., Any])

THREADS = "onward-handler"
DRAIN_MS = 7 * 24 * 3_600_000  # for what runs, if the server drains the worker

__all__ = ["NameTaken", "Worker", "WorkerRefused"]


# What a worker needs while it serves: a pool of connections, a model. Its value is `ctx.state`.
Lifespan: TypeAlias = Callable[["Worker"], AbstractAsyncContextManager[Any]]


class Transport(Protocol):
    """How tasks come to a worker, and answers go back to the server."""

    @property
    def connected(self) -> bool: ...

    async def serve(self) -> None: ...

    async def drain(self, grace_ms: int) -> None:
        """Takes nothing more, and finishes what runs as far as the time allows."""
        ...


# Makes a transport from the registration, the services (None: the group's handler), and what to
# call when the server drains this worker.
MakeTransport: TypeAlias = Callable[
    [RegisterFrame, Mapping[str | None, Service], Callable[[], None]], Transport
]


class ServiceOptions(TypedDict, total=False):
    """What a service requires, besides what its signature says."""

    name: str  # instead of the function's
    timeout: timedelta  # of one attempt
    timeout_ms: int
    max_retries: int
    retry: Retry
    requires_approval: bool
    sensitive: Sequence[str]  # paths, see docs/operations/privacy.md
    expose: bool  # False: agents are offered no tool for it
    partition_by: str  # where in the payload a task's partition stands: "customer.id"
    concurrency: Concurrency  # how many run at once, on all workers together
    rate: Sequence[RateLimit]  # how many start in a time
    limits: Sequence[str]  # limits that it shares with other services, by name
    encrypt: bool  # its tasks rest encrypted, where a server encrypts what is declared
    compensate: str  # the service that undoes a task of this one which is canceled


class Worker:
    """Functions that do tasks, in this process: decorate them, then `run` or `serve`."""

    def __init__(  # noqa: PLR0913 all but the URL by keyword
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        group: str | None = None,
        queues: Sequence[str] = (),
        concurrency: int = 10,
        most: Mapping[str, int] | None = None,
        id: str | None = None,
        grace: timedelta | None = None,
        grace_ms: int = 30_000,
        lifespan: Lifespan | None = None,
    ) -> None:
        """Claims the queue of each service's name, and `queues` besides.

        `key` is the token of a key, or ONWARD_KEY.

        A task of another queue than its type's is done by the service that its type names, or else
        its queue. `concurrency` is how many run at a time; `most` how many of these of one
        service, as in {"transcode": 1} (for workers on a socket or on the ledger). `grace` is how
        long those that run may take to finish when the worker is stopped. `lifespan` takes the
        worker and returns an async context manager; it is entered before the first task and left
        after the last, and what it yields is `ctx.state`.
        """
        if concurrency < 1:
            raise ValueError("a worker needs a concurrency of at least 1")
        self.url: str = server_url(url)
        self._key = key
        self.url_is_explicit: bool = is_explicit(url)  # else it is the default address
        self.id: str = id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.concurrency = concurrency
        self.most: dict[str, int] = dict(most or {})
        self.grace_ms: int = grace_ms if grace is None else ms(grace)
        self._lifespan = lifespan
        self._group = group
        self._queues = (queues,) if isinstance(queues, str) else tuple(queues)
        self._services: dict[str | None, Service] = {}
        self._transport: Transport | None = None
        self._drain_requested = asyncio.Event()
        self._drained_by_server = False
        self._signalled = asyncio.Event()
        self.on_registered: Callable[[str], None] | None = None  # called with the URL it listens at

    # Services.

    @overload
    def service(self, function: F, /) -> F: ...

    @overload
    def service(self, /, **options: Unpack[ServiceOptions]) -> Callable[[F], F]: ...

    def service(
        self, function: F | None = None, /, **options: Unpack[ServiceOptions]
    ) -> F | Callable[[F], F]:
        """A typed function, async or plain, does the tasks of its name."""

        def add(function: F) -> F:
            service = Service(function, **in_ms(options, "timeout"))
            if service.name in self._services:
                raise ValueError(f"{service.name!r} is served twice")
            self._services[service.name] = service
            setattr(function, SERVED, service)  # by it, clients know what to submit
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
        """By name, for other ways to run the same functions."""
        return {name: service for name, service in self._services.items() if name is not None}

    # Running.

    def run(
        self,
        *,
        redis: str | None = None,
        agents: bool = False,
        listen: str | None = None,
        transport: MakeTransport | None = None,
        log_json: bool = False,
    ) -> None:
        """Serve until SIGTERM or SIGINT, then finish what runs; a second signal ends it at once.

        With the URL of a Redis, tasks come from the streams there: those of workers, or with
        `agents` those of agents' services. With a URL to listen at, the server calls the worker;
        `transport` makes any other one. Logs to stderr, as JSON if asked, unless the program has
        configured logging itself.
        """
        log_format.configure(as_json=log_json)
        spans = worker_spans()
        try:
            with asyncio.Runner(loop_factory=_fast_loop()) as runner:
                runner.run(self._serve_until_signalled(redis, agents, listen, transport))
        finally:
            if spans is not None:
                spans.close()
        _leave_stuck_threads()

    async def serve(
        self,
        *,
        redis: str | None = None,
        agents: bool = False,
        listen: str | None = None,
        transport: MakeTransport | None = None,
    ) -> None:
        """Serve until `drain` is called, then finish what runs."""
        if not self._services or (self._group is not None and None not in self._services):
            missing = "@worker.service" if self._group is None else "@worker.group()"
            raise ValueError(f"nothing to do: decorate a function with {missing}")
        # Anew each time: the loops of many tests serve a module's worker, one after another.
        self._drain_requested, self._signalled = asyncio.Event(), asyncio.Event()
        self._drained_by_server = False
        task_log.install()
        entered = contextlib.nullcontext() if self._lifespan is None else self._lifespan(self)
        async with entered as state:
            for service in self._services.values():
                service.state = state
            await self._serve(redis, agents, listen, transport)

    async def _serve(
        self,
        redis: str | None,
        agents: bool,
        listen: str | None,
        transport: MakeTransport | None,
    ) -> None:
        threads = ThreadPoolExecutor(self.concurrency, thread_name_prefix=THREADS)
        api = ServerApi(self.url, key=self._key)
        loop = asyncio.get_running_loop()
        requested = loop.create_task(self._drain_requested.wait())
        try:
            if transport is not None:
                chosen = transport(self._registration(), self._services, self._on_server_drain)
            else:
                chosen = self._built_in_transport(redis, agents, listen, api, threads)
            self._transport = chosen
            serving = loop.create_task(chosen.serve())
            try:
                await asyncio.wait({serving, requested}, return_when=asyncio.FIRST_COMPLETED)
                await self._drain(chosen)
            finally:
                serving.cancel()
                await asyncio.wait({serving})
        finally:
            self._transport = None
            requested.cancel()
            threads.shutdown(wait=False, cancel_futures=True)
            await api.close()
        if not serving.cancelled():
            serving.result()

    async def _drain(self, transport: Transport) -> None:
        """A server that drains this worker waits for what runs; a signal leaves it `grace_ms`."""
        if self._drained_by_server and not self._signalled.is_set():
            loop = asyncio.get_running_loop()
            unhurried = loop.create_task(transport.drain(DRAIN_MS))
            signalled = loop.create_task(self._signalled.wait())
            await asyncio.wait({unhurried, signalled}, return_when=asyncio.FIRST_COMPLETED)
            signalled.cancel()
            if unhurried.done():
                return
            unhurried.cancel()
            await asyncio.wait({unhurried})
        await transport.drain(self.grace_ms)

    def _built_in_transport(
        self,
        redis: str | None,
        agents: bool,
        listen: str | None,
        api: ServerApi,
        threads: ThreadPoolExecutor,
    ) -> Transport:
        if listen is not None:
            from onward.client.http_worker import HttpTransport

            return HttpTransport(
                listen,
                self._registration(),
                self._services,
                api=api,
                threads=threads,
                on_registered=self.on_registered,
                on_drain=self._on_server_drain,
            )
        if redis is None:
            return SocketTransport(
                self._registration(),
                self._services,
                api=api,
                threads=threads,
                on_drain=self._on_server_drain,
            )
        from onward.client.stream_dialects import ServicesWords, WorkersWords
        from onward.client.streams import StreamTransport

        known = self.url_is_explicit  # else there is no server to declare them to
        return StreamTransport(
            redis,
            self._registration(),
            self._services,
            ServicesWords(self.services, declared=known) if agents else WorkersWords(),
            api=api if known else None,
            threads=threads,
        )

    @property
    def connected(self) -> bool:
        """Whether tasks can reach it now."""
        return self._transport is not None and self._transport.connected

    def drain(self) -> None:
        """Take nothing more, finish what runs, and end."""
        self._drain_requested.set()

    def _registration(self) -> RegisterFrame:
        named = [service for name, service in self._services.items() if name is not None]
        return RegisterFrame(
            worker_id=self.id,
            group=self._group,
            services=[*dict.fromkeys((*(service.name for service in named), *self._queues))],
            concurrency=self.concurrency,
            most=self.most,
            declare=[msgspec.Raw(msgspec.json.encode(service.declaration())) for service in named],
        )

    async def _serve_until_signalled(
        self,
        redis: str | None,
        agents: bool,
        listen: str | None,
        transport: MakeTransport | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):  # Windows
                loop.add_signal_handler(number, self._on_signal, number)
        await self.serve(redis=redis, agents=agents, listen=listen, transport=transport)

    def _on_server_drain(self) -> None:
        if not self._drain_requested.is_set():
            log.info("the server drains this worker; finishing what runs")
            self._drained_by_server = True
            self.drain()

    def _on_signal(self, number: int) -> None:
        if self._signalled.is_set():
            _exit_now(128 + number)
        self._signalled.set()
        log.info("finishing what runs; a second signal ends it at once")
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
                log.warning("a handler has not ended; the process ends without it")
                _exit_now(0)


def _exit_now(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
