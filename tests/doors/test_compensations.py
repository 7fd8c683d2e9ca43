"""A canceled task that had begun is undone by the service that its own service names (S2-11)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.running_app import App, running_app
from tests.servers import fresh_url
from tests.support import wait_until

pytestmark = pytest.mark.contract("S2-11")

CHARGE = {"name": "charge", "task_types": ["charge"], "compensate": "refund"}


async def compensations(app: App) -> list[dict[str, Any]]:
    found = await app.get("/api/v2/tasks?type=refund")
    return list(found.json()["items"])


async def canceled(app: App, **body: Any) -> str:
    """Begun by a worker, then canceled; the worker stops."""
    worker = await app.worker(group=None, services=["charge"])
    task = await app.submit(type="charge", payload={"sum": 3}, **body)
    assert (await worker.task())["taskId"] == task
    await app.post(f"/api/v2/tasks/{task}/cancel", {})
    await worker.answer(task, error="stopped")
    await worker.close()
    await wait_until(
        lambda: app.get(f"/api/v2/tasks/{task}"),
        holds=lambda found: found.json()["state"] == "canceled",
    )
    return task


@pytest.mark.parametrize("kind", ["sqlite", "valkey"])
async def test_what_was_begun_and_canceled_is_undone_by_a_task(tmp_path: Path, kind: str) -> None:
    ledger = "sqlite://" if kind == "sqlite" else fresh_url("valkey")
    async with running_app(ledger=ledger, archive="") as app:
        assert (await app.post("/api/v2/services", CHARGE)).json()["compensate"] == "refund"
        task = await canceled(app, priority="high", session_id="s1")
        (undo,) = await wait_until(lambda: compensations(app))
        assert undo["payload"] == {"task_id": task, "task_type": "charge", "payload": {"sum": 3}}
        assert (undo["queue"], undo["priority"]) == ("refund", "high")
        worker = await app.worker(group=None, services=["refund"])
        await worker.answer((await worker.task())["taskId"], "done")
        # A cancel that is read again, as after a crash, is no second one.
        projector = app.onward._undoing._tail._projector
        events = (await app.onward.backend.tasks.events(after="0", limit=100, task=task)).items
        await projector.project(events)
        assert len(await compensations(app)) == 1


async def test_what_no_worker_had_begun_is_not_undone(app: App) -> None:
    await app.post("/api/v2/services", CHARGE)
    waiting = await app.submit(type="charge")
    await app.post(f"/api/v2/tasks/{waiting}/cancel", {})
    begun = await canceled(app)
    (undo,) = await wait_until(lambda: compensations(app))
    assert undo["payload"]["task_id"] == begun


async def test_a_worker_may_declare_what_undoes_its_service(app: App) -> None:
    body = {"name": "charge", "task_types": ["charge"], "compensate": "refund"}
    await app.post("/api/v2/services?by=worker", body)
    await app.post("/api/v2/services", {"name": "charge", "task_types": ["charge"]})
    (service,) = (await app.get("/api/v2/services")).json()["items"]
    assert service["compensate"] is None, "an operator replaces it"
    await app.post("/api/v2/services?by=worker", body)
    (service,) = (await app.get("/api/v2/services")).json()["items"]
    assert service["compensate"] == "refund"


async def test_a_task_that_fails_is_not_compensated(app: App) -> None:
    await app.post("/api/v2/services", CHARGE)
    worker = await app.worker(group=None, services=["charge"])
    failing = await app.submit(type="charge")
    await worker.task()
    await worker.answer(failing, error="no", status=400)
    await worker.close()
    begun = await canceled(app)
    (undo,) = await wait_until(lambda: compensations(app))
    assert undo["payload"]["task_id"] == begun
