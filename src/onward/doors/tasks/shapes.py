"""The tasks door's shapes: a task in its words, with the history of its errors (S3-2).

Instants are ISO 8601 in UTC. The seed's fields come first, in its order; ours stand after them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onward.core.dispatch import Dispatcher
from onward.core.follow import history
from onward.core.phase import Phase, phase
from onward.core.policy import error_class, overrides_of
from onward.core.task import Event, Instant, Lane, State, Task, fault_of
from onward.doors.tasks.submission import SUMMARIZE
from onward.doors.vocabulary import TASKS
from onward.faults import Fault
from onward.native.views import progress_of, raw
from onward.wire.times import iso

# Which tasks this door shows: its own and native ones that belong to no session or flow.
SHOWN = frozenset({"tasks", "console", "streams"})

# In which stored states a task of each word can be: what the ledger is asked before phases are.
STORED: Mapping[str, frozenset[State]] = {
    "PENDING": frozenset({State.SCHEDULED, State.QUEUED, State.RUNNING}),
    "ACTIVE": frozenset({State.RUNNING, State.WAITING}),
    "COMPLETED": frozenset({State.SUCCEEDED}),
    "FAILED": frozenset({State.SCHEDULED, State.FAILED, State.CANCELED}),
    "DLQ": frozenset({State.DEAD}),
}

CANCELED = Fault(kind="Canceled", message="the task was canceled")
NAMELESS = "Error"  # of a worker that gave a status at most
BY_STATUS = {400: "InvalidInput", 401: "AuthError", 403: "PermissionDenied", 404: "NotFound"}
FAILURES = frozenset({"task.retrying", "task.failed"})
LOOK_BACK = 10_000  # events of a task that are searched for its errors, the latest ones
AT_ONCE = 32  # logs read at a time


class Accepted(msgspec.Struct, frozen=True):
    task_id: str
    state: str


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    error: str
    error_type: str
    attempt: int
    timestamp: str


class TaskDetail(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    state: str
    content: Any
    retry_count: int
    max_retries: int
    last_error: str | None
    error_type: str | None
    retry_after: str | None
    created_at: str
    updated_at: str
    completed_at: str | None
    result: Any
    error_history: Sequence[Failure]
    task_type: str
    queue: str
    phase: str
    payload: Any
    progress: float | None
    progress_message: str | None


class Requeued(msgspec.Struct, frozen=True):
    requeued: int
    task_ids: Sequence[str]


class QueueStatus(msgspec.Struct, frozen=True):
    queues: Mapping[str, int]
    states: Mapping[str, int]
    retry_ratio: float


# Counts are kept by stored state, and only a reading of each task would tell why it is scheduled.
# At this door nothing is scheduled unless it failed.
COUNTED = {
    State.SCHEDULED: "FAILED",
    State.QUEUED: "PENDING",
    State.RUNNING: "ACTIVE",
    State.WAITING: "ACTIVE",
    State.SUCCEEDED: "COMPLETED",
    State.FAILED: "FAILED",
    State.DEAD: "DLQ",
    State.CANCELED: "FAILED",
}


def totals(
    counts: Mapping[tuple[str, Lane, State], int],
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Of all queues together: how many wait where, and how many are in which state."""
    depths, states = Counter[str](), Counter[str]()
    for (_, lane, state), count in counts.items():
        states[COUNTED[state]] += count
        depths[lane if state is State.QUEUED else state] += count
    queues = {
        "primary": depths[Lane.PRIMARY],
        "retry": depths[Lane.RETRY],
        "scheduled": depths[State.SCHEDULED],
        "dlq": depths[State.DEAD],
    }
    return queues, {name: states[name] for name in STORED}


def shown(task: Task) -> bool:
    return task.profile in SHOWN and task.session is None and task.parent is None


def word(task: Task) -> str:
    return TASKS[phase(task)]


class TaskDetails:
    """Tasks in this door's form. The log is read only for those that have failed."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._store = dispatcher.backend.tasks
        self._profiles = dispatcher.profiles

    async def of(self, tasks: Sequence[Task]) -> Sequence[TaskDetail]:
        found: list[TaskDetail] = []
        for at in range(0, len(tasks), AT_ONCE):
            found += await asyncio.gather(*[self.one(task) for task in tasks[at : at + AT_ONCE]])
        return found

    async def one(self, task: Task) -> TaskDetail:
        return self._detail(task, await self._history(task))

    async def _history(self, task: Task) -> Sequence[Failure]:
        """Its errors, oldest first, those before a retry by hand included."""
        if not task.failures and task.error is None and task.generation == 1:
            return []
        events = history(self._store, task.id, after=max(0, task.events - LOOK_BACK))
        return [_failure(event) async for event in events if event.type in FAILURES]

    def _detail(self, task: Task, history: Sequence[Failure]) -> TaskDetail:
        now_in = phase(task)
        fault = fault_of(task.error)
        if fault is None and now_in is Phase.CANCELED:
            fault = CANCELED
        budget = overrides_of(task.overrides).max_retries
        progress = progress_of(task)
        moments = (task.created_at, task.queued_at, task.started_at, task.finished_at)
        return TaskDetail(
            task_id=task.id,
            state=TASKS[now_in],
            content=_content(task.payload),
            retry_count=task.retries,
            max_retries=self._profiles[task.profile].max_retries if budget is None else budget,
            last_error=None if fault is None else fault.message,
            error_type=None if fault is None else _error_type(fault),
            retry_after=_iso(task.run_at if now_in is Phase.RETRY_WAIT else None),
            created_at=iso(task.created_at),
            updated_at=iso(max(at for at in moments if at is not None)),
            completed_at=_iso(task.finished_at if now_in is Phase.SUCCEEDED else None),
            result=raw(task.result),
            error_history=history,
            task_type=task.type,
            queue=task.queue,
            phase=now_in,
            # Of a text to summarize, `content` is all there is to show, and it may be long.
            payload=None if task.type == SUMMARIZE else raw(task.payload),
            progress=progress.progress,
            progress_message=progress.message,
        )


def _iso(at: Instant | None) -> str | None:
    return None if at is None else iso(at)


class _Content(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(b"null")


class _Failed(msgspec.Struct):
    error: Fault
    attempt: int = 0


_decode_content = msgspec.json.Decoder(_Content).decode
_decode_failure = msgspec.json.Decoder(_Failed).decode


def _content(payload: str) -> msgspec.Raw | None:
    if not payload.startswith("{"):
        return None
    return _decode_content(payload).content


def _failure(event: Event) -> Failure:
    failed = _decode_failure(event.data or "")
    return Failure(
        error=failed.error.message,
        error_type=_error_type(failed.error),
        attempt=failed.attempt,
        timestamp=iso(event.at),
    )


def _error_type(fault: Fault) -> str:
    """The worker's own name for it, or else the one that goes with its status."""
    if fault.kind != NAMELESS or fault.status is None:
        return fault.kind
    by_class = error_class(fault)
    return BY_STATUS.get(fault.status, by_class if by_class != "Default" else fault.kind)
