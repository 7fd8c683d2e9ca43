"""Operations: cancel, retry or delete all tasks that a filter matches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.native import operation_work
from onward.native.operation_work import QUEUE, OperationExecutor
from tests.doors.test_batches import hand_in, some
from tests.doors.test_keys import bearer, make_key
from tests.running_app import App
from tests.support import wait_until


async def operate(app: App, verb: str, *, status: int = 202, **body: Any) -> dict[str, Any]:
    response = await app.post(f"/api/v2/tasks/{verb}", body)
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


async def over(app: App, id: str) -> dict[str, Any]:
    async def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = (await app.get(f"/api/v2/operations/{id}")).json()
        return found if found["finished_at"] else None

    found: dict[str, Any] | None = await wait_until(ended)
    assert found is not None
    return found


async def states(app: App, **query: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    items = (await app.get("/api/v2/tasks", params={"limit": 1_000, **query})).json()["items"]
    for task in items:
        if not task["queue"].startswith("onward:"):
            found[task["state"]] = found.get(task["state"], 0) + 1
    return found


async def failed(app: App, count: int) -> list[str]:
    """So many dead tasks."""
    worker = await app.worker(services=["report"])
    ids = [await app.submit("report") for _ in range(count)]
    for id in ids:
        await worker.answer((await worker.task())["taskId"], error=id, errorType="InvalidInput")
    await worker.close()
    await wait_until(lambda: _dead(app, count))
    return ids


async def _dead(app: App, count: int) -> bool:
    return (await states(app)).get("dead") == count


@pytest.mark.every_ledger
@pytest.mark.contract("B-3")
async def test_all_that_match_are_canceled_and_no_others(app: App) -> None:
    await hand_in(app, some(1_300))
    other = await app.submit("other")
    later = await app.submit("report", delay_ms=5_000)
    dry = await operate(
        app, "cancel", status=200, dry_run=True, filter={"type": "report", "state": "queued"}
    )
    assert (dry["matched"], "id" in dry, "state" in dry) == (1_300, False, False)
    begun = await operate(app, "cancel", filter={"type": "report", "state": ["queued"]})
    assert (begun["action"], begun["matched"]) == ("cancel", 1_300)
    shown = await over(app, begun["id"])
    assert (shown["state"], shown["done"], shown["failed"]) == ("succeeded", 1_300, 0)
    assert (await states(app, type="report", state="canceled"))["canceled"] == 1_000
    assert (await app.task(other))["state"] == "queued"
    assert (await app.task(later))["state"] == "scheduled"
    waited = (await app.get(f"/api/v2/operations/{begun['id']}", params={"wait_ms": 10})).json()
    assert waited == shown
    listed = (await app.get("/api/v2/operations")).json()["items"]
    assert [each["id"] for each in listed] == [begun["id"]]


@pytest.mark.every_ledger
@pytest.mark.contract("B-3")
async def test_what_failed_is_retried_and_what_cannot_be_counts_as_failed(app: App) -> None:
    ids = await failed(app, 3)
    queued = await app.submit("report")
    begun = await operate(app, "retry", filter={"type": "report"})
    shown = await over(app, begun["id"])
    assert (shown["matched"], shown["done"], shown["failed"]) == (4, 3, 1)
    (refused,) = shown["refused"]
    assert refused == {"id": queued, "reason": "a task that is queued cannot be retried"}
    assert {(await app.task(id))["generation"] for id in ids} == {2}


@pytest.mark.every_ledger
@pytest.mark.contract("B-3")
async def test_what_is_over_is_deleted_and_what_lives_counts_as_failed(app: App) -> None:
    ids = await failed(app, 2)
    queued = await app.submit("report")
    begun = await operate(app, "delete", filter={"type": "report"})
    shown = await over(app, begun["id"])
    assert (shown["done"], shown["failed"]) == (2, 1)
    assert [(await app.get(f"/api/v2/tasks/{id}")).status_code for id in ids] == [404, 404]
    assert (await app.task(queued))["state"] == "queued"


@pytest.mark.every_ledger
@pytest.mark.contract("B-3")
async def test_tasks_that_are_named_are_acted_on_and_no_others(app: App) -> None:
    ids = [await app.submit("report") for _ in range(4)]
    named = [*ids[1:3], ids[1], "no-such-task"]
    dry = await operate(app, "cancel", status=200, dry_run=True, ids=named)
    assert dry["matched"] == 2
    begun = await operate(app, "cancel", ids=named, rate=1_000)
    assert ("filter" in begun, begun["rate"]) == (False, 1_000)
    shown = await over(app, begun["id"])
    assert (shown["matched"], shown["done"], shown["failed"]) == (2, 2, 0)
    assert [(await app.task(id))["state"] for id in ids] == [
        *("queued", "canceled", "canceled", "queued")
    ]


@pytest.mark.contract("K-5", "B-3")
async def test_a_key_that_may_only_submit_cannot_name_anothers_task(app: App) -> None:
    admin = (await make_key(app, "admin", "admin"))["token"]
    ann, bob = [(await make_key(app, name, "submit", by=admin))["token"] for name in ("ann", "bob")]
    ids = []
    for token in (ann, bob):
        made = await app.post("/api/v2/tasks", {"type": "report"}, headers=bearer(token))
        ids.append(made.json()["id"])
    begun = await app.post("/api/v2/tasks/cancel", {"ids": ids}, headers=bearer(bob))
    assert begun.json()["matched"] == 1
    named = await app.post("/api/v2/tasks/cancel", {"ids": ids[:1]}, headers=bearer(bob))
    assert named.json()["matched"] == 0


@pytest.mark.contract("B-3")
async def test_the_matched_set_is_fixed_at_the_call(app: App) -> None:
    await app.submit("report")
    begun = await operate(app, "cancel", filter={"type": "report"})
    late = await app.submit("report")
    assert (await over(app, begun["id"]))["done"] == 1
    assert (await app.task(late))["state"] == "queued"


@pytest.mark.contract("B-3")
async def test_tasks_are_chosen_by_when_they_were_made_and_by_tags(app: App) -> None:
    ids = []
    for n in range(3):
        ids.append(await app.submit("report", tags=["a", f"t{n}"]))
        await app.advance(10)
    at = (await app.task(ids[1]))["created_at"]
    for filter, matched in (
        ({"created_after": at}, 2),
        ({"created_before": at}, 1),
        ({"created_after": at, "created_before": at + 10}, 1),
        ({"finished_after": at}, 0),
        ({"not_tag": "t0"}, 2),
        ({"not_tag": ["t0", "t1"], "not_type": "other"}, 1),
        ({"not_type": "report"}, 0),
        ({"not_queue": "report"}, 0),
        ({"not_session": "ann", "not_batch": "b", "not_partition": "p"}, 3),
        ({"all": True}, 3),
        ({"q": ids[2]}, 1),
    ):
        dry = await operate(app, "cancel", status=200, dry_run=True, filter=filter)
        assert dry["matched"] == matched, filter


@pytest.mark.contract("B-3")
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"filter": {}},
        {"filter": {"state": []}},
        {"filter": {"colour": "red"}},
        {"filter": {"state": "gone"}},
        {"filter": {"all": True}, "more": 1},
        {"ids": []},
        {"ids": ["a"], "filter": {"all": True}},
    ],
)
async def test_an_empty_filter_or_an_unknown_field_is_refused(app: App, body: Any) -> None:
    for verb in ("cancel", "retry", "delete"):
        assert (await app.post(f"/api/v2/tasks/{verb}", body)).status_code == 422


@pytest.mark.contract("B-3")
async def test_nothing_that_matches_is_over_at_once(app: App) -> None:
    begun = await operate(app, "cancel", filter={"type": "none"})
    shown = await over(app, begun["id"])
    assert (shown["state"], shown["matched"], shown["done"]) == ("succeeded", 0, 0)


@pytest.mark.contract("B-3")
async def test_an_operation_that_is_stopped_goes_no_further(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation_work, "PART", 10)
    await hand_in(app, some(40))
    begun = await operate(app, "cancel", filter={"type": "report"}, rate=4)
    await wait_until(lambda: _seen(app, begun["id"]))
    stopped = await app.post(f"/api/v2/operations/{begun['id']}/cancel", None)
    assert stopped.status_code == 200
    shown = await over(app, begun["id"])
    assert (shown["state"], shown["matched"]) == ("canceled", 40)
    assert 0 < shown["done"] < 40
    assert (await states(app))["queued"] == 40 - shown["done"]
    again = await app.post(f"/api/v2/operations/{begun['id']}/cancel", None)
    assert again.status_code == 409


async def _seen(app: App, id: str) -> bool:
    return bool((await app.get(f"/api/v2/operations/{id}")).json()["done"])


@pytest.mark.contract("B-3")
async def test_one_that_was_cut_off_goes_on_where_it_was(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker goes away in the middle of a part, which is done again by the next attempt."""
    monkeypatch.setattr(operation_work, "PART", 10)
    await hand_in(app, some(35))
    real, cut = OperationExecutor._cancel, asyncio.Event()

    async def dies(self: OperationExecutor, part: Any, again: bool) -> Any:
        if len(part) < 10 and not cut.is_set():
            cut.set()
            await real(self, part[:3], again)
            raise asyncio.CancelledError  # as a server that stops does it: the task is handed back
        return await real(self, part, again)

    monkeypatch.setattr(OperationExecutor, "_cancel", dies)
    runner = app.onward._operations._executor
    assert isinstance(runner, OperationExecutor)
    runner._actions["cancel"] = dies.__get__(runner)
    begun = await operate(app, "cancel", filter={"type": "report"})
    shown = await over(app, begun["id"])
    assert cut.is_set()
    assert (shown["done"], shown["failed"]) == (35, 0)
    assert await states(app) == {"canceled": 35}


