"""One story at each door, on each ledger: what a door promises does not depend on the store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.running_app import App
from tests.support import wait_until

pytestmark = pytest.mark.every_ledger

FLOW = {
    "start": "work",
    "nodes": {
        "work": {"kind": "executor", "service": "double", "post": {"output_key": "doubled"}},
        "ask": {"kind": "approval"},
        "again": {
            "kind": "executor",
            "service": "double",
            "prep": {"input_key": "$shared.doubled"},
            "post": {"output_key": "result"},
        },
    },
    "edges": [
        {"from": "work", "action": "default", "to": "ask"},
        {"from": "ask", "action": "approved", "to": "again"},
    ],
}


async def over(app: App, id: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        task = await app.task(id)
        return task if task["finished_at"] is not None else None

    return await wait_until(look)


async def test_the_dispatcher_waits_and_polls(app: App) -> None:
    worker = await app.worker()
    asked = asyncio.create_task(app.post("/api/openai", {"data": {"n": 1}}))
    await worker.answer((await worker.task())["taskId"], {"answer": 42})
    assert (await asked).json()["result"] == {"answer": 42}

    accepted = (await app.post("/api/openai", {"data": {"n": 2}, "async": True})).json()
    await worker.answer((await worker.task())["taskId"], error="no luck")
    path = f"/api/task/{accepted['taskId']}"

    async def failed() -> bool:
        return bool((await app.get(path)).json()["status"] == "failed")

    await wait_until(failed)
    assert (await app.get(path)).json()["error"] == "no luck"


async def test_the_tasks_door_retries_and_buries(app: App) -> None:
    worker = await app.worker(services=["summarize"])
    sent = await app.post("/api/v1/tasks/summarize/", {"content": "text"})
    path = f"/api/v1/tasks/{sent.json()['task_id']}"
    refused = {"error": "bad input", "errorType": "InvalidInput"}
    await worker.answer((await worker.task())["taskId"], **refused)

    async def state() -> str:
        return str((await app.get(path)).json()["state"])

    async def is_dead() -> bool:
        return await state() == "DLQ"

    await wait_until(is_dead)
    assert (await app.get("/api/v1/queues/status")).json()["queues"]["dlq"] == 1
    assert (await app.post(f"{path}/retry", {})).json()["state"] == "PENDING"
    await worker.answer((await worker.task())["taskId"], {"summary": "short"})

    async def is_done() -> bool:
        return await state() == "COMPLETED"

    await wait_until(is_done)
    assert (await app.get(path)).json()["result"] == {"summary": "short"}


async def test_a_task_is_delayed_deduplicated_canceled_and_told(app: App) -> None:
    worker = await app.worker(services=["noop"], concurrency=2)
    later = await app.submit("noop", delay_ms=60_000, idempotency_key="once")
    assert await app.submit("noop", delay_ms=60_000, idempotency_key="once") == later
    assert (await app.task(later))["state"] == "scheduled"
    await app.advance(60_001)
    await worker.answer((await worker.task())["taskId"], "done")
    assert (await over(app, later))["result"] == "done"
    types = [event["type"] for event in await app.events(later)]
    assert types == ["task.created", "task.queued", "task.claimed", "task.succeeded"]

    stopped = await app.submit("noop")
    await worker.task()
    assert (await app.post(f"/api/v2/tasks/{stopped}/cancel", {})).status_code == 200
    assert (await worker.receive())["type"] == "cancel"
    await worker.answer(stopped, error="stopped")
    assert (await over(app, stopped))["state"] == "canceled"


async def test_a_flow_waits_for_approval_and_goes_on(app: App) -> None:
    worker = await app.worker(services=["double"])
    flow = (await app.post("/flows", {"name": "twice"})).json()["id"]
    published = await app.post("/flows/version", {"flow_id": flow, "definition": FLOW})
    assert published.status_code == 200, published.text
    run = (await app.post("/tasks", {"flow_id": flow, "params": {"n": 1}})).json()["id"]
    await worker.answer((await worker.task())["taskId"], 2)

    async def asked() -> Any:
        return (await app.get("/api/v2/approvals?status=open")).json()["items"]

    (approval,) = await wait_until(asked)
    await app.post(f"/api/v2/approvals/{approval['id']}/approve", {})
    call = await worker.task()
    assert call["payload"]["input"] == 2
    await worker.answer(call["taskId"], 4)

    async def finished() -> Any:
        found = (await app.get(f"/tasks/get?id={run}")).json()
        return found if found["status"] == "completed" else None

    assert '"result": 4' in (await wait_until(finished))["shared_json"].replace('":4', '": 4')


async def test_a_session_is_notified_of_its_own_tasks_alone(app: App) -> None:
    worker = await app.worker(services=["report"])
    mine = await app.submit("report", session_id="s1")
    await worker.answer((await worker.task())["taskId"], "ready")
    await over(app, mine)

    async def notices() -> Any:
        return (await app.get("/api/v2/sessions/s1/notifications")).json()["items"]

    (notice,) = await wait_until(notices)
    assert notice["type"] == "task_completed"
    assert (await app.get(f"/api/v2/sessions/s2/tasks/{mine}")).status_code == 404
    assert [
        task["id"] for task in (await app.get("/api/v2/sessions/s1/tasks")).json()["items"]
    ] == [mine]


async def test_a_schedule_hands_in_what_is_due(app: App) -> None:
    body = {"name": "often", "type": "noop", "payload": {"n": 1}, "every_ms": 60_000}
    assert (await app.http.put("/api/v2/schedules/often", json=body)).status_code in (200, 201)
    app.clock.advance(60_001)

    async def handed_in() -> Any:
        return (await app.get("/api/v2/tasks?type=noop")).json()["items"]

    (task,) = await wait_until(handed_in)
    assert task["payload"] == {"n": 1}


SUBMITTED: tuple[dict[str, Any], ...] = (
    {"type": "held", "payload": {"ä": [1, None]}, "timeout_ms": 5_000, "tags": ["b", "a"]},
    {"type": "nobody", "priority": "high", "max_retries": 2, "backoff_ms": [10]},
    {"type": "nobody", "delay_ms": 60_000, "partition": "p"},
    {"type": "nobody", "approval": {"expires_ms": 9_000, "default": "reject"}},
    {"type": "nobody", "idempotency_key": "k", "unique": {"key": "u"}, "session_id": "s"},
    {"type": "nobody", "debounce": {"key": "d", "ms": 60_000}},
)


@pytest.mark.parametrize("body", SUBMITTED, ids=lambda body: "-".join(body))
async def test_a_new_task_is_shown_as_it_is_in_the_ledger(app: App, body: dict[str, Any]) -> None:
    await app.worker(services=["held"])
    await wait_until(lambda: app.onward.dispatcher.slots.idle("held"))
    took = app.onward.ledger_calls.took["get"].counts
    before = sum(took)
    response = await app.post("/api/v2/tasks", body)
    assert response.status_code == 202, response.text
    assert sum(took) == before, "it is known without a look at the ledger"
    shown = response.json()
    assert shown["state"] == ("running" if body["type"] == "held" else shown["state"])
    assert shown == await app.task(shown["id"])


async def test_a_known_task_is_read(app: App) -> None:
    worker = await app.worker(services=["greet"])
    keyed = {"type": "greet", "idempotency_key": "once"}
    first = (await app.post("/api/v2/tasks", keyed)).json()
    await worker.answer((await worker.task())["taskId"], "hello")
    await over(app, first["id"])
    again = await app.post("/api/v2/tasks", keyed)
    assert (again.status_code, again.json()["result"]) == (200, "hello")


async def test_callers_whose_tasks_end_together_read_them_together(app: App) -> None:
    worker = await app.worker(services=["greet"], concurrency=30)
    path = "/api/v2/tasks?wait_ms=30000"
    bodies = [{"type": "greet", "payload": n} for n in range(30)]
    calls = [asyncio.create_task(app.post(path, body)) for body in bodies]
    frames = [await worker.task() for _ in calls]
    took = app.onward.ledger_calls.took["get"].counts
    before = sum(took)
    for frame in frames:
        await worker.answer(frame["taskId"], frame["payload"])
    answers = [(await call).json() for call in calls]
    assert [one["result"] for one in answers] == list(range(30))
    assert sum(took) - before < 15


async def test_dead_letters_are_replayed_by_a_filter(app: App) -> None:
    worker = await app.worker(services=["pay"], concurrency=3)
    ids = [await app.submit("pay", payload={"n": at}) for at in range(3)]
    for _ in ids:
        frame = await worker.task()
        await worker.answer(frame["taskId"], error="no such card", errorType="InvalidInput")
    for id in ids:
        assert (await over(app, id))["state"] == "dead"
    groups = (await app.get("/api/v2/dead-letters")).json()["items"]
    assert [group["count"] for group in groups] == [3]
    await app.post("/api/v2/dead-letters/replay", {"filter": {"type": "pay"}})
    for _ in ids:
        await worker.answer((await worker.task())["taskId"], "paid")
    for id in ids:
        task = await over(app, id)
        assert (task["state"], task["generation"]) == ("succeeded", 2)


@pytest.mark.contract("S0-3", "S3-2", "S4-3", "N-2")
async def test_a_name_with_a_nul_is_an_unknown_one(app: App) -> None:
    for path, body in (
        ("/api/task/a%00b", {"error": "Task not found"}),
        ("/api/v1/tasks/a%00b", {"detail": "Task not found"}),
        ("/tasks/get?id=a%00b", {"error": "no run 'a\\x00b'"}),
    ):
        reply = await app.get(path)
        assert (reply.status_code, reply.json()) == (404, body)
    for path in ("tasks", "runs", "schedules", "approvals", "queues", "services"):
        assert (await app.get(f"/api/v2/{path}/a%00b")).status_code == 404
    assert (await app.get("/api/v2/tasks?q=a%00b&type=a%00b")).json()["items"] == []
    for method, path in (
        ("POST", "queues/a%00b/pause"),
        ("DELETE", "services/a%00b"),
        ("DELETE", "log/readers/a%00b"),
        ("DELETE", "schedules/a%00b"),
    ):
        refused = await app.http.request(method, f"/api/v2/{path}")
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
