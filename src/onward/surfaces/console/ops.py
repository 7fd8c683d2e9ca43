"""/health, /ready and /metrics: is it well, does it take work, how much of everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from starlette.responses import Response

from onward import __version__
from onward.core.dispatch import Dispatcher
from onward.core.task import Lane, State
from onward.surfaces.route import answer
from onward.workers.roster import Roster

Counts = Mapping[tuple[str, Lane, State], int]


def build(dispatcher: Dispatcher, roster: Roster, ready: Callable[[], bool]) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/health")
    async def health() -> Response:
        ledger = await _ledger(dispatcher, roster)
        members = roster.members()
        well = ledger["status"] == "healthy"
        moment = datetime.fromtimestamp(dispatcher.clock.now() / 1000, UTC)
        body = {
            "status": "healthy" if well else "unhealthy",
            "version": __version__,
            "components": {
                "ledger": ledger,
                "redis": {"status": "not_configured"},
                "workers": {
                    "status": "healthy" if members else "none",
                    "connected": len(members),
                    "by_transport": Counter(member.transport for member in members),
                },
                "circuit_breaker": {"status": "not_configured"},
            },
            "timestamp": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        return answer(body, 200 if well else 503)

    @router.get("/ready")
    async def readiness() -> Response:
        takes_work = ready() and roster.beating
        return answer({"ready": takes_work}, 200 if takes_work else 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        registry = CollectorRegistry()
        registry.register(_Reading(dispatcher, roster, await dispatcher.backend.tasks.counts()))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router


async def _ledger(dispatcher: Dispatcher, roster: Roster) -> dict[str, Any]:
    try:
        await dispatcher.backend.tasks.due(now=0, limit=1)
    except Exception as error:
        return {"status": "unhealthy", "error": type(error).__name__}
    if not roster.beating:
        return {"status": "unhealthy", "error": "writes are refused"}
    return {"status": "healthy"}


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
        for (queue, lane, state), count in sorted(self._counts.items()):
            tasks.add_metric([queue, lane, state], count)
        workers = GaugeMetricFamily("onward_workers", "Connected workers", labels=["transport"])
        transports = Counter(member.transport for member in self._roster.members())
        for transport, count in sorted(transports.items()):
            workers.add_metric([transport], count)
        waiting = GaugeMetricFamily("onward_waiters", "Callers waiting for a result")
        waiting.add_metric([], len(self._dispatcher.waiters))
        held = GaugeMetricFamily("onward_held", "Tasks in the hands of this server's workers")
        held.add_metric([], self._dispatcher.hands.busy())
        return [events, tasks, workers, waiting, held]
