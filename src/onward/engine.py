"""The engine without a door: ledger, dispatcher, clockwork, workers and flows, to be embedded.

`app.build` puts the doors on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog

from onward.background import Background
from onward.client.service import Service
from onward.core.alarm import Alarm
from onward.core.clock import Clock, SharedClock
from onward.core.contract import Projector
from onward.core.dispatch import Dispatcher
from onward.core.duty import Duty
from onward.core.errors import Conflict, Invalid, LedgerUnavailable
from onward.core.policy import kept_at_most
from onward.core.readers import DAY_MS, RENEW_MS, Readers
from onward.core.tail import LazyTail, Tail
from onward.core.task import TaskId, encode
from onward.core.waiters import Waiters
from onward.errors import OnwardError
from onward.flow.catalog import FlowCatalog
from onward.flow.executor import FlowExecutor
from onward.flow.runs import QUEUE as FLOW_QUEUE
from onward.ledgers import open_backend
from onward.ledgers.archive import ArchivedBackend, Archiver
from onward.ledgers.sealed import SealedBackend, seal_only, unwrap
from onward.ledgers.timed import LedgerCalls, timed
from onward.native import batches, operation_work, webhooks
from onward.native.alerts import LOOK_S, Alerts
from onward.native.attention import AttentionRules, Thresholds
from onward.native.audit import AuditTrail
from onward.native.batch_view import QUEUE as BATCH_QUEUE
from onward.native.callbacks import Callbacks, CallbackSecrets
from onward.native.caller import OPERATOR
from onward.native.compensations import Compensations
from onward.native.enqueued import EnqueuedWork
from onward.native.explain import Explainer
from onward.native.flows import Flows
from onward.native.health import StreamProbes
from onward.native.history import STEP_MS, History
from onward.native.key_store import EVERY_S, KeyStore
from onward.native.limits import LimitUses
from onward.native.masking import Masking
from onward.native.minutes import Minutes
from onward.native.notifications.hub import Hub
from onward.native.notifications.preferences import PreferenceStore
from onward.native.notifications.projector import NotificationProjector, NotificationRunner
from onward.native.notifications.store import NotificationStore
from onward.native.notifications.webhooks import SessionWebhooks
from onward.native.runs import Runs
from onward.native.schedules import ScheduledWork, Schedules
from onward.native.services import Services
from onward.native.session_owners import SessionOwners
from onward.native.session_tasks import ForeignLooks
from onward.native.submission import Submissions
from onward.native.tools.offers import LOOK_S as LOOK_FOR_IDLE_S
from onward.native.tools.offers import ToolOffers
from onward.services.catalog import RENEW_MS as CATALOG_MS
from onward.services.catalog import Catalog
from onward.services.declarations import Declarations
from onward.settings import Settings
from onward.tracing.switch import traced
from onward.urls import is_loopback
from onward.workers.http.address import Hosts
from onward.workers.http.call import OutboundHttp
from onward.workers.http.executor import HttpExecutor
from onward.workers.http.registry import Registry
from onward.workers.local.builtin import BuiltinWorker
from onward.workers.roster import Roster
from onward.workers.runner import Runner
from onward.workers.socket.sessions import WorkerSockets
from onward.workers.streams.dialects import WORKER_STREAMS
from onward.workers.task_logs import TaskLogs

log = structlog.get_logger("onward")

FLOW_SLOTS = 128  # runs advanced at a time; a step takes no time, so this bounds a burst


if TYPE_CHECKING:
    from prometheus_client.registry import Collector
    from redis.asyncio import Redis

    from onward.tracing.chronicle import Chronicle
    from onward.tracing.server import Tracing
    from onward.workers.celery.wake import WakeUps
    from onward.workers.streams.channel import StreamConnections
    from onward.workers.streams.dialects import StreamDialect
    from onward.workers.streams.feed import StreamFeed


class EnginePart(Protocol):
    """What a door does besides answering calls: started and stopped with the engine."""

    def start(self) -> None: ...

    async def forget(self, ids: Sequence[TaskId]) -> None:
        """These tasks are erased."""
        ...


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
        rules = settings.profiles()
        self.refusal: OnwardError | None = None  # why it could not start
        self._archiver: Archiver | None = None
        if isinstance(ledger, ArchivedBackend):
            retention = {name: profile.retention_ms for name, profile in rules.items()}
            self._archiver = Archiver(ledger, self.clock, retention)
            rules = kept_at_most(rules, settings.redis_keep_ms)
        self.tracing = _tracing(settings)
        dispatcher = Dispatcher if self.tracing is None else self.tracing.dispatcher
        self.ledger_calls = LedgerCalls()
        self.dispatcher = dispatcher(
            timed(self.backend, self.ledger_calls),
            rules,
            self.clock,
            waiters=Waiters(most=settings.max_waiters),
            breaker=settings.breaker(),
            retry_share=settings.retry_share(),
        )
        self.trail = AuditTrail(self.backend, self.clock)
        self.keys = KeyStore(self.backend, self.clock, self.trail, settings.admin_token())
        self.alarm = Alarm(self.dispatcher)
        self._background = Background(self.dispatcher.troubles)
        self.roster = Roster(self.backend, self.clock)
        expiry_ms = int(settings.reader_expiry_days * DAY_MS)
        self.readers = Readers(self.backend, self.clock, expiry_ms)
        self.catalog = Catalog(self.backend, self.clock)
        self.services = Services(
            self.catalog,
            lambda: self._undoing.open(),
            encrypts=isinstance(self.backend, SealedBackend),
        )
        if settings.encrypt == "declared":
            seal_only(self.backend, self.catalog.encrypts)
        self.limits = LimitUses(self.dispatcher, self.catalog)
        self.catalog.on_bounds = self.dispatcher.pressure.limits.take
        self.dispatcher.guards = self.catalog.guards
        self._builtin: BuiltinWorker | None = None
        if services or groups:
            self._builtin = BuiltinWorker(
                self.dispatcher,
                self.roster,
                self._services,
                groups or {},
                slots=settings.builtin_slots,
            )
        self.history = History(self.dispatcher)
        self.explainer = Explainer(self.dispatcher, self.roster, self.limits, self.history.usual_ms)
        self.minutes = Minutes(self.dispatcher, self.roster.server)
        self.task_logs = TaskLogs(self.backend.documents, self.clock, on=settings.task_logs == "on")
        self.foreign_looks = ForeignLooks()
        self.sockets = WorkerSockets(
            self.dispatcher,
            self.roster,
            most=settings.max_sockets,
            logs=self.task_logs,
        )
        self.hosts = Hosts(settings.worker_hosts)
        self.registry = Registry(
            self.backend,
            self.clock,
            self.roster,
            self.hosts,
            ttl_ms=settings.worker_ttl_ms,
            slots=settings.push_slots,
            admits=self.keys.admits,
        )
        self.flow_catalog = FlowCatalog(self.backend, self.clock)
        self.flows = Flows(self.flow_catalog)
        self.declarations = Declarations(self.catalog)
        self.session_owners = SessionOwners(self.backend, self.clock)
        self.preferences = PreferenceStore(self.backend, self.clock)
        self.submissions = Submissions(
            self.dispatcher,
            self.declarations,
            self.roster,
            self.session_owners,
            self.preferences,
            self.hosts,
            settings.stream_types,
        )
        self.masking = Masking(self.catalog)
        self.runs = Runs(
            self.dispatcher,
            self.flow_catalog,
            self.masking,
            self.session_owners,
            self.preferences,
            self.hosts,
        )
        work = ScheduledWork(self.submissions, self.flow_catalog, self.runs, self.masking)
        self.offers = ToolOffers(
            self.backend, self.clock, self.roster, self.catalog, self.flow_catalog
        )
        self.schedules = Schedules(self.backend, self.clock, work, self.masking)
        thresholds = Thresholds(
            dead=settings.attention_dead,
            waiting_ms=settings.attention_waiting_ms,
            approval_ms=settings.attention_approval_ms,
        )
        self.attention = AttentionRules(
            self.dispatcher, self.roster, self.schedules.timetable, thresholds
        )
        executor = FlowExecutor(self.dispatcher, self.flow_catalog, self.catalog)
        self.dispatcher.reader = executor.hear
        if self.tracing is not None:
            self.dispatcher.reader = self.tracing.inheriting(executor.hear)
        self._flow_runner = Runner(
            self.dispatcher,
            executor,
            worker=f"flows-{self.roster.server[-12:]}",
            queues=[FLOW_QUEUE],
            slots=FLOW_SLOTS,
        )
        self._push = HttpExecutor(
            self.dispatcher, self.roster, self.registry, timeout_ms=settings.push_timeout_ms
        )
        self._batches = Runner(
            self.dispatcher,
            batches.BatchExecutor(self.dispatcher, self.submissions),
            worker=f"batches-{self.roster.server[-12:]}",
            queues=[BATCH_QUEUE],
            slots=batches.SLOTS,
        )
        self._operating = operation_work.OperationExecutor(self.dispatcher, self.erase)
        self._operations = Runner(
            self.dispatcher,
            self._operating,
            worker=f"operations-{self.roster.server[-12:]}",
            queues=[operation_work.QUEUE],
            slots=operation_work.SLOTS,
        )
        self._open_notifications(self.hosts)
        self._chronicle = self._told_by(self.tracing)

        self._feed: StreamFeed | None = None
        self._agent_feed: StreamFeed | None = None
        self._wake_ups: WakeUps | None = None
        self.parts: list[EnginePart] = []
        self.lines: StreamConnections | None = None  # to the Redis that the streams are on
        self._connections: Sequence[Redis] = ()
        self._dialects: Sequence[StreamDialect] = ()
        self._redis = settings.redis or self.backend.redis

    def _open_notifications(self, hosts: Hosts) -> None:
        """What sessions are notified of, and how it is delivered."""
        backend, clock, server = self.backend, self.clock, self.roster.server
        self.notifications = NotificationStore(backend, clock)
        self.session_owners.on_taken = (self.preferences.clear, self.notifications.clear)
        self.hub = Hub(
            backend,
            clock,
            self.notifications,
            self.preferences,
            server=server,
            shared=backend.shared,
        )
        self._caller = OutboundHttp()
        posting = SessionWebhooks(self.dispatcher, self.notifications, self.preferences, hosts)
        self.callback_secrets = CallbackSecrets(backend.documents, clock)
        callbacks = Callbacks(self.dispatcher, self.callback_secrets, hosts)
        secret = self.settings.alert_secret
        self.alerts = Alerts(
            self.dispatcher,
            self.attention,
            self.settings.alert_urls,
            secret=None if secret is None else secret.get_secret_value(),
            hold_ms=self.settings.alert_hold_ms,
            public_url=self.settings.public_url,
            duty=self.duty("alerts"),
        )
        self._webhooks = Runner(
            self.dispatcher,
            webhooks.WebhookExecutor(clock, self._caller.post, [posting, callbacks, self.alerts]),
            worker=f"webhooks-{server[-12:]}",
            queues=[webhooks.QUEUE],
            slots=webhooks.SLOTS,
        )
        listeners = [self.hub.deliver, posting.submit]
        projector = NotificationProjector(backend.tasks, self.notifications, clock, listeners)
        self.figures = projector.figures
        self._notifying = NotificationRunner(backend, projector, clock, self.duty(projector.name))
        self._calling_back = LazyTail(backend, callbacks, clock, duty=self.duty(callbacks.name))
        undoing = Compensations(self.dispatcher, self.catalog)
        self._undoing = LazyTail(backend, undoing, clock, duty=self.duty(undoing.name))
        self.dispatcher.before_first = {
            "session": self._notifying.open,
            "callback_url": self._calling_back.open,
        }

    def _told_by(self, tracing: Tracing | None) -> Chronicle | None:
        """Who writes the spans of what has happened."""
        if tracing is None:
            return None
        return tracing.chronicle(self.backend, self.clock, self.duty("traces"))

    def duty(self, name: str) -> Duty | None:
        """What one server does at a time; None: no other server is on this ledger."""
        if not self.backend.shared:
            return None
        return Duty(self.backend.documents, self.clock, name, self.roster.server)

    async def start(self) -> None:
        settings, troubles = self.settings, self.dispatcher.troubles
        await self.backend.maintain()
        if isinstance(self.clock, SharedClock):
            self.clock.adopt()  # as the ledger's was just measured
        await self.keys.refresh()
        self._require_keys()
        self._background.every(EVERY_S, self.keys.refresh)
        self.backend.bell.attach(self.dispatcher)
        if self._archiver is not None:
            await self._archiver.prepare()
            self._background.run(self._archiver.run(troubles))
        if self._chronicle is not None:
            await self._chronicle.step()  # so that nothing happens before it reads
            self._background.every(1, self._chronicle.step)
        await self.roster.beat()
        await self.roster.refresh()
        # Before the first worker asks: it would be handed the tasks of a queue that is paused, or
        # more than a limit lets run.
        await self.dispatcher.pressure.weigh()
        await self.catalog.renew()
        if self._builtin is not None:
            bodies = [encode(service.declaration()).encode() for service in self._services.values()]
            await self.services.declare_all(OPERATOR, bodies)
            await self._builtin.start()
        self._background.every(settings.lease_ms / 3000, self.dispatcher.beat)
        await self.offers.look()
        self._background.every(LOOK_FOR_IDLE_S, self.offers.look)
        self._background.every(1, self.dispatcher.reread)
        self._background.every(1, self.dispatcher.pressure.weigh)
        self._background.every(CATALOG_MS / 1000, self.catalog.renew)
        self._background.every(1, self.backend.maintain)
        self._background.every(RENEW_MS / 1000, self.readers.retire_silent)
        self._background.every(STEP_MS / 1000, self.history.sample)
        self._background.every(1, self.minutes.sample)
        self._background.run(self.schedules.scheduler.run(troubles))
        self._background.run(self.roster.run())
        self._push.start()
        self._flow_runner.start()
        self._batches.start()
        self._operations.start()
        self._start_webhooks()
        if self._redis is not None:
            self._start_streams(self._redis)
        self._background.run(self.alarm.run())
        if self.backend.shared:
            self._start_sharing()
        for part in self.parts:
            part.start()
        self.ready = True

    def _start_webhooks(self) -> None:
        """Who is notified of what has happened."""
        troubles = self.dispatcher.troubles
        self._webhooks.start()
        self._background.run(self._notifying.run(troubles))
        self._background.run(self._calling_back.run(troubles))
        self._background.run(self._undoing.run(troubles))
        if self.settings.alert_urls:
            self._background.every(LOOK_S, self.alerts.look)

    def _require_keys(self) -> None:
        host = self.settings.host
        if self.keys.open and not is_loopback(host):
            raise Invalid(
                f"listening on {host} without keys would let everybody who reaches it run tasks",
                hint="make one first: onward keys create admin --scope admin --ledger <url>; "
                "or set ONWARD_ADMIN_KEY; or listen on 127.0.0.1",
            )

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Until the engine stops."""
        self._background.run(work)

    def project(self, projector: Projector) -> None:
        """Let it read the event log, on one server at a time."""
        tail = Tail(self.backend, projector, self.clock, duty=self.duty(projector.name))
        self.run(tail.run(self.dispatcher.troubles))

    async def erase(self, ids: Sequence[TaskId]) -> None:
        """Finished tasks, from the ledger and from wherever they went from there."""
        backend, now = unwrap(self.backend), self.clock.now()
        if isinstance(backend, ArchivedBackend):
            await backend.tasks.erase(ids, now=now)
        else:
            await backend.tasks.purge(ids, now=now)
        await self.task_logs.forget(ids)
        for part in self.parts:
            await part.forget(ids)

    @property
    def streams(self) -> StreamProbes | None:
        """None: nothing of this server is on a Redis."""
        if self._redis is None:
            return None
        return StreamProbes(self._ping_redis, self._read_depths, self._count_consumers)

    async def _read_depths(self) -> Collector:
        from onward.workers.streams import depths

        return await depths.read(*self._open_streams(), await self.catalog.all())

    async def _count_consumers(self) -> int:
        from onward.workers.streams import depths

        return await depths.consumers(*self._open_streams(), await self.catalog.all())

    def _open_streams(self) -> tuple[StreamConnections, Sequence[StreamDialect]]:
        if self.lines is None:
            raise LedgerUnavailable("the streams are not open yet")
        return self.lines, self._dialects

    async def _ping_redis(self) -> None:
        await self._connections[0].execute_command("PING")  # type: ignore[no-untyped-call]
        for feed in (self._feed, self._agent_feed):
            if feed is not None and feed.other is not None:
                raise Conflict(f"its streams are those of another ledger: {feed.other}")

    async def drain(self) -> None:
        """Take no more work; finish or hand back what runs."""
        self.ready = False
        grace_ms = self.settings.drain_ms
        self._operating.drain()
        builtin = [] if self._builtin is None else [self._builtin.drain(grace_ms)]
        await asyncio.gather(
            self.sockets.close(grace_ms),
            self._push.drain(grace_ms),
            self._flow_runner.drain(grace_ms),
            self._batches.drain(grace_ms),
            self._operations.drain(grace_ms),
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
        await self.minutes.close()
        await self.task_logs.close()
        await self._notifying.close()
        if self._builtin is not None:
            await self._builtin.close()
        for connection in self._connections:
            await connection.aclose()
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
        """Workers that read streams, whatever the ledger is."""
        from onward.ledgers.redis.client import connect
        from onward.workers.streams.agent_dialect import AGENT_STREAMS
        from onward.workers.streams.channel import StreamConnections
        from onward.workers.streams.feed import FeedSettings, StreamFeed

        settings = self.settings
        calls, blocking = connect(url), connect(url, timeout_s=None)
        self._connections = (calls, blocking)
        self.lines, agents = StreamConnections(calls, blocking), AGENT_STREAMS
        lines, self._dialects = self.lines, (WORKER_STREAMS, agents)
        rules = FeedSettings(
            types=settings.stream_types,
            besides=[agents.queue, webhooks.QUEUE],
            visibility_ms=int(settings.visibility_timeout_s * 1000),
            credits=settings.stream_credits,
        )

        def feed_of(dialect: StreamDialect, rules: FeedSettings) -> StreamFeed:
            duty = self.duty(dialect.name)
            return StreamFeed(
                self.dispatcher, self.roster, lines, dialect, rules, self.catalog, duty
            )

        self._feed = feed_of(WORKER_STREAMS, rules)
        self._agent_feed = feed_of(agents, msgspec.structs.replace(rules, types=()))
        for feed in (self._feed, self._agent_feed):
            feed.start()
        self.alarm.renewals = [self._feed.renew, self._agent_feed.renew]

    def _start_sharing(self) -> None:
        """What others on this ledger do: Celery workers run tasks, callers commit submissions."""
        from onward.workers.celery.wake import WakeUps, sender

        if self.backend.enqueued is not None:
            work = EnqueuedWork(self.backend.enqueued, self.dispatcher, self.submissions)
            self._background.run(work.run(self.dispatcher.troubles))

        self._wake_ups = WakeUps(self.backend, self.roster, self.clock, sender(self.settings))
        self._wake_ups.start()


def _tracing(settings: Settings) -> Tracing | None:
    if not traced(settings.traces):
        return None
    from onward.tracing.server import Tracing

    return Tracing()
