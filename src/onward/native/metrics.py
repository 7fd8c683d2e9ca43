"""/metrics: how much there is of everything, and what this server has done, as Prometheus reads it.

Everything is read from counts that are kept anyway, and from the heads of the queues. A ledger that
does not answer costs its own figures, and no others: that it is away is one of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from onward.core.dispatch import Dispatcher
from onward.core.measures import OTHER, Histogram, Measures
from onward.core.pressure.breaker import Circuit
from onward.core.readers import LogReader, Readers
from onward.core.task import FINAL, Instant, Lane, State
from onward.errors import OnwardError
from onward.ledgers.timed import LedgerCalls
from onward.native.caller import Caller, Scope, needs
from onward.native.limits import LimitUses
from onward.native.live import QUEUES, fullest
from onward.wire.limits import LimitUse
from onward.workers.roster import Roster, is_service

_DEGREES = {Circuit.CLOSED: 0, Circuit.HALF_OPEN: 1, Circuit.OPEN: 2}
Counts = Mapping[tuple[str, Lane, State], int]
ReadDepths = Callable[[], Awaitable[Collector]]

STATUSES = (200, 201, 202, 204, 400, 403, 404, 409, 413, 422, 500, 503)
LEDGER_S = DEPTHS_S = 2
APPROVALS = 100  # open ones that are looked at for the one that was asked for first
ENDINGS = sorted(FINAL)


class Metrics:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        readers: Readers,
        ledger_calls: LedgerCalls,
        limits: LimitUses,
        also: Sequence[Collector],
        read_depths: ReadDepths | None,  # of the streams; None: nothing here is on a Redis
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._readers = readers
        self._limits = limits
        measured = (_Work(dispatcher.measures, roster), _Calls(ledger_calls))
        self._also = (*measured, *also, ProcessCollector(registry=None))
        self._read_depths = read_depths

    @needs(Scope.READ, Scope.REVEAL)
    async def read(self, caller: Caller) -> bytes:
        registry = CollectorRegistry()
        look = await self._look()
        registry.register(_Reading(self._dispatcher, self._roster, look))
        for collector in self._also:
            registry.register(collector)
        with suppress(OnwardError, TimeoutError):
            async with asyncio.timeout(LEDGER_S):
                if look is not None:
                    registry.register(_Readers(await self._readers.list()))
        if self._read_depths is not None:
            # A Redis that is away costs its own figures, and no others.
            with suppress(Exception):
                async with asyncio.timeout(DEPTHS_S):
                    registry.register(await self._read_depths())
        return generate_latest(registry)

    async def _look(self) -> _Look | None:
        """None: the ledger does not answer."""
        store = self._dispatcher.backend.tasks
        with suppress(OnwardError, TimeoutError):
            async with asyncio.timeout(LEDGER_S):
                counts = await store.counts()
                named = _named(counts)
                full = {queue for queue, _, state in counts if state is State.QUEUED}
                oldest = await store.oldest([q for q in named if q in full])
                asked = [one.asked_at for one in await store.open_approvals(APPROVALS)]
                return _Look(counts, named, oldest, asked, await self._limits.all())
        return None


class _Look(NamedTuple):
    """What one scrape has read of the ledger."""

    counts: Counts
    named: Sequence[str]  # the queues that have a label of their own
    oldest: Mapping[str, Instant]
    asked: Sequence[Instant]  # when the approval that is open longest was asked for
    limits: Sequence[LimitUse]


def _named(counts: Counts) -> Sequence[str]:
    """The fullest: callers name queues, and each is a series."""
    queues: dict[str, Counter[str]] = defaultdict(Counter)
    for (queue, _, state), count in counts.items():
        queues[queue][state] += count
    return fullest(queues)


class _Work(Collector):
    """What became of the tasks of each service, through this server."""

    def __init__(self, measures: Measures, roster: Roster) -> None:
        self._measures = measures
        self._roster = roster

    def collect(self) -> Iterable[Metric]:
        # There before its first task: a rate over a series that begins with that misses it.
        for queue in filter(is_service, self._roster.serving()):
            self._measures.of(queue)
        labels = ["service"]
        waited = HistogramMetricFamily(
            "onward_task_wait_seconds", "From its place in a queue to its claim", labels=labels
        )
        ran = HistogramMetricFamily(
            "onward_task_run_seconds", "From its claim until its worker was done", labels=labels
        )
        ended = CounterMetricFamily(
            "onward_tasks", "Tasks that ended, by how", labels=["service", "outcome"]
        )
        retried = CounterMetricFamily(
            "onward_task_retries", "Attempts that failed and are followed by another", labels=labels
        )
        for service, measures in self._measures.by_service().items():
            _add(waited, service, measures.waited)
            _add(ran, service, measures.ran)
            for state in ENDINGS:
                ended.add_metric([service, state], measures.endings[state])
            retried.add_metric([service], measures.retries)
        return [waited, ran, ended, retried]


class _Calls(Collector):
    """How long the ledger took for this server."""

    def __init__(self, calls: LedgerCalls) -> None:
        self._calls = calls

    def collect(self) -> Iterable[Metric]:
        took = HistogramMetricFamily(
            "onward_ledger_seconds", "Calls of the ledger, of many items each", labels=["operation"]
        )
        for operation, histogram in self._calls.took.items():
            _add(took, operation, histogram)
        failed = CounterMetricFamily(
            "onward_ledger_errors", "Calls that the ledger did not answer", labels=["operation"]
        )
        for operation, count in self._calls.failed.items():
            failed.add_metric([operation], count)
        return [took, failed]


def _add(family: HistogramMetricFamily, label: str, histogram: Histogram) -> None:
    tops = [*(str(ms / 1000) for ms in histogram.bounds_ms), "+Inf"]
    buckets = list(zip(tops, accumulate(histogram.counts), strict=True))
    family.add_metric([label], buckets, histogram.sum_ms / 1000)


class Requests(Collector):
    """How many HTTP requests were answered, by status."""

    def __init__(self) -> None:
        # There from the start: a rate over a series that begins with its first call misses it.
        self.answered: Counter[int] = Counter(dict.fromkeys(STATUSES, 0))

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "onward_http_requests", "HTTP calls answered by this server", labels=["status"]
        )
        for status, count in sorted(self.answered.items()):
            requests.add_metric([str(status)], count)
        return [requests]


class _Readers:
    """How far each reader of the log is behind."""

    def __init__(self, readers: Sequence[LogReader]) -> None:
        self._readers = readers

    def collect(self) -> Iterable[Metric]:
        behind = GaugeMetricFamily(
            "onward_log_behind_seconds",
            "Since the first event that this reader of the log has not read",
            labels=["reader"],
        )
        for reader in self._readers:
            if not reader.retired:
                behind.add_metric([reader.name], reader.behind_ms / 1000)
        return [behind]


class _Reading:
    """One scrape."""

    def __init__(self, dispatcher: Dispatcher, roster: Roster, look: _Look | None) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._up = look is not None
        self._look = look or _Look({}, (), {}, (), ())

    def collect(self) -> Iterable[Metric]:
        events = CounterMetricFamily(
            "onward_events", "Events written through this server", labels=["type"]
        )
        for type_, count in sorted(self._dispatcher.tally.items()):
            events.add_metric([type_], count)
        workers = GaugeMetricFamily("onward_workers", "Connected workers", labels=["transport"])
        transports = Counter(member.transport for member in self._roster.members())
        for transport, count in sorted(transports.items()):
            workers.add_metric([transport], count)
        waiting = GaugeMetricFamily("onward_waiters", "Callers waiting for a result")
        waiting.add_metric([], len(self._dispatcher.waiters))
        held = GaugeMetricFamily("onward_held", "Tasks in the hands of this server's workers")
        held.add_metric([], self._dispatcher.slots.busy())
        postponed = CounterMetricFamily(
            "onward_alarms_postponed", "Alarms that could not be decided here", labels=["error"]
        )
        for error, count in sorted(self._dispatcher.decisions.postponed.items()):
            postponed.add_metric([error], count)
        up = GaugeMetricFamily("onward_ledger_up", "1: the ledger answers", value=self._up)
        ledger = [
            up,
            *(
                GaugeMetricFamily(name, text, value=value)
                for name, text, value in self._dispatcher.backend.gauges()
            ),
        ]
        return [
            events, workers, waiting, held, postponed, *ledger, *self._queues(), *self._pressure(),
            *_limits(self._look.limits),
        ]  # fmt: skip

    def _queues(self) -> Iterable[Metric]:
        tasks = GaugeMetricFamily(
            "onward_tasks", "Tasks in the ledger", labels=["queue", "lane", "state"]
        )
        for (queue, lane, state), count in sorted(self._by_queue().items()):
            tasks.add_metric([queue, lane, state], count)
        oldest = GaugeMetricFamily(
            "onward_queue_oldest_seconds",
            "How long the next task has been queued",
            labels=["queue"],
        )
        now = self._dispatcher.clock.now()
        for queue, since in self._look.oldest.items():
            oldest.add_metric([queue], max(0, now - since) / 1000)
        asked = GaugeMetricFamily(
            "onward_approval_oldest_seconds",
            "How long the approval that is open longest has been open",
            value=max(0, now - min(self._look.asked, default=now)) / 1000,
        )
        workers = GaugeMetricFamily(
            "onward_queue_workers", "Workers that take tasks of this queue", labels=["queue"]
        )
        serving = self._roster.serving()
        for queue in self._look.named:
            # Runs of flows and webhooks are this server's own work, and have no row in the roster.
            here = self._dispatcher.slots.served(queue)
            workers.add_metric([queue], max(serving.get(queue, 0), int(here)))
        return [tasks, oldest, asked, workers]

    def _by_queue(self) -> Counts:
        named = set(self._look.named)
        totals: Counter[tuple[str, Lane, State]] = Counter()
        for (queue, lane, state), count in self._look.counts.items():
            totals[queue if queue in named else OTHER, lane, state] += count
        return totals

    def _pressure(self) -> Iterable[Metric]:
        breakers = self._dispatcher.pressure.breakers
        state = GaugeMetricFamily(
            "onward_breaker_state", "0 closed, 1 half open, 2 open", labels=["service"]
        )
        degrees = {queue: _DEGREES[one.state] for queue, one in breakers.readings().items()}
        for queue, degree in _bounded(degrees, max).items():
            state.add_metric([queue], degree)
        opened = CounterMetricFamily(
            "onward_breaker_opened", "Times a breaker opened here", labels=["service"]
        )
        for queue, count in _bounded(breakers.opened, sum).items():
            opened.add_metric([queue], count)
        share = GaugeMetricFamily("onward_retry_share", "Of the slots, what retries may take")
        retries = sum(
            count
            for (_, lane, stored), count in self._look.counts.items()
            if lane is Lane.RETRY and stored is State.QUEUED
        )
        share.add_metric([], self._dispatcher.pressure.retry_share.of(retries))
        return [state, opened, share]


def _limits(uses: Iterable[LimitUse]) -> Iterable[Metric]:
    labels = ["limit", "kind", "window_seconds"]
    used = GaugeMetricFamily("onward_limit_used", "How much of a limit is used up", labels=labels)
    most = GaugeMetricFamily("onward_limit_max", "What a limit lets run or start", labels=labels)
    for use in uses:
        if use.used is not None:  # else it is each partition's, and there may be very many
            label = [use.name, use.kind, "" if use.per_ms is None else f"{use.per_ms / 1000:g}"]
            used.add_metric(label, use.used)
            most.add_metric(label, use.max)
    return [used, most]


def _bounded(counts: Mapping[str, int], rest: Callable[[Iterable[int]], int]) -> Mapping[str, int]:
    """The highest by name, and what the others come to."""
    ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    named = dict(sorted(ranked[:QUEUES]))
    if ranked[QUEUES:]:
        named[OTHER] = rest(count for _, count in ranked[QUEUES:])
    return named
