"""What an operator reads of the agents' tasks: figures for /metrics, and a log line each (S2-10).

Taken from the event log by the one server that writes the notifications, so that a task is counted
once, however many servers there are. A scrape renders what is in memory and reads nothing. No label
is a word that a caller may choose: each session or type would be a series of its own, for ever.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec
import prometheus_client as prometheus
import structlog
from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from onward.core.contract import Query, TaskStore
from onward.core.phase import LIVE
from onward.core.task import FINAL_EVENTS, Event, Task, TaskId

log = structlog.get_logger("onward.agents")

DURATIONS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400)
BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # live tasks of one session
PAGE = 1_000
OFFERED = "onward:"  # prefix of a "worker" that is only a place on a stream: no worker has it yet

# What is counted, in the agents' words.
WORDS: Mapping[str, str] = {
    "task.created": "created",
    "task.claimed": "processing",
    "task.delivered": "processing",
    "task.retrying": "retried",
    "task.succeeded": "completed",
    "task.failed": "failed",
    "task.canceled": "canceled",
    "task.timeout": "timeout",
    "task.dlq": "dead",
    "task.replayed": "replayed",
}
_ENDED = {"task.succeeded": "completed", "task.failed": "failed"}


class Figures(Collector):
    def __init__(self) -> None:
        self._tasks = prometheus.Counter(
            "onward_agent_tasks", "What became of agents' tasks", ["event"], registry=None
        )
        self._durations = prometheus.Histogram(
            "onward_agent_task_duration_seconds",
            "From its last start to its end",
            ["status"],
            buckets=DURATIONS_S,
            registry=None,
        )
        # There from the start: a rate over a series that begins with its first event misses it.
        for word in WORDS.values():
            self._tasks.labels(word)
        for word in _ENDED.values():
            self._durations.labels(word)
        self._last: frozenset[tuple[TaskId, int]] = frozenset()
        self.live: LiveTaskGauge | None = None  # None: another server counts them

    def note(self, events: Sequence[Event], tasks: Mapping[TaskId, Task | None]) -> None:
        """A batch that comes again, because its cursor was not written, is not counted twice."""
        for event in events:
            task = tasks.get(event.task)
            if task is not None and is_agents(task) and (event.task, event.n) not in self._last:
                self._note(event, task)
        self._last = frozenset((event.task, event.n) for event in events)

    def _note(self, event: Event, task: Task) -> None:
        if self.live is not None and task.session is not None:
            self.live.note(event, task.session)
        data: Any = msgspec.json.decode(event.data) if event.data else {}
        if event.type == "task.claimed" and str(data.get("worker", "")).startswith(OFFERED):
            return
        self._tasks.labels(WORDS[event.type]).inc()
        status = _ENDED.get(event.type)
        if status is not None:
            self._durations.labels(status).observe(duration_ms(task, event) / 1000)
        _write_log(event, task, data)

    def collect(self) -> Iterable[Metric]:
        yield from self._tasks.collect()
        yield from self._durations.collect()
        if self.live is not None:
            yield from self.live.collect()


def is_agents(task: Task) -> bool:
    return task.session is not None or task.profile == "session"


def duration_ms(task: Task, event: Event) -> int:
    began = task.started_at if task.generation == event.generation else None
    return max(0, event.at - (began or task.created_at))


def _write_log(event: Event, task: Task, data: Mapping[str, Any]) -> None:
    """The log lines of the seed. Of an error its kind alone: its message may repeat a payload."""
    id = task.id
    match event.type:
        case "task.created":
            log.info("Task created", task_id=id, type=task.type, session=task.session)
        case "task.claimed" | "task.delivered":
            log.info("Task processing", task_id=id, service=data.get("worker"))
        case "task.succeeded":
            log.info("Task completed", task_id=id, duration=duration_ms(task, event))
        case "task.failed":
            error = data.get("error") or {}
            log.error("Task failed", task_id=id, error=error.get("kind", "Error"))
        case "task.timeout":
            elapsed = data.get("elapsed_ms", event.at - task.created_at)
            log.warning("Task timeout", task_id=id, elapsed=elapsed)
        case _:
            pass


class LiveTaskGauge:
    """Counts the live tasks of each session, and the sessions by how many live tasks they have.

    By the events from now on, and once from the ledger for the tasks that were there before.
    """

    def __init__(self) -> None:
        self._live: defaultdict[str, set[TaskId]] = defaultdict(set)
        self._spread: Counter[int] = Counter()  # sessions by their number of live tasks
        self._buckets = [0] * (len(BUCKETS) + 1)  # the same, as a histogram shows it
        self._tasks = self._most = 0
        self._ended: set[TaskId] | None = set()  # while the ledger is read; then None

    async def read(self, store: TaskStore) -> None:
        """Newest first, until as many are found as there are."""
        counts = await store.counts()
        left = sum(count for (_, _, state), count in counts.items() if state in LIVE)
        after: str | None = None
        while left > 0:
            page = await store.find(Query(states=LIVE, after=after, limit=PAGE))
            for task in page.items:
                # One that has ended since this page was read would be counted for ever.
                if task.session is not None and task.id not in (self._ended or ()):
                    self._enter(task.session, task.id)
            left -= len(page.items)
            after = page.next
            if after is None:
                break
        self._ended = None

    def note(self, event: Event, session: str) -> None:
        if event.type in ("task.created", "task.replayed"):
            if self._ended is not None:
                self._ended.discard(event.task)
            self._enter(session, event.task)
        elif event.type in FINAL_EVENTS:
            if self._ended is not None:
                self._ended.add(event.task)
            self._leave(session, event.task)

    def _enter(self, session: str, task: TaskId) -> None:
        live = self._live[session]
        if task not in live:
            live.add(task)
            self._moved(len(live) - 1, len(live))

    def _leave(self, session: str, task: TaskId) -> None:
        live = self._live.get(session)
        if live is not None and task in live:
            live.discard(task)
            self._moved(len(live) + 1, len(live))
            if not live:
                del self._live[session]

    def _moved(self, before: int, now: int) -> None:
        self._tasks += now - before
        for count, change in ((before, -1), (now, 1)):
            if count:
                self._spread[count] += change
                self._buckets[bisect_left(BUCKETS, count)] += change
        if not self._spread[before]:
            del self._spread[before]
            if before == self._most:
                self._most = now  # a session gains or loses one task at a time
        self._most = max(self._most, now)

    def collect(self) -> Iterable[Metric]:
        yield _gauge("onward_agent_tasks_active", "Live tasks of sessions", self._tasks)
        yield _gauge("onward_agent_sessions_active", "Sessions with live tasks", len(self._live))
        most = "Live tasks of the session that has the most"
        yield _gauge("onward_agent_busiest_session_tasks", most, self._most)
        spread = GaugeHistogramMetricFamily(
            "onward_agent_session_tasks", "Sessions with live tasks, by how many they have"
        )
        tops = [*(str(float(top)) for top in BUCKETS), "+Inf"]
        spread.add_metric([], list(zip(tops, accumulate(self._buckets), strict=True)), self._tasks)
        yield spread


def _gauge(name: str, text: str, value: float) -> Metric:
    gauge = GaugeMetricFamily(name, text)
    gauge.add_metric([], value)
    return gauge
