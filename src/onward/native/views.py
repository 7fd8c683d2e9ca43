"""Tasks and their events as callers see them, whichever door they come through."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from onward.core import contract
from onward.core.phase import phase
from onward.core.task import Event, Json, Priority, State, Task, fault_of
from onward.native.session_keys import as_given
from onward.wire.base import Page, PriorityWord
from onward.wire.tasks import TaskEvent, TaskView, task_links

PRIORITIES: dict[PriorityWord, Priority] = {
    "high": Priority.HIGH,
    "normal": Priority.NORMAL,
    "low": Priority.LOW,
}
PRIORITY_WORDS = {priority: word for word, priority in PRIORITIES.items()}
REASON_LENGTH = 200  # characters of an error that fit into one line


class TaskProgress(NamedTuple):
    progress: float | None = None
    message: str | None = None


def task_view(task: Task, *, brief: bool = False) -> TaskView:
    """`brief`: without payload and result, which may be megabytes that a list does not show."""
    progress = progress_of(task)
    return TaskView(
        id=task.id,
        type=task.type,
        queue=task.queue,
        state=task.shown.value,
        phase=phase(task).value,
        payload=None if brief else raw(task.payload),
        result=None if brief else raw(task.result),
        error=raw(task.error),
        attempt=task.attempt,
        generation=task.generation,
        created_at=task.created_at,
        started_at=None if task.offered else task.started_at,
        finished_at=task.finished_at,
        progress=progress.progress,
        progress_message=progress.message,
        priority=PRIORITY_WORDS[task.priority],
        worker=task.worker,
        run_at=task.run_at,
        failures=task.failures,
        retries=task.retries,
        session_id=task.session,
        owner=task.owner,
        parent_id=task.parent,
        idempotency_key=as_given(task.key, task.session, task.owner),
        callback_url=task.callback_url,
        tags=tags_of(task),
        batch=task.batch,
        partition=task.partition or None,
        links=task_links(task.id),
    )


def task_page(page: contract.Page[Task], *, brief: bool = False) -> Page[TaskView]:
    items = tuple(task_view(task, brief=brief) for task in page.items)
    return Page(items=items, next=page.next)


def event_view(event: Event) -> TaskEvent:
    return TaskEvent(n=event.n, type=event.type, at=event.at, data=raw(event.data or "{}"))


def progress_of(task: Task) -> TaskProgress:
    """As it was reported last; of a task that succeeded, that it is complete."""
    if task.progress is None:
        return TaskProgress()
    found = msgspec.json.decode(task.progress)
    progress, message = found.get("progress"), found.get("message")
    if task.state is State.SUCCEEDED and progress is not None and progress < 1:
        return TaskProgress(1.0)  # the message was of what was left to do
    return TaskProgress(progress, message)


def tags_of(task: Task) -> tuple[str, ...]:
    return () if task.tags is None else _decode_tags(task.tags)


_decode_tags = msgspec.json.Decoder(tuple[str, ...]).decode


def ending_text(task: Task) -> str:
    """How a task ended, in one line for the person who asked for it."""
    if task.state is State.SUCCEEDED:
        return success_text(task.type)
    if task.state is State.CANCELED:
        return f"Your {named(task.type)} was canceled."
    fault = fault_of(task.error)
    return failure_text(task.type, "" if fault is None else fault.message)


def success_text(type_: str) -> str:
    return f"Your {named(type_)} is ready."


def failure_text(type_: str, message: str) -> str:
    reason = _cut(message)
    return f"Your {named(type_)} failed: {reason}" if reason else f"Your {named(type_)} failed."


def approval_text(type_: str, reason: str) -> str:
    waits = f"Your {named(type_)} waits for a person's approval"
    return f"{waits}: {_cut(reason)}" if reason.strip() else f"{waits}."


def named(type_: str) -> str:
    """What people call it: a run by the name of its flow."""
    return type_.removeprefix("flow:")


def _cut(text: str) -> str:
    line = text.strip()
    return line if len(line) <= REASON_LENGTH else f"{line[: REASON_LENGTH - 1]}…"


def raw(text: Json | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())
