"""What the tests of the tasks door share: submit a text, fail it, read it back."""

from __future__ import annotations

from typing import Any

from onward.core.task import Task
from onward.wire.times import iso
from tests.running_app import App, SocketWorker

SUMMARIZE = "/api/v1/tasks/summarize/"


async def submitted(app: App, content: str = "Long text", type_: str = "summarize") -> str:
    response = await app.post(f"/api/v1/tasks/{type_}/", {"content": content})
    assert response.status_code == 200, response.text
    task: str = response.json()["task_id"]
    return task


async def read(app: App, task: str) -> dict[str, Any]:
    response = await app.get(f"/api/v1/tasks/{task}")
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def listed(app: App, **query: Any) -> list[str]:
    response = await app.get("/api/v1/tasks/", params=query)
    assert response.status_code == 200, response.text
    return [task["task_id"] for task in response.json()]


async def fail(app: App, worker: SocketWorker, **error: Any) -> None:
    frame = await worker.task()
    await worker.answer(frame["taskId"], **({"error": "flaky", "status": 503} | error))
    await app.settled()


async def dead(app: App, worker: SocketWorker) -> str:
    task = await submitted(app)
    await fail(app, worker, error="no such model", status=404)
    return task


async def stored(app: App, task: str) -> Task:
    found = (await app.onward.backend.tasks.get([task]))[0]
    assert found is not None
    return found


async def summarizer(app: App) -> SocketWorker:
    return await app.worker(group=None, services=["summarize"])


def detail(app: App, task: str, **more: Any) -> dict[str, Any]:
    """A fresh task, and what is different about this one."""
    now = iso(app.clock.now())
    fresh = {
        "task_id": task, "state": "PENDING", "content": "Long text", "retry_count": 0,
        "max_retries": 3, "last_error": None, "error_type": None, "retry_after": None,
        "created_at": now, "updated_at": now, "completed_at": None, "result": None,
        "error_history": [], "task_type": "summarize", "queue": "summarize", "phase": "queued",
        "payload": None, "progress": None, "progress_message": None,
    }  # fmt: skip
    assert set(more) <= set(fresh)
    return {**fresh, **more}
