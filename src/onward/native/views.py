"""Tasks as callers see them, whichever door they come through."""

from __future__ import annotations

from typing import Any

import msgspec

from onward.core.phase import phase
from onward.core.task import Priority, Task
from onward.native.session_keys import as_given
from onward.wire.tasks import TaskView

PRIORITIES = {"high": Priority.HIGH, "normal": Priority.NORMAL, "low": Priority.LOW}
PRIORITY_WORDS = {priority: word for word, priority in PRIORITIES.items()}


def task_view(task: Task, *, brief: bool = False) -> TaskView:
    """`brief`: without payload and result, which may be megabytes that a list does not show."""
    path = f"/api/v2/tasks/{task.id}"
    progress = {} if task.progress is None else msgspec.json.decode(task.progress)
    return TaskView(
        id=task.id,
        type=task.type,
        queue=task.queue,
        state=task.shown,
        phase=phase(task),
        payload=None if brief else raw(task.payload),
        result=None if brief else raw(task.result),
        error=raw(task.error),
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
            **{verb: f"{path}/{verb}" for verb in ("events", "explain", "cancel", "retry")},
        },
    )


def raw(text: str | None) -> Any:
    return None if text is None else msgspec.Raw(text.encode())
