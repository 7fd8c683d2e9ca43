"""The last quarter of an hour, for charts: rates, depths and durations in steps of five seconds.

Kept in memory, by each server for what went through it. A step costs one look at counts that are
kept anyway and, if anything happened, one short read of the log. Never an answer to anything but
"how does it look?".
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from onward.core.dispatch import Dispatcher
from onward.core.task import FINAL_EVENTS, Instant, Lane, State, Task
from onward.wire.live import Point

STEP_MS = 5_000
KEPT = 180  # steps: fifteen minutes
READ = 500  # events looked at in one step; what is beyond them is not sampled
SAMPLED = 32  # endings of which the durations are looked up
QUEUES, ENDINGS = 200, 64  # queues whose last run times are known, and how many of each
WINDOW = 12  # steps that a percentile is taken over: one of them alone has too few endings


_RATES = {
    "created": "task.created",
    "succeeded": "task.succeeded",
    "failed": "task.failed",
    "retried": "task.retrying",
    "canceled": "task.canceled",
}


class History:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._points: deque[Point] = deque(maxlen=KEPT)
        self._tally: Mapping[str, int] = {}
        self._sampled_at: Instant | None = None
        self._cursor = "$"
        self._durations: deque[Sequence[tuple[int, int]]] = deque(maxlen=WINDOW)  # (waited, ran)
        self._ran: OrderedDict[str, deque[int]] = OrderedDict()  # by queue, the latest last

    @property
    def last(self) -> Point | None:
        return self._points[-1] if self._points else None

    def columns(self) -> Mapping[str, tuple[float | None, ...]]:
        return {
            name: tuple(getattr(point, name) for point in self._points)
            for name in Point.__struct_fields__
        }

    def usual_ms(self, queue: str) -> int | None:
        """How long tasks of this queue run, by the last ones that went well; None: not known."""
        ran = self._ran.get(queue)
        return _at(sorted(ran), 0.5) if ran else None

    async def sample(self) -> None:
        now = self._dispatcher.clock.now()
        tally = dict(self._dispatcher.tally)
        before, self._tally = self._tally, tally
        seconds = (now - self._sampled_at) / 1000 if self._sampled_at is not None else 0
        self._sampled_at = now
        looks = tally != before or self._cursor == "$"  # the first look finds the log's end
        self._durations.append(await self._ended() if looks else ())
        self._points.append(
            Point(
                at=now,
                **_rates(before, tally, seconds),
                **await self._depths(),
                **_percentiles([pair for step in self._durations for pair in step]),
            )
        )

    async def _depths(self) -> Mapping[str, int]:
        depths = dict.fromkeys(("primary", "retry", "running", "scheduled", "waiting"), 0)
        for (_, lane, state), count in (await self._dispatcher.backend.tasks.counts()).items():
            if state is State.QUEUED:
                depths["retry" if lane is Lane.RETRY else "primary"] += count
            elif state.value in depths:
                depths[state.value] += count
        return depths

    async def _ended(self) -> Sequence[tuple[int, int]]:
        """How long some of those that ended in this step had waited and run."""
        store = self._dispatcher.backend.tasks
        page = await store.events(after=self._cursor, limit=READ)
        self._cursor = page.next or self._cursor
        if page.more:  # too much to follow: go on from the end
            self._cursor = (await store.events(after="$", limit=1)).next or self._cursor
        ended = [event.task for event in page.items if event.type in FINAL_EVENTS][-SAMPLED:]
        found = [task for task in await store.look(ended) if task is not None]
        for task in found:
            if task.state is State.SUCCEEDED and (pair := _durations(task)):
                self._note(task.queue, pair[1])
        return [pair for task in found if (pair := _durations(task))]

    def _note(self, queue: str, ran_ms: int) -> None:
        self._ran.setdefault(queue, deque(maxlen=ENDINGS)).append(ran_ms)
        self._ran.move_to_end(queue)
        if len(self._ran) > QUEUES:
            self._ran.popitem(last=False)


def _rates(
    before: Mapping[str, int], after: Mapping[str, int], seconds: float
) -> Mapping[str, Any]:
    if not seconds:
        return {}
    return {
        name: round((after.get(event, 0) - before.get(event, 0)) / seconds, 2)
        for name, event in _RATES.items()
    }


def _durations(task: Task) -> tuple[int, int] | None:
    if task.started_at is None or task.finished_at is None:
        return None
    ready = max(task.queued_at or task.created_at, task.run_at or 0)
    return max(0, task.started_at - ready), task.finished_at - task.started_at


def _percentiles(pairs: Sequence[tuple[int, int]]) -> Mapping[str, int]:
    if not pairs:
        return {}
    waited, ran = (sorted(column) for column in zip(*pairs, strict=True))
    return {"run_p50": _at(ran, 0.5), "run_p95": _at(ran, 0.95), "wait_p95": _at(waited, 0.95)}


def _at(ranked: Sequence[int], share: float) -> int:
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]
