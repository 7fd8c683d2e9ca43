"""What a handler did for one session is not given to another that thinks of the same key."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agents.test_figures import ledger
from tests.running_app import App, SocketWorker
from tests.support import wait_until

DAY_MS = 24 * 3_600_000


@pytest.fixture(params=["sqlite", "redis"])
def app_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return ledger(request.param)


async def submit(app: App, session: str | None) -> dict[str, Any]:
    body = {"type": "charge", "idempotency_key": "k", "backoff_ms": [0]}
    whose = {} if session is None else {"session_id": session}
    answer = await app.post("/api/v2/tasks", {**body, **whose})
    assert answer.status_code == 202, answer.text
    task: dict[str, Any] = answer.json()
    return task


async def charge(app: App, worker: SocketWorker, task: str) -> Any:
    """Begin and, if it is ours to do, finish; returns what was begun or done before."""
    frame = await worker.task()
    assert frame["taskId"] == task
    path = f"/api/v2/tasks/{task}/effects/charge"
    begun = (await app.post(path, {"fence": frame["fence"]})).json()
    if begun == {"state": "begun"}:
        said = {"fence": frame["fence"], "value": f"receipt of {task}"}
        assert (await app.http.put(path, json=said)).status_code == 200
    return begun


@pytest.mark.contract("S2-9")
async def test_an_effect_is_the_sessions_own_also_under_anothers_key(app: App) -> None:
    tasks = [await submit(app, session) for session in ("ada", "eve", None)]
    assert {task["idempotency_key"] for task in tasks} == {"k"}
    worker = await app.worker(group=None, services=["charge"])
    for task in tasks:
        assert await charge(app, worker, task["id"]) == {"state": "begun"}, task["session_id"]
        await worker.answer(task["id"], "done")


@pytest.mark.contract("S2-9")
async def test_a_worker_is_given_another_key_for_each_session(app: App) -> None:
    tasks = [await submit(app, session) for session in ("ada", "eve", None)]
    worker = await app.worker(group=None, services=["charge"], concurrency=3)
    keys = {(await worker.task())["key"] for _ in tasks}
    assert len(keys) == 3
    assert "k" in keys


@pytest.mark.contract("S1-8")
async def test_a_sessions_effect_is_remembered_over_a_retry(app: App) -> None:
    task = await submit(app, "ada")
    worker = await app.worker(group=None, services=["charge"])
    assert await charge(app, worker, task["id"]) == {"state": "begun"}
    await worker.answer(task["id"], error="after the charge")
    again = await charge(app, worker, task["id"])
    assert again == {"state": "done", "value": f"receipt of {task['id']}"}


async def test_a_sessions_effect_is_forgotten_with_its_key(app: App) -> None:
    task = await submit(app, "ada")
    worker = await app.worker(group=None, services=["charge"])
    await charge(app, worker, task["id"])
    await worker.answer(task["id"], "done")
    await app.settled()
    store, effects = app.onward.backend.tasks, app.onward.backend.effects
    (row,) = await store.get([task["id"]])
    assert row is not None
    now = app.clock.now()

    async def purged() -> bool:  # not before everybody has read its events
        return await store.purge([task["id"]], now=now) == 1

    await wait_until(purged)
    await store.purge([], now=now + 2 * DAY_MS)
    assert await effects.begin(row, "charge", now=now) is None
