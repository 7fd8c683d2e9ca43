"""The last hours in a few steps, for charts: the minutes of all servers, added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

from onward.core.clock import Clock
from onward.core.measures import TIMES_MS
from onward.core.task import Instant
from onward.native.caller import SEES_ALL, Caller, needs
from onward.native.minutes import ENDED, MINUTE_MS, Minute, Minutes, Served
from onward.wire.series import (
    HistogramView,
    SeriesPoint,
    SeriesQuery,
    SeriesView,
    ServiceSeries,
)

MOST_STEPS = 72  # a chart has no more points
STEPS_MS = tuple(MINUTE_MS * count for count in (1, 2, 5, 10, 15, 20, 30, 60))


class Series:
    def __init__(self, minutes: Minutes, clock: Clock) -> None:
        self._minutes = minutes
        self._clock = clock

    @needs(*SEES_ALL)
    async def read(self, caller: Caller, query: SeriesQuery) -> SeriesView:
        """What was done in the last hours, by step and by service."""
        now = self._clock.now()
        return _view(await self._minutes.read(now), query, now)


class _Sum:
    """Some minutes of some services, added up."""

    def __init__(self) -> None:
        self.counted = False
        self.submitted = 0
        self.ended = [0, 0, 0, 0]
        self.retried = 0
        self.waited: Counter[int] = Counter()
        self.ran: Counter[int] = Counter()

    def add(self, served: Served) -> None:
        self.ended = [one + other for one, other in zip(self.ended, served.ended, strict=True)]
        self.retried += served.retried
        self.waited.update(served.waited)
        self.ran.update(served.ran)

    @property
    def totals(self) -> dict[str, int]:
        names = [state.value for state in ENDED]
        return {**dict(zip(names, self.ended, strict=True)), "retried": self.retried}


def _view(minutes: Sequence[Minute], query: SeriesQuery, now: Instant) -> SeriesView:
    step = next((ms for ms in STEPS_MS if query.range_ms / ms <= MOST_STEPS), STEPS_MS[-1])
    first = (now - query.range_ms) // step * step + step
    starts = range(first, now + 1, step)
    steps = [_Sum() for _ in starts]
    depths: list[dict[Instant, tuple[int, int]]] = [{} for _ in starts]
    services: dict[str, _Sum] = {}
    ended: dict[str, Counter[int]] = {}
    every = _Sum()
    within = [one for one in minutes if first <= one.at <= now]
    for minute in within:
        place = (minute.at - first) // step
        into = steps[place]
        into.counted = True
        for one in (into, every):
            one.submitted += minute.submitted
        for name, served in minute.services.items():
            services.setdefault(name, _Sum()).add(served)
            ended.setdefault(name, Counter())[place] += sum(served.ended)
            if query.service in (None, name):
                into.add(served)
                every.add(served)
        # Servers write the same depths, at moments that differ a little: the largest counts.
        seen, known = _depth(minute, query.queue), depths[place].get(minute.at, (0, 0))
        depths[place][minute.at] = (max(known[0], seen[0]), max(known[1], seen[1]))
    whole = query.service is None
    return SeriesView(
        since=min((one.at for one in within), default=now),
        until=now,
        step_ms=step,
        points=tuple(
            _point(at, one, depth, whole=whole)
            for at, one, depth in zip(starts, steps, depths, strict=True)
        ),
        totals={**every.totals, **({"submitted": every.submitted} if whole else {})},
        wait=_histogram(every.waited),
        run=_histogram(every.ran),
        services=tuple(
            _service(name, services[name], [ended[name][place] for place in range(len(steps))])
            for name in sorted(services, key=lambda one: (-sum(services[one].ended), one))
        ),
    )


def _depth(minute: Minute, queue: str | None) -> tuple[int, int]:
    if queue is not None:
        return minute.depths.get(queue, (0, 0))
    pairs = minute.depths.values()
    return sum(queued for queued, _ in pairs), sum(running for _, running in pairs)


def _point(
    at: Instant, one: _Sum, depths: Mapping[Instant, tuple[int, int]], *, whole: bool
) -> SeriesPoint:
    if not one.counted:
        return SeriesPoint(at=at)
    queued, running = depths[max(depths)]
    return SeriesPoint(
        at=at,
        submitted=one.submitted if whole else None,
        **one.totals,
        queued=queued,
        running=running,
        wait_p50=percentile(one.waited, 0.5),
        wait_p95=percentile(one.waited, 0.95),
        run_p50=percentile(one.ran, 0.5),
        run_p95=percentile(one.ran, 0.95),
    )


def _service(name: str, one: _Sum, ended: Sequence[int]) -> ServiceSeries:
    succeeded, failed, dead, _ = one.ended
    over = succeeded + failed + dead
    return ServiceSeries(
        name=name,
        succeeded=succeeded,
        failed=failed + dead,
        retried=one.retried,
        failure_share=(failed + dead) / over if over else None,
        run_p50=percentile(one.ran, 0.5),
        run_p95=percentile(one.ran, 0.95),
        wait_p95=percentile(one.waited, 0.95),
        ended=tuple(ended),
    )


def _histogram(buckets: Mapping[int, int]) -> HistogramView:
    counts = tuple(buckets.get(place, 0) for place in range(len(TIMES_MS) + 1))
    return HistogramView(bounds_ms=TIMES_MS, counts=counts)


def percentile(buckets: Mapping[int, int], share: float) -> int | None:
    """As if the values of a bucket lay evenly in it; one above the last bound is that bound."""
    wanted = share * sum(buckets.values())
    if not wanted:
        return None
    places = sorted(buckets)
    for place, reached in zip(places, accumulate(buckets[one] for one in places), strict=True):
        if reached >= wanted and place < len(TIMES_MS):
            low = TIMES_MS[place - 1] if place else 0
            left_over = (reached - wanted) / buckets[place]
            return round(low + (TIMES_MS[place] - low) * (1 - left_over))
    return TIMES_MS[-1]