@pytest.mark.contract("B-3")
async def test_a_server_that_stops_hands_it_back_between_two_parts(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation_work, "PART", 10)
    await hand_in(app, some(40))
    begun = await operate(app, "cancel", filter={"type": "report"}, rate=8)
    await wait_until(lambda: _seen(app, begun["id"]))
    app.onward._operations.stop_claiming()
    app.onward._operating.drain()
    path = f"/api/v2/operations/{begun['id']}"
    shown = await wait_until(
        lambda: app.get(path), holds=lambda found: found.json()["state"] == "queued"
    )
    assert 0 < shown.json()["done"] < 40
    app.onward._operating._draining = False
    app.onward._operations.claim_again()
    assert (await over(app, begun["id"]))["done"] == 40


@pytest.mark.contract("B-3")
async def test_the_servers_own_tasks_are_never_meant(app: App) -> None:
    found = await hand_in(app, some(1), name="b")
    begun = await operate(app, "cancel", filter={"all": True})
    assert begun["matched"] == 1
    await over(app, begun["id"])
    batch = (await app.get(f"/api/v2/batches/{found['batch']}")).json()
    assert batch["states"] == {"canceled": 1}
    refused = await app.post("/api/v2/tasks", {"type": "x", "queue": QUEUE})
    assert refused.status_code == 422


