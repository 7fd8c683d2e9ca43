"""Which events of a session's task make a notification, and how it reads (S2-6).

The id of a notification follows from its event: the same event gives the same notification again.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from onward.core.task import Event, Task
from onward.native.views import PRIORITY_WORDS, failure_text, success_text
from onward.wire.notifications import Notification, NotificationType
from onward.wire.times import iso

TYPES: Mapping[str, NotificationType] = {
    "task.succeeded": "task_completed",
    "task.failed": "task_failed",
    "task.timeout": "task_timeout",
}
ALL_TYPES = tuple(TYPES.values())
_ACTIONS: Mapping[NotificationType, str] = {
    "task_completed": "retrieve_result",
    "task_failed": "review_error",
    "task_timeout": "check_status",
}
_LATE = (
    "Your {type} is taking longer than expected. The task is still running. I'll notify you when it"
    " completes, or you can check status with: 'Show task status for {id}'"
)


def notification_of(task: Task, event: Event) -> Notification:
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
    return _LATE.format(type=task.type, id=task.id)


def _message(kind: NotificationType, task: Task, event: Event) -> str:
    if kind == "task_completed":
        return success_text(task.type)
    if kind == "task_timeout":
        return late_text(task)
    data: Any = msgspec.json.decode(event.data or "{}")
    return failure_text(task.type, str(data.get("error", {}).get("message", "")))


def _id(event: Event) -> str:
    """Begins with the instant, so that ids sort by time; a hash of the event's key follows."""
    which = f"{event.task}:{event.generation}:{event.n}".encode()
    made = bytearray(event.at.to_bytes(6, "big") + hashlib.sha256(which).digest()[:10])
    made[6] = 0x70 | made[6] & 0x0F
    made[8] = 0x80 | made[8] & 0x3F
    return f"notif-{uuid.UUID(bytes=bytes(made))}"
