"""The composition root: the one file that knows every other.

`Onward` is the engine without any door (embed it, or measure it); `build` puts the doors on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import structlog
from fastapi import FastAPI
from starlette.routing import WebSocketRoute

from onward import __version__
from onward.backends import open_backend
from onward.backends.archive import ArchivedBackend, Archiver
from onward.core.alarm import Alarm
from onward.core.catalog import Catalog
from onward.core.clock import Clock, SharedClock
from onward.core.dispatch import Dispatcher
from onward.core.policy import kept_at_most, profiles
from onward.core.tail import Tail
from onward.core.task import encode
from onward.core.waiters import Waiters
from onward.service import Service
from onward.settings import Settings
from onward.surfaces import errors
from onward.surfaces.console import approvals as console_approvals
from onward.surfaces.console import dead_letters as console_dead_letters
from onward.surfaces.console import ops as console_ops
from onward.surfaces.console import page as console_page
from onward.surfaces.console import services as console_services
from onward.surfaces.console import tasks as console_tasks
from onward.surfaces.console.submission import Submissions
from onward.surfaces.express import Express
from onward.surfaces.guard import Guard
from onward.surfaces.streams.dead_letters import DeadLetters
from onward.surfaces.sync import chat as sync_chat
from onward.surfaces.sync import router as sync_router
from onward.surfaces.sync.submission import Door
from onward.workers import shipped
from onward.workers.dialects import StreamProtocol
from onward.workers.local import LocalExecutor
from onward.workers.roster import Roster, group_queue
from onward.workers.runner import Runner
from onward.workers.socket import Sockets

log = structlog.get_logger("onward")


if TYPE_CHECKING:
    from redis.asyncio import Redis

    from onward.workers.streams import Feed


class Onward:
    """Ledger, dispatcher, clockwork and, if there are services, a worker in this process."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        services: Mapping[str, Service] | None = None,
        groups: Mapping[str, Service] | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock or SharedClock(lambda: self.backend.ahead_ms)
        self._services = services or {}
        self._groups = groups or {}
        self._background: list[asyncio.Task[None]] = []
        self._local: Runner | None = None
        self._executor: LocalExecutor | None = None
        self.ready = False
        self.backend = open_backend(
            settings.ledger,
            durable=settings.synchronous == "full",
            prefix=settings.redis_prefix,
            archive=settings.archive,
        )
        rules = profiles(
            lease_ms=settings.lease_ms,
            max_retries=settings.max_retries,
            schedules=settings.schedules(),
        )
        self._archiver: Archiver | None = None
        if isinstance(self.backend, ArchivedBackend):
            retention = {name: profile.retention_ms for name, profile in rules.items()}
            self._archiver = Archiver(self.backend, self.clock, retention)
            rules = kept_at_most(rules, settings.redis_keep_ms)
        self.dispatcher = Dispatcher(
            self.backend,
            rules,
            self.clock,
            waiters=Waiters(most=settings.max_waiters),
        )
        self.roster = Roster(self.backend, self.clock)
        self.catalog = Catalog(self.backend, self.clock)
        self.sockets = Sockets(
            self.dispatcher,
            self.roster,
            lease_ms=settings.lease_ms,
            most=settings.max_sockets,
            declare=self._declare,
        )

        self._feed: Feed | None = None
        self._lines: Sequence[Redis] = ()
        self._redis = settings.redis or (
            None if settings.ledger.startswith("sqlite") else settings.ledger
        )

    async def start(self) -> None:
        settings = self.settings
        await self.backend.maintain()
        self.backend.bell.attach(self.dispatcher.hear)
        if self._archiver is not None:
            await self._archiver.prepare()
            self._run(self._archiver.run())
        await self.roster.beat()
        await self.roster.refresh()
        if self._services or self._groups:
            await self._start_local()
        self._every(settings.lease_ms / 3000, self.dispatcher.beat)
        self._every(1, self.dispatcher.reread)
        self._every(1, self.backend.maintain)
        self._run(Alarm(self.dispatcher).run())
        self._run(self.roster.run())
        if self._redis is not None:
            self._start_streams(self._redis)
        self.ready = True

    async def drain(self) -> None:
        """Take no more work; finish or hand back what runs."""
        self.ready = False
        grace_ms = self.settings.drain_ms
        local = [self._local.drain(grace_ms)] if self._local is not None else []
        await asyncio.gather(self.sockets.close(grace_ms), *local)

    async def stop(self) -> None:
        await self.drain()
        if self._feed is not None:
            await self._feed.stop()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._executor is not None:
            self._executor.close()
        for line in self._lines:
            await line.aclose()
        await self.roster.close()
        await self.backend.close()

    async def __aenter__(self) -> Onward:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _start_local(self) -> None:
        settings = self.settings
        self._executor = LocalExecutor(
            self.dispatcher,
            self._services,
            groups=self._groups,
            lease_ms=settings.lease_ms,
            threads=8,
        )
        for service in self._services.values():
            await self._declare([encode(service.declaration()).encode()])
        worker = f"builtin-{self.roster.server[-12:]}"
        own, groups = list(self._services), [group_queue(name) for name in self._groups]
        self._local = runner = Runner(
            self.dispatcher,
            self._executor,
            worker=worker,
            queues=own + groups,
            slots=settings.builtin_slots,
            lease_ms=settings.lease_ms,
        )
        member = self.roster.member(
            worker, "local", own + groups, settings.builtin_slots, stand_in=True
        )
        await self.roster.join(member)

        def yield_groups() -> None:
            # A stand-in: it serves a group only while nobody else does.
            free = [queue for queue in groups if not self.roster.served_by_others(queue)]
            if runner.seat.queues != (*own, *free):
                runner.serve(own + free)

        self.roster.watch(yield_groups)
        runner.start()
        yield_groups()

    def _start_streams(self, url: str) -> None:
        """The doors that live on Redis streams, whatever the ledger is."""
        from onward.backends.redis.client import connect, tell_once
        from onward.workers.channel import Lines
        from onward.workers.streams import Feed, Rules

        settings = self.settings
        calls, blocking = connect(url), connect(url, timeout_s=None)
        self._lines = (calls, blocking)
        self._feed = Feed(
            self.dispatcher,
            self.roster,
            Lines(calls, blocking),
            StreamProtocol(),
            Rules(
                types=settings.stream_types,
                visibility_ms=int(settings.visibility_timeout_s * 1000),
                credits=settings.stream_credits,
            ),
            self.catalog,
        )
        self._feed.start()
        letters = DeadLetters(self.backend.tasks, partial(tell_once, calls))
        self._run(Tail(self.backend, letters, self.clock).run())

    async def _declare(self, bodies: Any) -> None:
        for service in console_services.declared_all(bodies):
            await self.catalog.declare(service)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._background.append(asyncio.get_running_loop().create_task(work))

    def _every(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def loop() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    await work()
                except Exception as error:  # the ledger is away: the next round tries again
                    log.warning("background work failed", work=work.__qualname__, error=repr(error))

        self._run(loop())


class Application:
    """The ASGI application: every door, behind one guard."""

    def __init__(self, settings: Settings, *, builtin_worker: bool, clock: Clock | None) -> None:
        self.onward = Onward(
            settings,
            clock=clock,
            services=shipped.SERVICES if builtin_worker else None,
            groups=shipped.GROUPS if builtin_worker else None,
        )
        door = Door(self.onward.dispatcher, self.onward.roster, settings)
        self.web = _doors(self.onward, door)
        busy = {("POST", sync_router.PATH): partial(sync_router.submit, door)}
        self._guarded = Guard(Express(self.web, busy), allowed_hosts=settings.allowed_hosts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._guarded(scope, receive, send)

    async def drain(self) -> None:
        await self.onward.drain()


def _doors(onward: Onward, door: Door) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with onward:
            yield

    web = FastAPI(
        title="Onward",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # its page would come from somebody else's server
        redoc_url=None,
    )
    errors.install(web)
    submissions = Submissions(onward.dispatcher, onward.catalog, onward.settings.stream_types)
    for router in (
        sync_router.build(door),
        sync_chat.build(door),
        console_tasks.build(onward.dispatcher, onward.roster, submissions),
        console_approvals.build(onward.dispatcher, submissions),
        console_dead_letters.build(onward.dispatcher, submissions),
        console_services.build(onward.dispatcher, onward.roster, onward.catalog),
        console_ops.build(onward.dispatcher, onward.roster, lambda: onward.ready),
        console_page.build(),
    ):
        web.include_router(router)
    web.router.routes.append(WebSocketRoute("/ws/worker", onward.sockets))
    return web


def build(
    settings: Settings, *, builtin_worker: bool = False, clock: Clock | None = None
) -> Application:
    return Application(settings, builtin_worker=builtin_worker, clock=clock)
