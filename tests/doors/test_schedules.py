"""Schedules over HTTP: made, replaced, shown, paused, triggered, removed; run as submissions."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.running_app import App

PATH = "/api/v2/schedules"
MINUTE, DAY = 60_000, 86_400_000
ITEM = {
    "name", "type", "payload", "queue", "priority", "max_retries", "timeout_ms",
    "requires_approval", "session_id", "flow", "params", "cron", "every_ms", "run_at", "timezone",
    "missed", "overlap", "paused", "description", "next_run_at", "last_run_at", "last_task_id",
    "last_outcome", "created_at", "links",
}  # fmt: skip
MAIL = {"type": "mail", "payload": {"to": "ada"}}
GREETING = {"start": "hello", "nodes": {"hello": {"kind": "executor", "service": "greet"}}}


async def made(app: App, name: str = "s", **body: Any) -> dict[str, Any]:
    response = await app.post(PATH, {"name": name, **MAIL, **body})
    assert response.status_code == 201, response.text
    schedule: dict[str, Any] = response.json()
    assert set(schedule) == ITEM | {"upcoming", "history"}
    return schedule


async def shown(app: App, name: str = "s") -> dict[str, Any]:
    response = await app.get(f"{PATH}/{name}")
    assert response.status_code == 200, response.text
    schedule: dict[str, Any] = response.json()
    return schedule


async def strike(app: App, ms: int) -> None:
    await app.advance(ms)
    await app.onward.schedules.scheduler.turn()


async def tasks(app: App, query: str = "type=mail") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await app.get(f"/api/v2/tasks?{query}")).json()["items"]
    return found


@pytest.mark.contract("R-7", "N-5", "S2-11")
async def test_a_cron_schedule_is_shown_with_its_next_instants(app: App) -> None:
    schedule = await made(
        app, "to-berlin", cron="30 9 * * MON-FRI", timezone="Europe/Berlin", queue="post"
    )
    assert schedule == await shown(app, "to-berlin")
    assert schedule["created_at"] == app.clock.now()
    assert (schedule["name"], schedule["type"], schedule["payload"]) == (
        "to-berlin",
        "mail",
        {"to": "ada"},
    )
    assert (schedule["cron"], schedule["timezone"], schedule["queue"]) == (
        "30 9 * * MON-FRI",
        "Europe/Berlin",
        "post",
    )
    assert (schedule["every_ms"], schedule["run_at"], schedule["paused"]) == (None, None, False)
    assert schedule["description"] == "At 09:30 on Monday through Friday"
    # It is Tuesday the 14th of November 2023, 23:13 in Berlin.
    wednesday = 1_700_037_000_000
    days = [0, 1, 2, 5, 6]
    assert schedule["upcoming"] == [wednesday + day * DAY for day in days]
    assert schedule["next_run_at"] == wednesday
    assert schedule["links"] == {
        "self": f"{PATH}/to-berlin",
        "pause": f"{PATH}/to-berlin/pause",
        "resume": f"{PATH}/to-berlin/resume",
        "trigger": f"{PATH}/to-berlin/trigger",
    }
    page = (await app.get(PATH)).json()
    assert page == {
        "items": [{field: said for field, said in schedule.items() if field in ITEM}],
        "next": None,
    }


@pytest.mark.contract("N-5", "S2-11")
async def test_a_due_schedule_makes_a_task_as_a_submission_would(app: App) -> None:
    worker = await app.worker(group=None, services=["post"])
    await app.post(
        "/api/v2/services", {"name": "post", "task_types": ["mail"], "timeout_ms": 7_000}
    )
    schedule = await made(app, every_ms=MINUTE, queue="post", priority="high", max_retries=1)
    await strike(app, MINUTE)
    frame = await worker.task()
    assert (frame["payload"], frame["timeout"]) == ({"to": "ada"}, 7_000)
    (task,) = await tasks(app)
    assert (task["queue"], task["priority"], task["id"]) == ("post", "high", frame["taskId"])
    now = await shown(app)
    assert (now["last_run_at"], now["last_task_id"]) == (schedule["next_run_at"], task["id"])
    assert (now["next_run_at"], now["last_outcome"]) == (app.clock.now() + MINUTE, "submitted")
    assert now["history"] == [
        {
            "at": schedule["next_run_at"],
            "outcome": "submitted",
            "task_id": task["id"],
            "reason": None,
        }
    ]


@pytest.mark.contract("S2-11")
async def test_once_is_once(app: App) -> None:
    schedule = await made(app, run_at=app.clock.now() + MINUTE)
    assert (schedule["description"], schedule["upcoming"]) == ("Once", [schedule["run_at"]])
    for _ in range(3):
        await strike(app, MINUTE)
    assert len(await tasks(app)) == 1
    done = await shown(app)
    assert (done["next_run_at"], done["upcoming"], done["paused"]) == (None, [], False)


@pytest.mark.contract("S2-11", "N-5")
async def test_a_flow_is_run_with_its_params(app: App) -> None:
    worker = await app.worker(group=None, services=["greet"])
    published = await app.post("/api/v2/flows", {"name": "greeting", "definition": GREETING})
    assert published.status_code == 200, published.text
    body = {"name": "s", "flow": "greeting", "params": {"n": 1}, "every_ms": MINUTE}
    response = await app.post(PATH, body)
    assert response.status_code == 201, response.text
    assert (response.json()["flow"], response.json()["type"]) == ("greeting", None)
    await strike(app, MINUTE)
    frame = await worker.task()
    assert frame["payload"]["params"]["n"] == 1
    (run,) = (await app.get("/api/v2/runs?flow=greeting")).json()["items"]
    assert run["id"] == (await shown(app))["last_task_id"]
    triggered = await app.post(f"{PATH}/s/trigger", None)
    assert (triggered.status_code, triggered.json()["type"]) == (202, "flow:greeting")


@pytest.mark.contract("S2-11", "S1-11")
async def test_a_run_that_needs_approval_waits_for_it(app: App) -> None:
    await made(app, every_ms=MINUTE, requires_approval=True)
    await strike(app, MINUTE)
    (asked,) = (await app.get("/api/v2/approvals")).json()["items"]
    assert asked["task_id"] == (await shown(app))["last_task_id"]


async def test_a_run_belongs_to_its_session(app: App) -> None:
    await made(app, every_ms=MINUTE, session_id="ada", timeout_ms=5_000)
    await strike(app, MINUTE)
    (task,) = await tasks(app, "session=ada")
    assert task["id"] == (await shown(app))["last_task_id"]


# Made, replaced, removed.


@pytest.mark.contract("N-5")
async def test_the_same_once_more_is_the_same_and_another_is_a_conflict(app: App) -> None:
    schedule = await made(app, cron="@daily")
    await strike(app, 2 * DAY)
    again = await app.post(PATH, {"cron": "@daily", "name": "s", **MAIL})
    assert (again.status_code, again.json()["created_at"]) == (200, schedule["created_at"])
    other = await app.post(PATH, {"name": "s", **MAIL, "cron": "@weekly"})
    assert other.status_code == 409
    problem = other.json()
    assert (problem["code"], problem["detail"]) == (
        "conflict",
        "there is another schedule called 's'",
    )
    assert (await shown(app))["cron"] == "@daily"


@pytest.mark.contract("N-5")
async def test_put_makes_a_schedule_and_replaces_it(app: App) -> None:
    first = await app.http.put(f"{PATH}/s", json={**MAIL, "every_ms": 2 * MINUTE})
    assert first.status_code == 201
    second = await app.http.put(f"{PATH}/s", json={"name": "s", "type": "b", "every_ms": MINUTE})
    assert (second.status_code, second.json()["type"]) == (200, "b")
    assert second.json()["next_run_at"] == app.clock.now() + MINUTE
    await app.post(f"{PATH}/s/pause", None)
    third = await app.http.put(f"{PATH}/s", json={"type": "c", "every_ms": MINUTE})
    assert (third.json()["paused"], third.json()["next_run_at"]) == (True, None)
    fourth = await app.http.put(
        f"{PATH}/s", json={"type": "c", "every_ms": MINUTE, "paused": False}
    )
    assert (fourth.json()["paused"], fourth.json()["created_at"]) == (
        False,
        first.json()["created_at"],
    )
    elsewhere = await app.http.put(f"{PATH}/s", json={"name": "t", **MAIL, "every_ms": MINUTE})
    assert elsewhere.status_code == 422


@pytest.mark.contract("N-5")
async def test_pause_resume_and_remove(app: App) -> None:
    await made(app, every_ms=MINUTE)
    paused = await app.post(f"{PATH}/s/pause", None)
    assert (paused.status_code, paused.json()["paused"]) == (200, True)
    assert (await app.post(f"{PATH}/s/pause", None)).json() == paused.json()
    await strike(app, DAY)
    assert await tasks(app) == []
    resumed = (await app.post(f"{PATH}/s/resume", None)).json()
    assert (resumed["paused"], resumed["next_run_at"]) == (False, app.clock.now() + MINUTE)
    assert (await app.http.delete(f"{PATH}/s")).status_code == 204
    assert (await app.http.delete(f"{PATH}/s")).status_code == 404
    await strike(app, DAY)
    assert await tasks(app) == []


@pytest.mark.contract("N-5")
async def test_a_trigger_answers_with_the_task(app: App) -> None:
    await made(app, every_ms=DAY)
    triggered = await app.post(f"{PATH}/s/trigger", None, headers={"idempotency-key": "k"})
    task = triggered.json()
    assert (triggered.status_code, task["type"], task["state"]) == (202, "mail", "queued")
    assert triggered.headers["location"] == f"/api/v2/tasks/{task['id']}"
    again = await app.post(f"{PATH}/s/trigger", None, headers={"idempotency-key": "k"})
    assert again.json()["id"] == task["id"]
    schedule = await shown(app)
    assert (schedule["last_task_id"], schedule["last_outcome"]) == (task["id"], "triggered")
    assert len(schedule["history"]) == 1
    assert schedule["next_run_at"] == schedule["created_at"] + DAY


@pytest.mark.parametrize(
    ("every_ms", "said"),
    [
        (1_000, "Every second"),
        (1_500, "Every 1.5 seconds"),
        (90_000, "Every 90 seconds"),
        (300_000, "Every 5 minutes"),
        (DAY, "Every day"),
    ],
)
async def test_an_interval_is_told_in_words(app: App, every_ms: int, said: str) -> None:
    assert (await made(app, every_ms=every_ms))["description"] == said


async def test_lists_are_by_name_and_in_pages(app: App) -> None:
    names = ["b", "a", "ä b", "c?d", "z#%"]
    for name in names:
        schedule = await made(app, name, every_ms=MINUTE)
        assert schedule["links"]["self"] == f"{PATH}/{quote(name, safe='')}"
        assert (await app.get(schedule["links"]["self"])).json() == schedule
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await app.http.get(PATH, params={"limit": 2, "cursor": cursor})).json()
        seen += [item["name"] for item in page["items"]]
        cursor = page["next"]
    assert seen == sorted(names)


async def test_work_that_is_not_accepted_any_more_is_told_of(app: App) -> None:
    await made(app, every_ms=MINUTE)
    schema = {"type": "object", "required": ["subject"]}
    await app.post(
        "/api/v2/services", {"name": "m", "task_types": ["mail"], "schema": {"mail": schema}}
    )
    await strike(app, MINUTE)
    schedule = await shown(app)
    assert schedule["last_outcome"] == "refused"
    assert "does not fit 'mail'" in schedule["history"][0]["reason"]
    refused = await app.post(f"{PATH}/s/trigger", None)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")


# What is refused.


@pytest.mark.contract("N-5")
@pytest.mark.parametrize(
    ("body", "pointer", "detail"),
    [
        ({}, "/cron", "give exactly one of cron, every_ms and run_at"),
        ({"cron": "* * * * *", "every_ms": 1_000}, "/every_ms", "give exactly one of"),
        ({"every_ms": 1_000, "run_at": 2 * 10**12}, "/run_at", "give exactly one of"),
        ({"cron": "61 * * * *"}, "/cron", "cron '61 * * * *': bad minute"),
        ({"cron": "* * *"}, "/cron", "cron '* * *': wrong number of fields"),
        ({"cron": ""}, "/cron", "cron '': wrong number of fields"),
        ({"cron": "0 0 30 2 *"}, "/cron", "cron '0 0 30 2 *': bad day-of-month"),
        ({"cron": "0 0 */30 * 1#3"}, "/cron", "cron '0 0 */30 * 1#3' never comes"),
        ({"cron": "@daily", "timezone": "Mars"}, "/timezone", "no time zone 'Mars'"),
        ({"every_ms": 999}, "/every_ms", "/every_ms: expected a whole number >= 1000"),
        ({"every_ms": "1000"}, "/every_ms", "/every_ms: expected"),
        ({"run_at": 1_700_000_000}, "/run_at", "run_at lies in the past"),
        ({"run_at": 10**15}, "/run_at", "/run_at: expected a whole number <="),
        ({"every_ms": 1_000, "name": "a/b"}, "/name", "/name: expected text in the form"),
        ({"every_ms": 1_000, "name": ".."}, "/name", "/name: expected text in the form"),
        ({"every_ms": 1_000, "name": None}, "/name", "name: a schedule is known by its name"),
        ({"every_ms": 1_000, "type": None, "payload": None}, "/type", "give either type"),
        ({"every_ms": 1_000, "flow": "f"}, "/type", "give either type"),
        ({"every_ms": 1_000, "params": {}}, "/params", "params go with a flow"),
        ({"every_ms": 1_000, "type": None, "flow": "f"}, "/payload", "payload is a task's"),
        ({"every_ms": 1_000, "overlap": "wait"}, "/overlap", "/overlap: "),
        ({"every_ms": 1_000, "missed": "twice"}, "/missed", "/missed: "),
        ({"every_ms": 1_000, "often": True}, "/often", "/often: is not a field of this request"),
    ],
)
async def test_bad_input_is_refused_with_where_and_why(
    app: App, body: dict[str, Any], pointer: str, detail: str
) -> None:
    response = await app.post(PATH, {"name": "s", **MAIL, **body})
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["code"], problem["errors"][0]["pointer"]) == ("invalid_request", pointer)
    assert problem["detail"].startswith(detail)
    assert (await app.get(PATH)).json()["items"] == []


async def test_a_fault_in_cron_comes_with_an_example(app: App) -> None:
    problem = (await app.post(PATH, {"name": "s", **MAIL, "cron": "61 * * * *"})).json()
    assert problem == {
        "type": "urn:onward:error:invalid-request",
        "title": problem["title"],  # Python's own word, another one since 3.13
        "status": 422,
        "code": "invalid_request",
        "detail": "cron '61 * * * *': bad minute",
        "request_id": problem["request_id"],
        "hint": "five fields as in '30 9 * * MON-FRI': minute, hour, day of month, month, weekday",
        "errors": [{"pointer": "/cron", "message": "cron '61 * * * *': bad minute"}],
    }


async def test_a_payload_is_held_to_its_types_schema(app: App) -> None:
    schema = {"type": "object", "properties": {"to": {"type": "integer"}}}
    await app.post(
        "/api/v2/services", {"name": "m", "task_types": ["mail"], "schema": {"mail": schema}}
    )
    refused = await app.post(PATH, {"name": "s", **MAIL, "every_ms": MINUTE})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/payload/to")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nobody"),
        ("DELETE", "/nobody"),
        ("POST", "/nobody/pause"),
        ("POST", "/nobody/resume"),
        ("POST", "/nobody/trigger"),
    ],
)
async def test_an_unknown_schedule_is_not_found(app: App, method: str, path: str) -> None:
    response = await app.http.request(method, f"{PATH}{path}")
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert response.json()["detail"] == "no schedule is called 'nobody'"


async def test_a_flow_must_be_there_and_takes_no_terms_of_a_task(app: App) -> None:
    for body, pointer in (
        ({"flow": "nothing"}, "/flow"),
        ({"flow": "nothing", "queue": "q"}, "/queue"),
        ({"flow": "nothing", "max_retries": 2}, "/max_retries"),
    ):
        refused = await app.post(PATH, {"name": "s", "every_ms": MINUTE, **body})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)
