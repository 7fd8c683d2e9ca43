"""By whatever way a key hands in what must be approved: another key decides (K-6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.doors.test_keys import make_key
from tests.doors.test_owners import Keys
from tests.running_app import App
from tests.support import wait_until

BY = "both"
Way = Callable[[App, Keys], Awaitable[None]]


@pytest.fixture
async def keys(app: App) -> Keys:
    """`both` may do everything but decide what is its own; so may `other`."""
    root = (await make_key(app, "root", "admin"))["token"]
    tokens = {"root": root}
    for name in (BY, "other"):
        made = await make_key(app, name, "submit", "operate", "approve", "work", by=root)
        tokens[name] = made["token"]
    found = Keys(app, tokens)
    guarded = {"name": "pay", "task_types": ["pay"], "requires_approval": True}
    for service in (guarded, {"name": "free", "task_types": ["free"]}):
        await sent(app, found, "POST", "/api/v2/services", service)
    return found


async def sent(app: App, keys: Keys, method: str, path: str, body: Any = None) -> Any:
    response = await app.http.request(method, path, json=body, headers=keys[BY])
    assert response.status_code < 300, response.text
    return response.json() if response.content else None


async def a_task(app: App, keys: Keys) -> None:
    await sent(app, keys, "POST", "/api/v2/tasks", {"type": "pay", "payload": {"n": 1}})


async def another_type_on_its_queue(app: App, keys: Keys) -> None:
    await sent(app, keys, "POST", "/api/v2/tasks", {"type": "free", "queue": "pay", "payload": {}})


async def a_schedule(app: App, keys: Keys) -> None:
    timed = {"name": "s", "type": "pay", "payload": {}, "every_ms": 60_000}
    await sent(app, keys, "POST", "/api/v2/schedules", timed)
    await sent(app, keys, "POST", "/api/v2/schedules/s/trigger")


async def a_schedule_that_is_due(app: App, keys: Keys) -> None:
    timed = {"name": "s", "type": "pay", "payload": {}, "every_ms": 60_000}
    await sent(app, keys, "POST", "/api/v2/schedules", timed)
    app.clock.advance(61_000)
    await app.onward.schedules.scheduler.turn()


async def another_keys_schedule_replaced(app: App, keys: Keys) -> None:
    timed = {"name": "s", "type": "pay", "payload": {"to": "them"}, "every_ms": 60_000}
    theirs = await app.post("/api/v2/schedules", timed, headers=keys["other"])
    assert theirs.status_code == 201
    await sent(app, keys, "PUT", "/api/v2/schedules/s", {**timed, "payload": {"to": "us"}})
    await sent(app, keys, "POST", "/api/v2/schedules/s/trigger")


async def a_batch(app: App, keys: Keys) -> None:
    body = {"tasks": [{"type": "pay", "payload": {}}], "batch": {}}
    await sent(app, keys, "POST", "/api/v2/tasks/batch", body)


async def the_end_of_a_batch(app: App, keys: Keys) -> None:
    after = {"type": "pay", "payload": {}}
    body: dict[str, Any] = {"tasks": [], "batch": {"on_complete": after}}
    await sent(app, keys, "POST", "/api/v2/tasks/batch", body)


async def a_flow(app: App, keys: Keys) -> None:
    nodes = {"a": {"kind": "executor", "service": "pay"}}
    made = {"name": "f", "definition": {"start": "a", "nodes": nodes, "edges": []}}
    await sent(app, keys, "POST", "/api/v2/flows", made)
    await sent(app, keys, "POST", "/api/v2/runs", {"flow": "f"})


async def a_tool(app: App, keys: Keys) -> None:
    path = "/api/v2/tools/pay_task_tool?session_id=s"
    await sent(app, keys, "POST", path, {"parameters": {}})


async def a_replay_of_its_own(app: App, keys: Keys) -> None:
    id = (await sent(app, keys, "POST", "/api/v2/tasks", {"type": "pay", "payload": {}}))["id"]
    await sent(app, keys, "POST", f"/api/v2/tasks/{id}/cancel")
    await sent(app, keys, "POST", f"/api/v2/tasks/{id}/retry", {"payload": {"n": 2}})


async def an_operation_that_retries_its_own(app: App, keys: Keys) -> None:
    id = (await sent(app, keys, "POST", "/api/v2/tasks", {"type": "pay", "payload": {}}))["id"]
    await sent(app, keys, "POST", f"/api/v2/tasks/{id}/cancel")
    await sent(app, keys, "POST", "/api/v2/tasks/retry", {"filter": {"type": "pay"}})


async def a_guard_that_came_later(app: App, keys: Keys) -> None:
    id = (await sent(app, keys, "POST", "/api/v2/tasks", {"type": "free", "payload": {}}))["id"]
    await sent(app, keys, "POST", f"/api/v2/tasks/{id}/cancel")
    guarded = {"name": "free", "task_types": ["free"], "requires_approval": True}
    await sent(app, keys, "POST", "/api/v2/services", guarded)
    await sent(app, keys, "POST", f"/api/v2/tasks/{id}/retry")


WAYS = [
    a_task,
    another_type_on_its_queue,
    a_schedule,
    a_schedule_that_is_due,
    another_keys_schedule_replaced,
    a_batch,
    the_end_of_a_batch,
    a_flow,
    a_tool,
    a_replay_of_its_own,
    an_operation_that_retries_its_own,
    a_guard_that_came_later,
]


@pytest.mark.contract("K-6")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_no_way_to_hand_it_in_lets_its_own_key_decide(app: App, keys: Keys, way: Way) -> None:
    await way(app, keys)

    async def asked() -> list[Any]:
        found = await app.get("/api/v2/approvals?status=open", headers=keys["other"])
        items: list[Any] = found.json()["items"]
        return items

    (approval,) = await wait_until(asked)
    for id in (approval["id"], approval["id"].rpartition(".")[0]):
        for verb, body in (("approve", {"payload": {"n": 3}}), ("approve", {}), ("reject", {})):
            path = f"/api/v2/approvals/{id}/{verb}"
            refused = await app.post(path, body, headers=keys[BY])
            assert (refused.status_code, refused.json()["code"]) == (403, "own_approval"), path
    path = f"/api/v2/approvals/{approval['id']}/approve"
    decided = await app.post(path, {"by": "somebody"}, headers=keys["other"])
    assert (decided.status_code, decided.json()["by"]) == (200, "other"), decided.text


@pytest.mark.contract("K-6", "N-4")
@pytest.mark.parametrize("name", ["a", "approval", "approve", "approved", "a.approval", "__onward"])
async def test_a_signal_is_no_approval(app: App, keys: Keys, name: str) -> None:
    nodes = {"a": {"kind": "approval"}, "b": {"kind": "executor", "service": "free"}}
    definition = {"start": "a", "nodes": nodes, "edges": [{"from": "a", "to": "b"}]}
    await sent(app, keys, "POST", "/api/v2/flows", {"name": "f", "definition": definition})
    run = (await sent(app, keys, "POST", "/api/v2/runs", {"flow": "f"}))["id"]

    async def asked() -> list[Any]:
        found = await app.get("/api/v2/approvals?status=open", headers=keys["other"])
        items: list[Any] = found.json()["items"]
        return items

    await wait_until(asked)
    for value in (True, "approved", {"status": "approved"}):
        signal = {"name": name, "value": value}
        await app.post(f"/api/v2/runs/{run}/signal", signal, headers=keys[BY])
    await app.settled()
    assert len(await asked()) == 1
    assert (await sent(app, keys, "GET", "/api/v2/tasks?type=free"))["items"] == []
