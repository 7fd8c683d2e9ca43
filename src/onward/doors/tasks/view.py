"""A task, the queues and the counts as readers of this door's keys find them in Redis (S3-14).

The names and words are those of the door; a value that is no text is JSON, none is an empty text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onward.core.task import FINAL, Instant, Json, Lane, State, Task, encode
from onward.doors.tasks.shapes import TaskDetail
from onward.doors.tasks.submission import SUMMARIZE

FIELDS = (
    "task_id", "state", "content", "retry_count", "max_retries", "last_error", "error_type",
    "retry_after", "created_at", "updated_at", "completed_at", "result", "error_history",
)  # fmt: skip
PRIVATE = ("content", "result", "last_error", "error_type", "error_history")  # sealed if others are

PENDING, SCHEDULED, DEAD = "tasks:pending", "tasks:scheduled", "dlq:tasks"
DEPTHS, BY_STATE = "metrics:queue:depths", "metrics:tasks:by_state"


def fields_of(task: Task, detail: TaskDetail) -> dict[str, str]:
    """`detail` is the task as this door's endpoints show it."""
    fields = {name: _text(getattr(detail, name)) for name in FIELDS}
    # Work of other types has no text to show: what it was given stands in its place.
    fields["content"] = fields["content"] or _text(msgspec.Raw(task.payload.encode()))
    return fields


def life_ms(task: Task, now: Instant) -> int | None:
    """How long the ledger still has it; None: until something happens to it."""
    return None if task.state not in FINAL or task.due_at is None else task.due_at - now


def place_of(task: Task) -> tuple[str, Instant]:
    """Where its id stands, and since when; an empty name: nowhere."""
    match task.shown:
        case State.QUEUED:
            return list_of(task.queue, task.lane), task.queued_at or task.created_at
        case State.SCHEDULED:
            return SCHEDULED, task.created_at
        case State.DEAD:
            return DEAD, task.finished_at or task.created_at
        case _:
            return "", 0


def list_of(queue: str, lane: Lane) -> str:
    return f"{PENDING}:{lane}" if queue == SUMMARIZE else f"{PENDING}:{lane}:{queue}"


def due_s(task: Task) -> float:
    """The score in the sorted set: a Unix timestamp."""
    return (task.run_at or task.due_at or task.created_at) / 1000


def flat(fields: Mapping[str, object]) -> Sequence[str]:
    return [str(part) for pair in fields.items() for part in pair]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, msgspec.Raw):
        text: Json = bytes(value).decode()
        if text.startswith('"'):
            return str(msgspec.json.decode(text))
        return "" if text == "null" else text
    return value if isinstance(value, str) else encode(value)
