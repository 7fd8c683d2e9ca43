"""/health, /ready and /metrics: is it well, does it take work, how much of everything."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from onward import __version__
from onward.core.dispatch import Dispatcher
from onward.core.errors import Conflict, OnwardError
from onward.core.pressure.breaker import Breakers, Circuit
from onward.core.readers import LogReader, Readers
from onward.core.task import Lane, State
from onward.doors.rest.live import QUEUES, fullest
from onward.doors.route import answer
from onward.wire.times import iso
from onward.workers.roster import Roster

_DEGREES = {Circuit.CLOSED: 0, Circuit.HALF_OPEN: 1, Circuit.OPEN: 2}
Counts = Mapping[tuple[str, Lane, State], int]
Ping = Callable[[], Awaitable[Any]]
Read = Callable[[], Awaitable[Collector]]
Count = Callable[[], Awaitable[int]]

OTHER = "_other"  # the label of all queues beyond the first hundred
STATUSES = (200, 201, 202, 204, 400, 403, 404, 409, 413, 422, 500, 503)
PROBE_S = 2  # whoever asks about our health will not wait for a store that hangs


class Streams(NamedTuple):
    """The Redis that the streams are on."""

    ping: Ping
    read_depths: Read
    count_consumers: Count


def build(
    dispatcher: Dispatcher,
    roster: Roster,
    ready: Callable[[], bool],
    streams: Streams | None = None,
    also: Sequence[Collector] = (),
    *,
    readers: Readers,
) -> APIRouter:
    router = APIRouter(tags=["health"])
    process = ProcessCollector(registry=None)

    @router.get("/health")
    async def health() -> Response:
        ledger, redis, workers = await asyncio.gather(
            _ledger(dispatcher, roster), _redis(streams), _workers(roster, streams)
        )
        details: dict[str, dict[str, Any]] = {
            "ledger": ledger,
            "redis": redis,
            "workers": workers,
            "circuit_breaker": _breakers(dispatcher.pressure.breakers),
            "background": _background(dispatcher),
        }
        breaker = details["circuit_breaker"]
        body = {
            "status": _worst(part["status"] for part in details.values()),
            "version": __version__,
            "components": {
                "ledger": ledger["status"] != "unhealthy",
                "redis": None if streams is None else redis["status"] != "unhealthy",
                "workers": workers["connected"] > 0,
                "circuit_breaker": {"state": breaker["status"], "open": [*breaker["services"]]},
                "background": details["background"]["status"] != "unhealthy",
            },
            "details": details,
            "timestamp": iso(dispatcher.clock.now()),
        }
        return answer(body, 503 if body["status"] == "unhealthy" else 200)

    @router.get("/ready")
    async def readiness() -> Response:
        takes_work = ready() and roster.beating
        return answer({"ready": takes_work}, 200 if takes_work else 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        registry = CollectorRegistry()
        registry.register(_Reading(dispatcher, roster, await dispatcher.backend.tasks.counts()))
        for collector in (*also, process):
            registry.register(collector)
        with suppress(OnwardError):
            registry.register(_Readers(await readers.list()))
        if streams is not None:
            # A Redis that is away costs its own figures, and nobody else's.
            with suppress(Exception):
                async with asyncio.timeout(PROBE_S):
                    registry.register(await streams.read_depths())
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router


def _worst(states: Iterable[str]) -> str:
    """A service that is left alone, or streams of another ledger, hinder a part of the work."""
    found = set(states)
    if "unhealthy" in found:
        return "unhealthy"
    return "degraded" if found & {"degraded", Circuit.OPEN, Circuit.HALF_OPEN} else "healthy"


async def _redis(streams: Streams | None) -> dict[str, str]:
    return {"status": "not_configured"} if streams is None else await _probe(streams.ping)


async def _workers(roster: Roster, streams: Streams | None) -> dict[str, Any]:
    """Those who read streams register nowhere: Redis knows their names."""
    by_transport = Counter(member.transport for member in roster.members())
    none = "unhealthy"
    if streams is not None:
        try:
            async with asyncio.timeout(PROBE_S):
                by_transport.update(streams=await streams.count_consumers())
        except Exception:  # Redis is away, as its own probe reports
            none = "unknown"
    connected = by_transport.total()
    found: dict[str, Any] = {
        "status": "healthy" if connected else none,
        "connected": connected,
        "by_transport": +by_transport,
    }
    if found["status"] == "unhealthy":
        found["error"] = "no worker is connected; start one with `onward worker`"
    return found


def _breakers(breakers: Breakers) -> dict[str, Any]:
    """Closed, unless some service is being left alone."""
    readings = breakers.readings()
    states = {reading.state for reading in readings.values()}
    worst = next(
        (state for state in (Circuit.OPEN, Circuit.HALF_OPEN) if state in states), Circuit.CLOSED
    )
    return {
        "status": worst,
        "services": {
            queue: {
                "state": reading.state,
                "since": iso(reading.since),
                "until": iso(reading.until),
                "failures": reading.failures,
                "calls": reading.calls,
            }
            for queue, reading in readings.items()
        },
    }


def _background(dispatcher: Dispatcher) -> dict[str, Any]:
    failing = dispatcher.troubles.in_trouble()
    return {"status": "unhealthy" if failing else "healthy", "failing": failing}


async def _ledger(dispatcher: Dispatcher, roster: Roster) -> dict[str, Any]:
    found = await _probe(lambda: dispatcher.backend.tasks.due(now=0, limit=1))
    if found["status"] != "healthy":
        return found
    if not roster.beating:
        return {"status": "unhealthy", "error": "writes are refused"}
    warnings = dispatcher.backend.warnings
    return {"status": "degraded", "warnings": list(warnings)} if warnings else {**found}


async def _probe(ping: Ping) -> dict[str, str]:
    try:
        async with asyncio.timeout(PROBE_S):
            await ping()
    except Conflict as error:
        return {"status": "degraded", "error": str(error)}
    except OnwardError as error:
        return {"status": "unhealthy", "error": str(error)}
    except Exception as error:
        return {"status": "unhealthy", "error": type(error).__name__}
    return {"status": "healthy"}


class Requests(Collector):
    """How many calls were answered, by status."""

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
    """One scrape: everything is read from counts that are kept anyway."""

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
        held = GaugeMetricFamily("onward_held", "Tasks that this server's workers hold")
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
        """The fullest by name, the rest as one: anybody may name a queue, and each is a series."""
        queues: dict[str, Counter[State]] = defaultdict(Counter)
        for (queue, _, state), count in self._counts.items():
            queues[queue][state] += count
        named = set(fullest(queues))
        told: Counter[tuple[str, Lane, State]] = Counter()
        for (queue, lane, state), count in self._counts.items():
            told[queue if queue in named else OTHER, lane, state] += count
        return told

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
    told = dict(sorted(ranked[:QUEUES]))
    if ranked[QUEUES:]:
        told[OTHER] = rest(count for _, count in ranked[QUEUES:])
    return told
