"""A task as the server shows it. Instants are epoch milliseconds."""

from __future__ import annotations

from typing import Any

import msgspec

from onward.core import contract
from onward.core.phase import phase
from onward.core.task import Priority, Task
from onward.native.session_keys import as_given
from onward.wire.base import Page, PriorityWord
from onward.wire.tasks import TaskView

PRIORITIES: dict[PriorityWord, Priority] = {
    "high": Priority.HIGH,
    "normal": Priority.NORMAL,
    "low": Priority.LOW,
}
PRIORITY_WORDS = {priority: word for word, priority in PRIORITIES.items()}


def task_view(task: Task, *, brief: bool = False) -> TaskView:
    """`brief`: without payload and result, for a list in which only the rows are looked at."""
    path = f"/api/v2/tasks/{task.id}"
    progress = {} if task.progress is None else msgspec.json.decode(task.progress)
    return TaskView(
        id=task.id,
        type=task.type,
        queue=task.queue,
        state=task.shown.value,
        phase=phase(task),
        payload=None if brief else msgspec.Raw(task.payload.encode()),
        result=None if brief else _raw(task.result),
        error=_raw(task.error),
        attempt=task.attempt,
        generation=task.generation,
        created_at=task.created_at,
        started_at=None if task.offered else task.started_at,
        finished_at=task.finished_at,
        progress=progress.get("progress"),
        progress_message=progress.get("message"),
        priority=PRIORITY_WORDS[task.priority],
        worker=task.worker,
        run_at=task.run_at,
        failures=task.failures,
        retries=task.retries,
        session_id=task.session,
        parent_id=task.parent,
        idempotency_key=as_given(task.key, task.session),
        links={
            "self": path,
            "events": f"{path}/events",
            "explain": f"{path}/explain",
            "cancel": f"{path}/cancel",
            "retry": f"{path}/retry",
        },
    )


def task_page(page: contract.Page[Task], *, brief: bool = False) -> Page[TaskView]:
    items = tuple(task_view(task, brief=brief) for task in page.items)
    return Page(items=items, next=page.next)


def _raw(text: str | None) -> Any:
    return None if text is None else msgspec.Raw(text.encode())
