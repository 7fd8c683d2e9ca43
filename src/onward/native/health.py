"""Whether this server is well, part by part, and whether it takes work. Open to every caller."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, NamedTuple

from prometheus_client.registry import Collector

from onward import __version__
from onward.core.dispatch import Dispatcher
from onward.core.errors import Conflict
from onward.core.pressure.breaker import Circuit
from onward.errors import OnwardError
from onward.native.caller import Caller, needs
from onward.wire.health import (
    BackgroundPart,
    BreakersPart,
    BreakerSummary,
    Components,
    Details,
    HealthView,
    Part,
    Readiness,
    ServiceBreaker,
    WorkersPart,
)
from onward.wire.times import iso
from onward.workers.roster import Roster

Ping = Callable[[], Awaitable[Any]]

PROBE_S = 2  # a prober does not wait for a store that hangs


class StreamProbes(NamedTuple):
    """Of the Redis that the streams are on."""

    ping: Ping
    read_depths: Callable[[], Awaitable[Collector]]
    count_consumers: Callable[[], Awaitable[int]]


class Health:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        streams: StreamProbes | None,
        ready: Callable[[], bool],
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._streams = streams
        self._ready = ready

    @needs()
    async def read(self, caller: Caller) -> HealthView:
        ledger, redis, workers = await asyncio.gather(
            self._ledger(), self._redis(), self._workers()
        )
        breakers, background = self._breakers(), self._background()
        parts = (ledger, redis, workers, breakers, background)
        return HealthView(
            status=_worst(part.status for part in parts),
            version=__version__,
            components=Components(
                ledger=ledger.status != "unhealthy",
                redis=None if self._streams is None else redis.status != "unhealthy",
                workers=workers.connected > 0,
                circuit_breaker=BreakerSummary(
                    state=breakers.status, open=tuple(breakers.services)
                ),
                background=background.status != "unhealthy",
            ),
            details=Details(
                ledger=ledger,
                redis=redis,
                workers=workers,
                circuit_breaker=breakers,
                background=background,
            ),
            timestamp=iso(self._dispatcher.clock.now()),
        )

    @needs()
    async def ready(self, caller: Caller) -> Readiness:
        return Readiness(ready=self._ready() and self._roster.beating)

    async def _ledger(self) -> Part:
        backend = self._dispatcher.backend
        found = await _probe(lambda: backend.tasks.due(now=0, limit=1))
        if found.status != "healthy":
            return found
        if not self._roster.beating:
            return Part(status="unhealthy", error="writes are refused")
        if backend.warnings:
            return Part(status="degraded", warnings=tuple(backend.warnings))
        return found

    async def _redis(self) -> Part:
        if self._streams is None:
            return Part(status="not_configured")
        return await _probe(self._streams.ping)

    async def _workers(self) -> WorkersPart:
        """Workers that read streams register nowhere: Redis knows their names."""
        by_transport = Counter(member.transport for member in self._roster.members())
        unknown = False
        if self._streams is not None:
            try:
                async with asyncio.timeout(PROBE_S):
                    by_transport.update(streams=await self._streams.count_consumers())
            except Exception:  # Redis is away, as its own probe reports
                unknown = True
        connected = by_transport.total()
        if connected:
            return WorkersPart(status="healthy", connected=connected, by_transport=+by_transport)
        if unknown:
            return WorkersPart(status="unknown", connected=0, by_transport={})
        return WorkersPart(
            status="unhealthy",
            connected=0,
            by_transport={},
            error="no worker is connected; start one with `onward worker`",
        )

    def _breakers(self) -> BreakersPart:
        readings = self._dispatcher.pressure.breakers.readings()
        states = {reading.state for reading in readings.values()}
        worst = Circuit.HALF_OPEN if Circuit.HALF_OPEN in states else Circuit.CLOSED
        return BreakersPart(
            status=(Circuit.OPEN if Circuit.OPEN in states else worst).value,
            services={
                queue: ServiceBreaker(
                    state=reading.state.value,
                    since=iso(reading.since),
                    until=iso(reading.until),
                    failures=reading.failures,
                    calls=reading.calls,
                )
                for queue, reading in readings.items()
            },
        )

    def _background(self) -> BackgroundPart:
        failing = self._dispatcher.troubles.in_trouble()
        return BackgroundPart(status="unhealthy" if failing else "healthy", failing=failing)


def _worst(states: Iterable[str]) -> Literal["healthy", "degraded", "unhealthy"]:
    """A breaker that is open, or streams of another ledger, hinder a part of the work."""
    found = set(states)
    if "unhealthy" in found:
        return "unhealthy"
    return "degraded" if found & {"degraded", Circuit.OPEN, Circuit.HALF_OPEN} else "healthy"


async def _probe(ping: Ping) -> Part:
    try:
        async with asyncio.timeout(PROBE_S):
            await ping()
    except Conflict as error:
        return Part(status="degraded", error=str(error))
    except OnwardError as error:
        return Part(status="unhealthy", error=str(error))
    except Exception as error:
        return Part(status="unhealthy", error=type(error).__name__)
    return Part(status="healthy")
