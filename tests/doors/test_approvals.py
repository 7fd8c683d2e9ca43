"""Approvals over HTTP: listed, shown, decided once, by a person and by nothing else."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from onward.core.task import encode
from tests.running_app import App

ITEM = {
    "id", "task_id", "type", "queue", "payload", "status", "requested_at", "expires_at", "default",
    "reason", "by", "comment", "decided_at", "digest",
}  # fmt: skip
HOUR = 3_600_000


async def asked(app: App, **body: Any) -> dict[str, Any]:
    """A submission that needs approval, as the inbox shows it."""
    response = await app.post("/api/v2/tasks", {"type": "pay", "requires_approval": True, **body})
    assert response.status_code == 202, response.text
    item: dict[str, Any] = (await app.get(f"/api/v2/approvals/{response.json()['id']}.1")).json()
    assert set(item) == ITEM
    return item


async def listed(app: App, query: str = "") -> list[str]:
    page = (await app.get(f"/api/v2/approvals{query}")).json()
    assert set(page) == {"items", "next"}
    return [item["id"] for item in page["items"]]


async def task_of(app: App, item: dict[str, Any]) -> dict[str, Any]:
    task: dict[str, Any] = await app.task(item["task_id"])
    return task


async def events_of(app: App, item: dict[str, Any]) -> list[str]:
    page = (await app.get(f"/api/v2/tasks/{item['task_id']}/events")).json()
    return [event["type"] for event in page["items"]]


@pytest.mark.contract("K-4")
async def test_the_digest_of_a_masked_payload_gives_nothing_to_try_secrets_against(
    app: App,
) -> None:
    """Of what is short, all there can be is soon tried."""
    first = await asked(app, payload={"pin": 1234})
    second = await asked(app, payload={"pin": 1234})
    assert first["digest"] != second["digest"], "alike payloads are not to be seen as such"
    tried = {hashlib.sha256(encode({"pin": n}).encode()).hexdigest() for n in range(10_000)}
    assert first["digest"] not in tried
    again = (await app.get(f"/api/v2/approvals/{first['id']}")).json()
    assert again["digest"] == first["digest"]
    events = await app.events(first["task_id"])
    assert [event["data"] for event in events if event["type"] == "approval.requested"] == [
        {"digest": first["digest"]}
    ]


@pytest.mark.contract("N-5", "S1-11", "S1-9", "N-2")
async def test_an_open_approval_is_shown_and_approving_it_lets_the_task_run(app: App) -> None:
    worker = await app.worker(group=None, services=["pay"])
    item = await asked(app, payload={"sum": 5}, approval={"reason": "over the limit"})
    assert item["id"] == f"{item['task_id']}.1"
    assert (item["status"], item["payload"], item["reason"]) == (
        "open",
        {"sum": 5},
        "over the limit",
    )
    assert (item["requested_at"], item["expires_at"]) == (app.clock.now(), None)
    assert (item["default"], item["by"], len(item["digest"])) == ("reject", None, 64)
    assert (await app.get("/api/v2/approvals")).json() == {"items": [item], "next": None}
    assert worker.pending() == 0

    word = {"by": "ada", "comment": "fine", "digest": item["digest"]}
    done = await app.post(f"/api/v2/approvals/{item['id']}/approve", word)
    assert done.status_code == 200
    assert done.json() == {
        **item, "status": "approved", "by": "ada", "comment": "fine",
        "decided_at": app.clock.now(),
    }  # fmt: skip
    assert (await worker.task())["payload"] == {"sum": 5}
    await worker.answer(item["task_id"], "paid")
    await app.settled()
    assert (await task_of(app, item))["result"] == "paid"
    assert await events_of(app, item) == [
        "task.created", "approval.requested", "approval.approved", "task.claimed",
        "task.succeeded",
    ]  # fmt: skip
    assert await listed(app) == []
    assert await listed(app, "?status=approved") == [item["id"]]


@pytest.mark.contract("N-5", "S1-11", "S1-9")
async def test_a_rejected_task_has_failed_and_its_waiting_caller_gets_that(app: App) -> None:
    item = await asked(app)
    waiting = asyncio.ensure_future(app.get(f"/api/v2/tasks/{item['task_id']}?wait_ms=5000"))
    await app.settled()
    done = await app.post(f"/api/v2/approvals/{item['id']}/reject", {"by": "ada"})
    assert (done.status_code, done.json()["status"]) == (200, "rejected")
    task = (await waiting).json()
    assert (task["state"], task["error"]["kind"]) == ("failed", "Rejected")
    assert task["error"]["message"] == "rejected by ada"
    assert (await events_of(app, item))[-2:] == ["approval.rejected", "task.failed"]
    assert await listed(app, "?status=rejected") == [item["id"]]
    said = (await app.get(f"/api/v2/tasks/{item['task_id']}/explain")).json()
    assert said["reason"] == "rejected"
    assert said["sentence"] == "It was rejected by ada. It never ran."


@pytest.mark.contract("N-5")
@pytest.mark.parametrize("first", ["approve", "reject"])
async def test_what_is_decided_stays_decided(app: App, first: str) -> None:
    item = await asked(app)
    path = f"/api/v2/approvals/{item['id']}"
    assert (await app.post(f"{path}/{first}", None)).status_code == 200
    for verb in ("approve", "reject"):
        again = await app.post(f"{path}/{verb}", {"by": "bob"})
        assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert (await app.get(path)).json()["by"] is None


@pytest.mark.contract("N-5")
async def test_of_two_people_deciding_at_the_same_instant_one_wins(app: App) -> None:
    for verbs in (("approve", "reject"), ("reject", "approve"), ("approve", "approve")):
        item = await asked(app)
        answers = await asyncio.gather(
            *[
                app.post(f"/api/v2/approvals/{item['id']}/{verb}", {"by": f"person {n}"})
                for n, verb in enumerate(verbs)
            ]
        )
        assert sorted(answer.status_code for answer in answers) == [200, 409]
        (won,) = [answer.json() for answer in answers if answer.status_code == 200]
        kept = (await app.get(f"/api/v2/approvals/{item['id']}")).json()
        assert kept == won


@pytest.mark.contract("N-5", "S1-11")
async def test_a_payload_is_mended_while_it_is_approved(app: App) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}}
    service = {"name": "till", "task_types": ["pay"], "schema": {"pay": schema}}
    await app.post("/api/v2/services", service)
    worker = await app.worker(group=None, services=["pay"])
    item = await asked(app, payload={"sum": 500})
    path = f"/api/v2/approvals/{item['id']}/approve"
    bad = await app.post(path, {"payload": {"sum": "much"}})
    assert (bad.status_code, bad.json()["errors"][0]["pointer"]) == (422, "/payload/sum")
    done = await app.post(path, {"payload": {"sum": 50}})
    assert done.status_code == 200
    assert done.json()["payload"] == {"sum": 50}
    assert done.json()["digest"] != item["digest"]
    assert (await worker.task())["payload"] == {"sum": 50}
    no = await app.post(f"/api/v2/approvals/{item['id']}/reject", {"payload": {}})
    assert no.status_code == 422


@pytest.mark.contract("N-5")
async def test_a_word_about_another_payload_or_an_earlier_asking_is_refused(app: App) -> None:
    item = await asked(app, payload=1)
    path = f"/api/v2/approvals/{item['id']}"
    blind = await app.post(f"{path}/approve", {"digest": "0" * 64})
    assert (blind.status_code, blind.json()["code"]) == (409, "conflict")
    await app.post(f"{path}/reject", None)
    retried = await app.post(f"/api/v2/tasks/{item['task_id']}/retry", {"payload": 2})
    assert (retried.json()["state"], retried.json()["phase"]) == ("waiting", "waiting_approval")
    assert await listed(app) == [f"{item['task_id']}.2"]
    stale = await app.post(f"{path}/approve", None)
    assert (stale.status_code, stale.json()["code"]) == (409, "conflict")
    assert (await app.get(path)).status_code == 404
    current = await app.post(f"/api/v2/approvals/{item['task_id']}/approve", None)
    assert current.status_code == 200, "a task's own id means the present asking"


@pytest.mark.contract("N-2", "N-5")
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v2/approvals/none.1", 404),
        ("/api/v2/approvals/none", 404),
        ("/api/v2/approvals?status=maybe", 422),
        ("/api/v2/approvals?cursor=x", 422),
        (f"/api/v2/approvals?cursor={'9' * 30}", 422),
        ("/api/v2/approvals?limit=0", 422),
    ],
)
async def test_errors_are_problems(app: App, path: str, status: int) -> None:
    response = await app.get(path)
    assert (response.status_code, response.headers["content-type"]) == (
        status,
        "application/problem+json",
    )


@pytest.mark.contract("N-5")
async def test_a_task_that_needs_no_approval_has_none(app: App) -> None:
    task = (await app.post("/api/v2/tasks", {"type": "greet"})).json()
    for id in (task["id"], f"{task['id']}.1"):
        assert (await app.get(f"/api/v2/approvals/{id}")).status_code == 404
        for verb in ("approve", "reject"):
            response = await app.post(f"/api/v2/approvals/{id}/{verb}", None)
            assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert (await app.post("/api/v2/approvals/none.1/approve", None)).status_code == 404


@pytest.mark.contract("S1-11", "S1-9")
@pytest.mark.parametrize(("default", "state"), [("approve", "queued"), ("reject", "failed")])
async def test_when_nobody_decides_in_time_the_default_holds(
    app: App, default: str, state: str
) -> None:
    item = await asked(app, approval={"expires_ms": HOUR, "default": default})
    assert item["expires_at"] == app.clock.now() + HOUR
    await app.advance(HOUR - 1)
    assert (await task_of(app, item))["state"] == "waiting"
    await app.advance(1)
    assert (await task_of(app, item))["state"] == state
    shown = (await app.get(f"/api/v2/approvals/{item['id']}")).json()
    assert (shown["status"], shown["by"]) == ("expired", "expiry")
    said = (await app.get(f"/api/v2/tasks/{item['task_id']}/explain")).json()
    assert (said["reason"] == "rejected") == (default == "reject")
    assert await listed(app, "?status=expired") == [item["id"]]
    late = await app.post(f"/api/v2/approvals/{item['id']}/approve", None)
    assert late.status_code == 409


@pytest.mark.contract("S1-11")
async def test_a_word_after_the_time_is_too_late_even_if_no_sweep_has_come_by(app: App) -> None:
    item = await asked(app, approval={"expires_ms": HOUR})
    app.clock.advance(HOUR)
    late = await app.post(f"/api/v2/approvals/{item['id']}/approve", None)
    assert (late.status_code, late.json()["detail"]) == (409, "its time is over")


@pytest.mark.contract("S1-11", "N-11")
async def test_a_services_guard_is_neither_waved_away_nor_waited_out(app: App) -> None:
    service = {"name": "till", "task_types": ["pay"], "requires_approval": True}
    await app.post("/api/v2/services", service)
    worker = await app.worker(group=None, services=["pay"])
    waved = await app.post("/api/v2/tasks", {"type": "pay", "requires_approval": False})
    assert waved.json()["phase"] == "waiting_approval"
    out = await app.post(
        "/api/v2/tasks", {"type": "pay", "approval": {"expires_ms": 1, "default": "approve"}}
    )
    assert (out.status_code, out.json()["errors"][0]["pointer"]) == (422, "/approval/default")
    timed = await app.post("/api/v2/tasks", {"type": "pay", "approval": {"expires_ms": HOUR}})
    assert timed.status_code == 202
    await app.advance(2 * HOUR)
    assert worker.pending() == 0


@pytest.mark.contract("N-3")
@pytest.mark.parametrize(
    "body",
    [
        {"approval": {"default": "approve"}},
        {"approval": {"expires_ms": 0}},
        {"approval": {"default": "maybe", "expires_ms": 5}},
        {"approval": {"nonsense": 1}},
        {"approval": {}, "requires_approval": False},
    ],
)
async def test_terms_that_make_no_sense_are_refused(app: App, body: dict[str, Any]) -> None:
    response = await app.post("/api/v2/tasks", {"type": "pay", **body})
    assert (response.status_code, response.json()["code"]) == (422, "invalid_request")


@pytest.mark.contract("N-3")
async def test_terms_alone_ask_for_an_approval(app: App) -> None:
    task = (await app.post("/api/v2/tasks", {"type": "pay", "approval": {}})).json()
    assert task["phase"] == "waiting_approval"


@pytest.mark.contract("S1-11", "N-4")
async def test_a_task_that_waits_for_a_person_can_be_canceled(app: App) -> None:
    item = await asked(app)
    canceled = await app.post(f"/api/v2/tasks/{item['task_id']}/cancel", None)
    assert canceled.json()["state"] == "canceled"
    late = await app.post(f"/api/v2/approvals/{item['id']}/approve", None)
    assert late.status_code == 409
    assert await listed(app) == []
    assert await listed(app, "?status=canceled") == [item["id"]]
    assert await listed(app, "?status=all") == [item["id"]]


@pytest.mark.contract("S1-11", "N-3")
async def test_an_approved_task_for_later_runs_later(app: App) -> None:
    worker = await app.worker(group=None, services=["pay"])
    item = await asked(app, delay_ms=HOUR)
    await app.post(f"/api/v2/approvals/{item['id']}/approve", None)
    assert (await task_of(app, item))["state"] == "scheduled"
    await app.advance(HOUR)
    assert (await worker.task())["taskId"] == item["task_id"]


@pytest.mark.contract("S1-11")
async def test_what_waits_is_shown_newest_first_a_page_at_a_time(app: App) -> None:
    made = [(await asked(app))["id"] for _ in range(5)]
    first = (await app.get("/api/v2/approvals?limit=3")).json()
    rest = (await app.get(f"/api/v2/approvals?limit=3&cursor={first['next']}")).json()
    assert [item["id"] for item in first["items"] + rest["items"]] == made[::-1]
    assert rest["next"] is None


@pytest.mark.contract("S1-11", "N-4")
async def test_explain_names_the_command_that_decides(app: App) -> None:
    item = await asked(app)
    why = (await app.get(f"/api/v2/tasks/{item['task_id']}/explain")).json()
    assert why["reason"] == "waiting_approval"
    assert f"onward approvals approve {item['id']}" in why["hint"]