@pytest.mark.contract("K-4", "K-5", "B-3")
async def test_a_key_that_may_only_submit_cancels_its_own(app: App) -> None:
    admin = (await make_key(app, "admin", "admin"))["token"]
    tokens = {
        name: (await make_key(app, name, *scopes, by=admin))["token"]
        for name, scopes in {"ann": ["submit"], "bob": ["submit", "read"]}.items()
    }
    for token in tokens.values():
        await app.post(
            "/api/v2/tasks/batch", {"tasks": some(2), "batch": {"name": "b"}}, headers=bearer(token)
        )
    body = {"filter": {"type": "report"}}
    begun = await app.post("/api/v2/tasks/cancel", body, headers=bearer(tokens["bob"]))
    assert begun.json()["matched"] == 2
    path = f"/api/v2/operations/{begun.json()['id']}"
    assert (await app.get(path, headers=bearer(tokens["ann"]))).status_code == 404
    assert (await app.get(path, headers=bearer(tokens["bob"]))).status_code == 200
    seen = (await app.get("/api/v2/operations", headers=bearer(tokens["ann"]))).json()["items"]
    assert seen == []
    for verb in ("retry", "delete"):
        refused = await app.post(f"/api/v2/tasks/{verb}", body, headers=bearer(tokens["bob"]))
        assert refused.status_code == 403
    audit = (await app.get("/api/v2/audit", headers=bearer(admin))).json()["items"]
    (entry,) = [each for each in audit if each["action"] == "operation.start"]
    assert (entry["by"], entry["detail"]["matched"]) == ("bob", 2)


@pytest.mark.contract("K-5", "B-2")
async def test_another_keys_batch_is_not_there(app: App) -> None:
    admin = (await make_key(app, "admin", "admin"))["token"]
    ann, bob = [(await make_key(app, name, "submit", by=admin))["token"] for name in ("ann", "bob")]
    body = {"tasks": some(1), "batch": {"name": "b", "open": True}}
    made = (await app.post("/api/v2/tasks/batch", body, headers=bearer(ann))).json()
    path = f"/api/v2/batches/{made['batch']}"
    assert (await app.get(path, headers=bearer(bob))).status_code == 404
    assert (await app.get(path, headers=bearer(ann))).json()["total"] == 1
    join = {"tasks": some(1), "batch": {"id": made["batch"]}}
    refused = await app.post("/api/v2/tasks/batch", join, headers=bearer(bob))
    assert refused.status_code == 404


@pytest.mark.contract("B-3")
async def test_a_stop_takes_effect_between_two_parts_of_a_slow_pace(app: App) -> None:
    await hand_in(app, some(3))
    begun = await operate(app, "cancel", filter={"type": "report"}, rate=0.001)

    async def one_is_done() -> bool:
        shown = (await app.get(f"/api/v2/operations/{begun['id']}")).json()
        return bool(shown["done"] == 1)

    await wait_until(one_is_done)
    assert (await app.post(f"/api/v2/operations/{begun['id']}/cancel", None)).status_code == 200
    shown = await over(app, begun["id"])
    assert (shown["state"], shown["done"]) == ("canceled", 1)
