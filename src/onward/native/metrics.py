"""/metrics: how much there is of everything, as Prometheus reads it.

Everything is read from counts that are kept anyway.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from onward.core.dispatch import Dispatcher
from onward.core.errors import OnwardError
from onward.core.pressure.breaker import Circuit
from onward.core.readers import LogReader, Readers
from onward.core.task import Lane, State
from onward.native.caller import Caller, Scope, needs
from onward.native.live import QUEUES, fullest
from onward.workers.roster import Roster

_DEGREES = {Circuit.CLOSED: 0, Circuit.HALF_OPEN: 1, Circuit.OPEN: 2}
Counts = Mapping[tuple[str, Lane, State], int]
ReadDepths = Callable[[], Awaitable[Collector]]

OTHER = "_other"  # the label of all queues beyond the first hundred
STATUSES = (200, 201, 202, 204, 400, 403, 404, 409, 413, 422, 500, 503)
DEPTHS_S = 2


class Metrics:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        readers: Readers,
        also: Sequence[Collector],
        read_depths: ReadDepths | None,  # of the streams; None: nothing here is on a Redis
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._readers = readers
        self._also = (*also, ProcessCollector(registry=None))
        self._read_depths = read_depths

    @needs(Scope.READ)
    async def read(self, caller: Caller) -> bytes:
        registry = CollectorRegistry()
        counts = await self._dispatcher.backend.tasks.counts()
        registry.register(_Reading(self._dispatcher, self._roster, counts))
        for collector in self._also:
            registry.register(collector)
        with suppress(OnwardError):
            registry.register(_Readers(await self._readers.list()))
        if self._read_depths is not None:
            # A Redis that is away costs its own figures, and no others.
            with suppress(Exception):
                async with asyncio.timeout(DEPTHS_S):
                    registry.register(await self._read_depths())
        return generate_latest(registry)


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

    def __init__(self, dispatcher: Dispatcher, roster: Roster, counts: Counts) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        events = CounterMetricFamily(
            "onward_events", "Events written through this server", labels=["type"]
        )
        for type_, count in sorted(self._dispatcher.tally.items()):
            events.add_metric([type_], count)
        tasks = GaugeMetricFamily(
            "onward_tasks", "Tasks in the ledger", labels=["queue", "lane", "state"]
        )
        for (queue, lane, state), count in sorted(self._by_queue().items()):
            tasks.add_metric([queue, lane, state], count)
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
        ledger = [
            GaugeMetricFamily(name, text, value=value)
            for name, text, value in self._dispatcher.backend.gauges()
        ]
        return [events, tasks, workers, waiting, held, postponed, *ledger, *self._pressure()]

    def _by_queue(self) -> Counts:
        """The fullest by name, the rest as one: callers name queues, and each is a series."""
        queues: dict[str, Counter[str]] = defaultdict(Counter)
        for (queue, _, state), count in self._counts.items():
            queues[queue][state] += count
        named = set(fullest(queues))
        totals: Counter[tuple[str, Lane, State]] = Counter()
        for (queue, lane, state), count in self._counts.items():
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
            for (_, lane, stored), count in self._counts.items()
            if lane is Lane.RETRY and stored is State.QUEUED
        )
        share.add_metric([], self._dispatcher.pressure.retry_share.of(retries))
        return [state, opened, share]


def _bounded(counts: Mapping[str, int], rest: Callable[[Iterable[int]], int]) -> Mapping[str, int]:
    """The highest by name, and what the others come to."""
    ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    named = dict(sorted(ranked[:QUEUES]))
    if ranked[QUEUES:]:
        named[OTHER] = rest(count for _, count in ranked[QUEUES:])
    return named
