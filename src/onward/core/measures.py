"""What this process has done, for /metrics: how long tasks waited and ran, and how they ended.

A bucket is raised for each claim and for each move, in memory; nothing is read or written for it.
The first services have a series of their own, all later ones share one: callers name services.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from onward.core.contract import Move
from onward.core.task import RUNNING, Claimed, Instant, State

MOST_SERVICES = 100
OTHER = "_other"  # the label of all services, and of all queues, beyond the first hundred
TIMES_MS = (
    10, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000,
    3_600_000, 14_400_000,
)  # fmt: skip
CALLS_MS = (0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)


class Histogram:
    __slots__ = ("bounds_ms", "counts", "sum_ms")

    def __init__(self, bounds_ms: Sequence[float]) -> None:
        self.bounds_ms = bounds_ms
        self.counts = [0] * (len(bounds_ms) + 1)
        self.sum_ms: float = 0

    def observe(self, ms: float) -> None:
        self.counts[bisect_left(self.bounds_ms, ms)] += 1
        if ms > 0:  # the instants may be of two servers, whose times differ a little
            self.sum_ms += ms


class ServiceMeasures:
    __slots__ = ("endings", "ran", "retries", "waited")

    def __init__(self) -> None:
        self.waited = Histogram(TIMES_MS)  # from its place in the queue to its claim
        self.ran = Histogram(TIMES_MS)  # from its claim until the worker was done with it
        self.endings: Counter[State] = Counter()
        self.retries = 0


class Measures:
    def __init__(self) -> None:
        self._services: dict[str, ServiceMeasures] = {}
        self._others: ServiceMeasures | None = None

    def of(self, service: str) -> ServiceMeasures:
        return self._services.get(service) or self._named(service)

    def _named(self, service: str) -> ServiceMeasures:
        if len(self._services) < MOST_SERVICES:
            return self._services.setdefault(service, ServiceMeasures())
        self._others = self._others or ServiceMeasures()
        return self._others

    def by_service(self) -> Mapping[str, ServiceMeasures]:
        found = dict(sorted(self._services.items()))
        return found if self._others is None else {**found, OTHER: self._others}

    def claimed(self, tasks: Sequence[Claimed]) -> None:
        named, waited = "", None
        for task in tasks:
            if task.started_at is not None and task.queued_at is not None:
                if waited is None or task.type != named:  # one look for all of a kind
                    named, waited = task.type, self.of(task.type).waited
                waited.observe(task.started_at - task.queued_at)

    def moved(self, move: Move, now: Instant, *, over: bool) -> None:
        # What goes back to its old place was handed back, or its worker was lost: that is no run.
        ran = move.expect is RUNNING is not move.to and not move.front
        if not ran and not over:
            return
        service = self.of(move.service)
        if ran and move.started_at is not None:
            service.ran.observe(now - move.started_at)
        if over:
            service.endings[move.to] += 1
        elif "retries" in move.changes:
            service.retries += 1
