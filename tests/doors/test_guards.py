"""What guards a service holds for its queue, too, and no worker's declaration removes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from onward.services.catalog import KIND
from onward.services.privacy import MASK
from tests.running_app import App
from tests.runs.flow_app import call, chain

PAY = {"name": "pay", "task_types": ["pay"]}
SCHEMA = {"pay": {"type": "object", "properties": {"amount": {"type": "integer", "maximum": 10}}}}


async def declared(app: App, **more: Any) -> dict[str, Any]:
    answer = await app.post("/api/v2/services", {**PAY, **more})
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def service(app: App, name: str = "pay") -> dict[str, Any]:
    body: dict[str, Any] = (await app.get(f"/api/v2/services/{name}")).json()
    return body


async def phase(app: App, **body: Any) -> str:
    answer = await app.post("/api/v2/tasks", body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["phase"])


async def worker_declares(app: App, **more: Any) -> None:
    worker = await app.worker(group=None, services=["pay"], declare=[{**PAY, **more}])
    await worker.close()


@pytest.mark.contract("S1-11", "N-11")
async def test_another_type_on_a_guarded_queue_waits_for_approval(app: App) -> None:
    await declared(app, requires_approval=True)
    assert await phase(app, type="pay") == "waiting_approval"
    assert await phase(app, type="whatever", queue="pay") == "waiting_approval"
    assert await phase(app, type="whatever") == "queued"


@pytest.mark.contract("N-11")
async def test_a_queue_named_as_the_service_is_its_queue(app: App) -> None:
    more = {"name": "billing", "schema": SCHEMA, "requires_approval": True}
    await declared(app, **more)
    assert await phase(app, type="x", queue="billing", payload={}) == "waiting_approval"
    refused = await app.post(
        "/api/v2/tasks", {"type": "x", "queue": "billing", "payload": {"amount": 11}}
    )
    assert refused.status_code == 422
    await declared(app, **more, task_types=["pay", "refund"])
    refused = await app.post("/api/v2/tasks", {"type": "x", "queue": "billing", "payload": {}})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/type"
    assert "pay, refund" in refused.json()["hint"]


@pytest.mark.contract("N-11")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v2/tasks", {"type": "whatever"}),
        ("/api/v2/schedules", {"type": "whatever", "name": "s", "every_ms": 60_000}),
    ],
)
async def test_another_type_on_a_queue_must_fit_the_schema_of_the_queue(
    app: App, path: str, body: Mapping[str, Any]
) -> None:
    await declared(app, schema=SCHEMA)
    bad = await app.post(path, {**body, "queue": "pay", "payload": {"amount": 11}})
    assert bad.status_code == 422, bad.text
    assert "does not fit 'pay'" in bad.text
    good = await app.post(path, {**body, "queue": "pay", "payload": {"amount": 9}})
    assert good.status_code in (201, 202), good.text


@pytest.mark.contract("N-11")
async def test_the_strictest_of_both_services_holds(app: App) -> None:
    await declared(app, requires_approval=True, sensitive=["card"], max_retries=1)
    await declared(
        app, name="mail", task_types=["mail"], sensitive=["to"], timeout_ms=5, max_retries=7
    )
    body = {"type": "mail", "queue": "pay", "payload": {"card": "1", "to": "a@b", "n": 1}}
    task = (await app.post("/api/v2/tasks", body)).json()
    assert task["phase"] == "waiting_approval"
    seen = (await app.get(f"/api/v2/tasks/{task['id']}", params={"masked": "true"})).json()
    assert seen["payload"] == {"card": MASK, "to": MASK, "n": 1}
    (row,) = await app.onward.backend.tasks.get([task["id"]])
    assert row is not None
    assert row.attempt_ms == 5
    assert msgspec.json.decode(row.overrides or "")["max_retries"] == 1


@pytest.mark.contract("S2-9", "N-11")
async def test_what_the_queues_service_keeps_secret_is_masked_in_a_schedule(app: App) -> None:
    await declared(app, sensitive=["card"])
    body = {"name": "s", "type": "x", "queue": "pay", "every_ms": 60_000, "payload": {"card": "1"}}
    assert (await app.post("/api/v2/schedules", body)).status_code == 201
    shown = (await app.get("/api/v2/schedules/s", params={"masked": "true"})).json()
    assert shown["payload"] == {"card": MASK}
    again = await app.post("/api/v2/schedules", {**body, "name": "t", "payload": shown["payload"]})
    assert again.status_code == 422, "the mask is not what stood there"


@pytest.mark.contract("N-11")
async def test_a_mended_payload_is_held_to_the_queue_and_to_a_guard_that_came_later(
    app: App,
) -> None:
    worker = await app.worker(group=None, services=["pay"])
    task = await app.submit("x", queue="pay")
    await worker.task()
    await worker.answer(task, error="no", errorType="InvalidInput")
    await app.settled()
    await worker.close()
    await declared(app, schema=SCHEMA, requires_approval=True)
    path = f"/api/v2/tasks/{task}/retry"
    assert (await app.post(path, {"payload": {"amount": 11}})).status_code == 422
    again = await app.post(path, {"payload": {"amount": 9}})
    assert (again.status_code, again.json()["phase"]) == (200, "waiting_approval")


@pytest.mark.contract("S1-11")
async def test_a_dead_letter_is_not_replayed_past_a_guard_that_came_later(app: App) -> None:
    worker = await app.worker(group=None, services=["pay"])
    terms = {"expires_ms": 1_000, "default": "approve"}
    bodies: list[dict[str, Any]] = [{"type": "pay"}, {"type": "pay", "approval": terms}]
    tasks = [await app.submit(**body) for body in bodies]
    await app.advance(1_000)
    for _ in tasks:
        await worker.answer((await worker.task())["taskId"], error="no", errorType="InvalidInput")
    await app.settled()
    await worker.close()
    await declared(app, requires_approval=True)
    answer = await app.post("/api/v2/dead-letters/replay", {"ids": tasks})
    assert answer.json()["replayed"] == 2
    await app.advance(5_000)
    for task in tasks:
        shown = await app.task(task)
        assert shown["phase"] == "waiting_approval", "and it does not expire into a yes"


@pytest.mark.contract("S4-10", "S1-11")
async def test_a_flow_that_calls_a_guarded_service_by_its_name_waits(app: App) -> None:
    await declared(app, name="billing", requires_approval=True)
    flow = chain(("a", call("billing")))
    made = await app.post("/api/v2/flows", {"name": "f", "definition": flow})
    assert made.status_code in (200, 201), made.text
    run = (await app.post("/api/v2/runs", {"flow": "f"})).json()["id"]
    await app.settled()
    (asked,) = (await app.get("/api/v2/approvals")).json()["items"]
    assert asked["type"] == "billing", run


@pytest.mark.contract("S0-1", "N-11")
async def test_a_declared_group_is_guarded_at_the_dispatchers_door(app: App) -> None:
    schema = {"group:gpu": {"type": "object", "required": ["data"]}}
    more = {"requires_approval": True, "schema": schema}
    await declared(app, name="gpu", task_types=["group:gpu"], **more)
    refused = await app.post("/api/openai", {"messages": [], "group": "gpu", "async": True})
    assert refused.status_code == 400, refused.text
    taken = await app.post("/api/openai", {"data": 1, "group": "gpu", "async": True})
    assert taken.status_code == 200
    (asked,) = (await app.get("/api/v2/approvals")).json()["items"]
    assert asked["task_id"] == taken.json()["taskId"]


@pytest.mark.contract("N-11", "S1-11")
async def test_a_worker_cannot_remove_what_an_operator_declared(app: App) -> None:
    await declared(
        app, requires_approval=True, sensitive=["card"], schema=SCHEMA, timeout_ms=9, max_retries=2
    )
    loose = {"schema": {"pay": {}}, "sensitive": ["iban"], "timeout_ms": 99, "max_retries": 99}
    await worker_declares(app, **loose)
    found = await service(app)
    assert found["requires_approval"] is True
    assert found["sensitive"] == ["card", "iban"]
    assert (found["schema"], found["timeout_ms"], found["max_retries"]) == (SCHEMA, 9, 2)
    assert found["declared_by"] == ["operator", "worker"]
    assert await phase(app, type="pay", payload={}) == "waiting_approval"


@pytest.mark.contract("N-11")
async def test_a_worker_tightens_and_takes_back_what_was_its_own(app: App) -> None:
    await declared(app)
    await worker_declares(app, requires_approval=True, sensitive=["card"], timeout_ms=9)
    found = await service(app)
    assert (found["requires_approval"], found["sensitive"], found["timeout_ms"]) == (
        True,
        ["card"],
        9,
    )
    await worker_declares(app)
    found = await service(app)
    assert (found["requires_approval"], found["sensitive"], found["timeout_ms"]) == (
        False,
        [],
        None,
    )


@pytest.mark.contract("N-11")
async def test_an_operator_replaces_and_removes_whole(app: App) -> None:
    await worker_declares(app, requires_approval=True, schema=SCHEMA)
    assert (await service(app))["declared_by"] == ["worker"]
    assert (await declared(app))["declared_by"] == ["operator"]
    found = await service(app)
    assert (found["requires_approval"], found["schema"]) == (False, {})
    await worker_declares(app, requires_approval=True)
    assert (await app.http.delete("/api/v2/services/pay")).status_code == 204
    assert (await app.get("/api/v2/services/pay")).status_code == 404
    assert (await app.http.delete("/api/v2/services/pay")).status_code == 404


@pytest.mark.contract("N-11")
async def test_a_worker_that_declares_over_http_is_no_operator(app: App) -> None:
    await declared(app, requires_approval=True)
    answer = await app.post(
        "/api/v2/services", {**PAY, "sensitive": ["card"]}, params={"by": "worker"}
    )
    assert answer.status_code == 201
    assert (answer.json()["requires_approval"], answer.json()["sensitive"]) == (True, ["card"])


@pytest.mark.contract("N-11")
async def test_of_a_service_kept_by_an_older_release_the_guards_stay(app: App) -> None:
    """Nobody knows who declared it: its guards may be an operator's, its schema a worker's."""
    old = {
        **PAY,
        "requires_approval": True,
        "sensitive": ["card"],
        "schema": SCHEMA,
        "timeout_ms": 9,
    }
    body = msgspec.json.encode(old).decode()
    await app.onward.backend.documents.put(KIND, "pay", body, now=app.clock.now())
    await worker_declares(app, schema={"pay": {}}, timeout_ms=99)
    found = await service(app)
    assert (found["requires_approval"], found["sensitive"]) == (True, ["card"])
    assert (found["schema"], found["timeout_ms"]) == ({"pay": {}}, 99)
    await declared(app)
    assert (await service(app))["requires_approval"] is False
