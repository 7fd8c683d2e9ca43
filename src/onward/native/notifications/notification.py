"""Which events of a session's task make a notification, and how it reads (S2-6).

The id of a notification follows from its event: the same event gives the same notification again.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from onward.core.contract import TaskStore
from onward.core.task import Event, Task, TaskId
from onward.native.views import PRIORITY_WORDS, approval_text, failure_text, named, success_text
from onward.wire.notifications import Notification, NotificationType
from onward.wire.times import iso

ASKED = "approval.requested"
TYPES: Mapping[str, NotificationType] = {
    "task.succeeded": "task_completed",
    "task.failed": "task_failed",
    "task.timeout": "task_timeout",
    ASKED: "approval_requested",
}
ALL_TYPES = tuple(TYPES.values())
_ACTIONS: Mapping[NotificationType, str] = {
    "task_completed": "retrieve_result",
    "task_failed": "review_error",
    "task_timeout": "check_status",
    "approval_requested": "await_approval",  # a person's, and never this session's own
}
_LATE = (
    "Your {type} is taking longer than expected. The task is still running. I'll notify you when it"
    " completes, or you can check status with: 'Show task status for {id}'"
)


def notification_of(task: Task, event: Event) -> Notification:
    """`task` is the event's, or the run in which it asks a person."""
    kind = TYPES[event.type]
    return Notification(
        notification_id=_id(event),
        type=kind,
        task_id=task.id,
        task_type=task.type,
        message=_message(kind, task, event),
        action=_ACTIONS[kind],
        timestamp=iso(event.at),
        priority=PRIORITY_WORDS[task.priority],
    )


def late_text(task: Task) -> str:
    return _LATE.format(type=named(task.type), id=task.id)


class Subjects(NamedTuple):
    """The tasks that events are about."""

    tasks: Mapping[TaskId, Task]
    asking: Mapping[TaskId, Task]  # runs, by the child that is a question to a person

    def of(self, event: Event) -> Task | None:
        """A question is its run's: it is the run's session that is notified."""
        run = self.asking.get(event.task) if event.type == ASKED else None
        return run or self.tasks.get(event.task)


async def subjects_of(store: TaskStore, events: Sequence[Event]) -> Subjects:
    tasks = await _look(store, [event.task for event in events])
    asked = {event.task for event in events if event.type == ASKED and event.task in tasks}
    parents = {child: tasks[child].parent for child in asked}
    runs = await _look(store, [run for run in parents.values() if run is not None])
    return Subjects(tasks, {child: runs[run] for child, run in parents.items() if run in runs})


async def _look(store: TaskStore, ids: Sequence[TaskId]) -> dict[TaskId, Task]:
    found = await store.look(list(dict.fromkeys(ids))) if ids else ()
    return {task.id: task for task in found if task is not None}


def _message(kind: NotificationType, task: Task, event: Event) -> str:
    if kind == "task_completed":
        return success_text(task.type)
    if kind == "task_timeout":
        return late_text(task)
    data: Any = msgspec.json.decode(event.data or "{}")
    if kind == "approval_requested":
        return approval_text(task.type, str(data.get("reason") or ""))
    return failure_text(task.type, str(data.get("error", {}).get("message", "")))


def _id(event: Event) -> str:
    """Begins with the instant, so that ids sort by time; a hash of the event's key follows."""
    which = f"{event.task}:{event.generation}:{event.n}".encode()
    made = bytearray(event.at.to_bytes(6, "big") + hashlib.sha256(which).digest()[:10])
    made[6] = 0x70 | made[6] & 0x0F
    made[8] = 0x80 | made[8] & 0x3F
    return f"notif-{uuid.UUID(bytes=bytes(made))}"
