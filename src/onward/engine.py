"""The engine without a door: ledger, dispatcher, clockwork, workers and flows, to be embedded.

`app.build` puts the doors on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from onward.background import Background
from onward.core.alarm import Alarm
from onward.core.clock import Clock, SharedClock
from onward.core.dispatch import Dispatcher
from onward.core.duty import Duty
from onward.core.errors import Conflict, LedgerUnavailable, OnwardError
from onward.core.policy import kept_at_most, profiles
from onward.core.readers import DAY_MS, RENEW_MS, Readers
from onward.core.tail import Tail
from onward.core.task import TaskId, encode
from onward.core.waiters import Waiters
from onward.doors.rest import schedules as console_schedules
from onward.doors.rest import services as console_services
from onward.doors.rest.ops import Streams
from onward.doors.streams.dead_letters import DeadLetters
from onward.doors.tasks.submission import Intake
from onward.flow.catalog import Flows
from onward.flow.executor import FlowExecutor
from onward.flow.runs import QUEUE as FLOW_QUEUE
from onward.ledgers import open_backend
from onward.ledgers.archive import ArchivedBackend, Archiver
from onward.ledgers.sealed import RotateFn, at_rest, rotating, unwrap
from onward.native.history import STEP_MS, History
from onward.native.notifications import push as agent_push
from onward.native.notifications import webhooks as agent_webhooks
from onward.native.notifications.notices import Notices, Noticing, Watch
from onward.native.notifications.preferences import Wishes
from onward.native.scheduling.scheduler import Scheduler
from onward.native.scheduling.timetable import Timetable
from onward.native.submission import Submissions
from onward.services.catalog import Catalog
from onward.services.declarations import Declarations
from onward.services.function import Service
from onward.settings import Settings
from onward.tracing.switch import traced
from onward.workers.http.address import Hosts
from onward.workers.http.call import Caller
from onward.workers.http.executor import Push
from onward.workers.http.registry import Registry
from onward.workers.local.builtin import Builtin
from onward.workers.roster import Roster
from onward.workers.runner import Runner
from onward.workers.socket.sessions import Sockets
from onward.workers.streams.dialects import StreamProtocol

log = structlog.get_logger("onward")

FLOW_SLOTS = 128  # runs advanced at a time; a step takes no time, so this bounds a burst


if TYPE_CHECKING:
    from prometheus_client.registry import Collector
    from redis.asyncio import Redis

    from onward.doors.redis_views.projector import SeedViews
    from onward.tracing.chronicle import Chronicle
    from onward.tracing.server import Tracing
    from onward.workers.celery.wake import WakeUps
    from onward.workers.streams.channel import Lines
    from onward.workers.streams.dialects import Dialect
    from onward.workers.streams.feed import Feed


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
        self.ready = False
        self.backend = open_backend(
            settings.ledger,
            durable=settings.synchronous == "full",
            prefix=settings.redis_prefix,
            volatile=settings.redis_volatile,
            archive=settings.archive,
            state=settings.state_folder,
            **settings.encryption(),
        )
        ledger = unwrap(self.backend)
        rules = profiles(
            lease_ms=settings.lease_ms,
            max_retries=settings.max_retries,
            schedules=settings.schedules(),
            age_ms=int(settings.max_task_age_s * 1000),
            retention_ms=settings.retention,
        )
        self.refusal: OnwardError | None = None  # why it could not start
        self._archiver: Archiver | None = None
        if isinstance(ledger, ArchivedBackend):
            retention = {name: profile.retention_ms for name, profile in rules.items()}
            self._archiver = Archiver(ledger, self.clock, retention)
            rules = kept_at_most(rules, settings.redis_keep_ms)
        self.tracing = _tracing(settings)
        dispatcher = Dispatcher if self.tracing is None else self.tracing.dispatcher
        self.dispatcher = dispatcher(
            self.backend,
            rules,
            self.clock,
            waiters=Waiters(most=settings.max_waiters),
            breaker=settings.breaker(),
            retry_share=settings.retry_share(),
        )
        self.alarm = Alarm(self.dispatcher)
        self._background = Background(self.dispatcher.troubles)
        self.roster = Roster(self.backend, self.clock)
        expiry_ms = int(settings.reader_expiry_days * DAY_MS)
        self.readers = Readers(self.backend, self.clock, expiry_ms)
        self.catalog = Catalog(self.backend, self.clock)
        self.dispatcher.guards = self.catalog.guards
        self._builtin: Builtin | None = None
        if services or groups:
            self._builtin = Builtin(
                self.dispatcher,
                self.roster,
                self._services,
                groups or {},
                slots=settings.builtin_slots,
                lease_ms=settings.lease_ms,
            )
        self.history = History(self.dispatcher)
        self.sockets = Sockets(
            self.dispatcher,
            self.roster,
            lease_ms=settings.lease_ms,
            most=settings.max_sockets,
            declare=self._declare,
        )
        self.registry = Registry(
            self.backend,
            self.clock,
            self.roster,
            Hosts(settings.worker_hosts),
            ttl_ms=settings.worker_ttl_ms,
            slots=settings.push_slots,
        )
        self.flows = Flows(self.backend, self.clock)
        self.declarations = Declarations(self.catalog)
        self.submissions = Submissions(
            self.dispatcher, self.declarations, self.roster, settings.stream_types
        )
        self.intake = Intake(self.dispatcher, self.roster, self.declarations, settings.stream_types)
        self.scheduled = console_schedules.Runs(self.dispatcher, self.submissions, self.flows)
        self.scheduler = Scheduler(
            self.backend, self.clock, Timetable(self.backend, self.clock), self.scheduled.submit
        )
        runs = FlowExecutor(self.dispatcher, self.flows, self.catalog)
        self.dispatcher.reader = runs.hear
        if self.tracing is not None:
            self.dispatcher.reader = self.tracing.inheriting(runs.hear)
        self._runs = Runner(
            self.dispatcher,
            runs,
            worker=f"flows-{self.roster.server[-12:]}",
            queues=[FLOW_QUEUE],
            slots=FLOW_SLOTS,
            lease_ms=settings.lease_ms,
        )
        self._push = Push(
            self.dispatcher,
            self.roster,
            self.registry,
            lease_ms=settings.lease_ms,
            timeout_ms=settings.push_timeout_ms,
        )
        self._seat_sessions(Hosts(settings.worker_hosts))
        self._chronicle = self._told_by(self.tracing)

        self._feed: Feed | None = None
        self._agent_feed: Feed | None = None
        self._wake_ups: WakeUps | None = None
        self._views: SeedViews | None = None
        self._lines: Sequence[Redis] = ()
        self._reads: tuple[Lines, Sequence[Dialect]] | None = None
        self._redis = settings.redis or (
            None if settings.ledger.startswith("sqlite") else settings.ledger
        )

    def _seat_sessions(self, hosts: Hosts) -> None:
        """What sessions are told, and by which ways."""
        backend, clock, server = self.backend, self.clock, self.roster.server
        alone = self.settings.ledger.startswith("sqlite")
        self.hosts = hosts
        self.notices = Notices(backend, clock)
        self.wishes = Wishes(backend, clock)
        self.hub = agent_push.Hub(
            backend, clock, self.notices, self.wishes, server=server, shared=not alone
        )
        self._caller = Caller()
        webhooks = agent_webhooks.Webhooks(
            self.dispatcher, self.notices, self.wishes, hosts, self._caller.post
        )
        self._webhooks = Runner(
            self.dispatcher,
            webhooks,
            worker=f"webhooks-{server[-12:]}",
            queues=[agent_webhooks.QUEUE],
            slots=agent_webhooks.SLOTS,
            lease_ms=self.settings.lease_ms,
        )
        noticing = Noticing(backend.tasks, self.notices, clock, [self.hub.tell, webhooks.tell])
        self.figures = noticing.figures
        self._watch = Watch(backend, noticing, clock, self._duty(noticing.name))
        self.dispatcher.before_sessions = self._watch.open

    def _told_by(self, tracing: Tracing | None) -> Chronicle | None:
        """Who writes the spans of what has happened."""
        if tracing is None:
            return None
        return tracing.chronicle(self.backend, self.clock, self._duty("traces"))

    def _duty(self, name: str) -> Duty | None:
        """What one server does at a time; None: no other server is on this ledger."""
        if self.settings.ledger.startswith("sqlite"):
            return None
        return Duty(self.backend.documents, self.clock, name, self.roster.server)

    async def start(self) -> None:
        settings, troubles = self.settings, self.dispatcher.troubles
        await self.backend.maintain()
        if isinstance(self.clock, SharedClock):
            self.clock.adopt()  # as the ledger's was just measured
        self.backend.bell.attach(self.dispatcher)
        if self._archiver is not None:
            await self._archiver.prepare()
            self._background.run(self._archiver.run(troubles))
        if self._chronicle is not None:
            await self._chronicle.step()  # so that nothing happens before it reads
            self._background.every(1, self._chronicle.step)
        await self.roster.beat()
        await self.roster.refresh()
        if self._builtin is not None:
            bodies = [encode(service.declaration()).encode() for service in self._services.values()]
            await self._declare(bodies)
            await self._builtin.start()
        self._background.every(settings.lease_ms / 3000, self.dispatcher.beat)
        self._background.every(1, self.dispatcher.reread)
        self._background.every(1, self.dispatcher.pressure.weigh)
        self._background.every(1, self.backend.maintain)
        self._background.every(RENEW_MS / 1000, self.readers.retire_silent)
        self._background.every(STEP_MS / 1000, self.history.sample)
        self._background.run(self.alarm.run())
        self._background.run(self.scheduler.run(troubles))
        self._background.run(self.roster.run())
        self._push.start()
        self._runs.start()
        self._webhooks.start()
        self._background.run(self._watch.run(troubles))
        if self._redis is not None:
            self._start_streams(self._redis)
        if not settings.ledger.startswith("sqlite"):
            self._start_waking()
        self.ready = True

    async def erase(self, ids: Sequence[TaskId]) -> None:
        """Finished tasks, from the ledger and from wherever they went from there."""
        backend, now = unwrap(self.backend), self.clock.now()
        if isinstance(backend, ArchivedBackend):
            await backend.tasks.erase(ids, now=now)
        else:
            await backend.tasks.purge(ids, now=now)
        if self._views is not None:
            await self._views.forget(ids)

    @property
    def encryption(self) -> tuple[Sequence[str], RotateFn | None]:
        """The names of the keys, and how to seal anew what others have sealed; ((), None): off."""
        return rotating(self.backend)

    @property
    def streams(self) -> Streams | None:
        """None: nothing of this server is on a Redis."""
        if self._redis is None:
            return None
        return Streams(self._ping_redis, self._read_depths, self._count_consumers)

    async def _read_depths(self) -> Collector:
        from onward.workers.streams import depths

        return await depths.read(*self._open_streams())

    async def _count_consumers(self) -> int:
        from onward.workers.streams import depths

        return await depths.consumers(*self._open_streams())

    def _open_streams(self) -> tuple[Lines, Sequence[Dialect]]:
        if self._reads is None:
            raise LedgerUnavailable("the streams are not open yet")
        return self._reads

    async def _ping_redis(self) -> None:
        await self._lines[0].execute_command("PING")  # type: ignore[no-untyped-call]
        for feed in (self._feed, self._agent_feed):
            if feed is not None and feed.other is not None:
                raise Conflict(f"its streams are those of another ledger: {feed.other}")

    async def drain(self) -> None:
        """Take no more work; finish or hand back what runs."""
        self.ready = False
        grace_ms = self.settings.drain_ms
        builtin = [] if self._builtin is None else [self._builtin.drain(grace_ms)]
        await asyncio.gather(
            self.sockets.close(grace_ms),
            self._push.drain(grace_ms),
            self._runs.drain(grace_ms),
            self._webhooks.drain(grace_ms),
            self.hub.close(),
            *builtin,
        )
        self.dispatcher.waiters.let_go()
        await self.dispatcher.finish(grace_ms)

    async def stop(self) -> None:
        await self.drain()
        for feed in (self._feed, self._agent_feed):
            if feed is not None:
                await feed.stop()
        if self._wake_ups is not None:
            await self._wake_ups.close()
        await self._background.close()
        await self._watch.close()
        if self._builtin is not None:
            await self._builtin.close()
        for line in self._lines:
            await line.aclose()
        await self._push.close()
        await self._caller.close()
        await self.roster.close()
        if self._chronicle is not None:
            await self._chronicle.close()
        if self.tracing is not None:
            await self.tracing.close()
        await self.backend.close()

    async def __aenter__(self) -> Onward:
        try:
            await self.start()
        except OnwardError as error:
            self.refusal = error
            await self._background.close()
            await self.backend.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def _start_streams(self, url: str) -> None:
        """The doors that live on Redis streams, whatever the ledger is."""
        from onward.doors.agents.streams import AgentStreams
        from onward.ledgers.redis.client import connect, tell_once
        from onward.workers.streams.agent_dialect import AgentProtocol
        from onward.workers.streams.channel import Lines
        from onward.workers.streams.feed import Feed, Rules

        settings = self.settings
        calls, blocking = connect(url), connect(url, timeout_s=None)
        self._lines = (calls, blocking)
        lines, agents = Lines(calls, blocking), AgentProtocol()
        self._reads = (lines, (StreamProtocol(), agents))
        rules = Rules(
            types=settings.stream_types,
            besides=[agents.queue, agent_webhooks.QUEUE],
            visibility_ms=int(settings.visibility_timeout_s * 1000),
            credits=settings.stream_credits,
        )

        def feed_of(dialect: Dialect, rules: Rules) -> Feed:
            duty = self._duty(dialect.name)
            return Feed(self.dispatcher, self.roster, lines, dialect, rules, self.catalog, duty)

        self._feed = feed_of(StreamProtocol(), rules)
        self._agent_feed = feed_of(agents, msgspec.structs.replace(rules, types=()))
        for feed in (self._feed, self._agent_feed):
            feed.start()
        letters = DeadLetters(self.backend.tasks, partial(tell_once, calls))
        duty, troubles = self._duty(letters.name), self.dispatcher.troubles
        self._background.run(Tail(self.backend, letters, self.clock, duty=duty).run(troubles))
        told = AgentStreams(
            self.backend,
            calls,
            self.clock,
            prefix=settings.redis_prefix,
            tally=lines.tally,
        )
        self._background.run(told.run(troubles, self._duty(told.name)))
        self._background.run(self._show_views(calls))

    async def _show_views(self, redis: Redis) -> None:
        """What the seeds' readers look up: of a Redis ledger all of it, else what agents do."""
        from onward.doors.agents.streams import wanted
        from onward.doors.redis_views.adoption import Adoption
        from onward.doors.redis_views.projector import SeedViews
        from onward.doors.redis_views.writer import ViewWriter

        writer = ViewWriter(redis, self.settings.redis_prefix)
        whole = not self.settings.ledger.startswith(("sqlite", "postgres"))
        adoption = None
        if whole:
            adoption = Adoption(self.dispatcher, self.intake, self.catalog, writer)
        views = SeedViews(
            self.dispatcher,
            writer,
            whole=whole,
            adoption=adoption,
            at_rest=at_rest(self.backend),
            duty=self._duty(SeedViews.name),
        )
        if not whole:
            await wanted(self.backend, redis, self.clock, SeedViews.name)
        self._views = views
        await views.run(self.dispatcher.troubles)

    def _start_waking(self) -> None:
        """Celery workers run tasks of a ledger that they can reach."""
        from onward.workers.celery.wake import WakeUps, sender

        self._wake_ups = WakeUps(self.backend, self.roster, self.clock, sender(self.settings))
        self._wake_ups.start()

    async def _declare(self, bodies: Any) -> None:
        for service in console_services.declared_all(bodies):
            await self.catalog.declare(service)


def _tracing(settings: Settings) -> Tracing | None:
    if not traced(settings.traces):
        return None
    from onward.tracing.server import Tracing

    return Tracing()
