"""The native door: submit, read, list, follow, cancel, retry, explain; and its errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.running_app import App, running_app
from tests.support import bad_json, wait_until

PROBLEM = "application/problem+json"
FIELDS = {
    "id", "type", "queue", "state", "phase", "payload", "result", "error", "attempt", "generation",
    "created_at", "started_at", "finished_at", "progress", "links",
}  # fmt: skip


async def submitted(app: App, **body: Any) -> dict[str, Any]:
    response = await app.post("/api/v2/tasks", {"type": "greet", **body})
    assert response.status_code == 202, response.text
    task: dict[str, Any] = response.json()
    return task


@pytest.mark.contract("N-3", "R-7")
async def test_a_type_without_a_worker_is_accepted_and_waits(app: App) -> None:
    task = await submitted(app, payload={"name": "Ada"})
    assert set(task) >= FIELDS
    assert (task["state"], task["phase"], task["queue"]) == ("queued", "queued", "greet")
    assert task["payload"] == {"name": "Ada"}
    assert (await app.get(task["links"]["self"])).json() == task


@pytest.mark.contract("N-3")
async def test_a_call_that_waits_gets_the_result_in_time_or_the_same_id_to_poll(app: App) -> None:
    worker = await app.worker(group=None, services=["greet"])
    quick = asyncio.ensure_future(app.post("/api/v2/tasks?wait_ms=5000", {"type": "greet"}))
    await worker.answer((await worker.task())["taskId"], "hello")
    response = await quick
    assert (response.status_code, response.json()["result"]) == (200, "hello")
    slow = await app.post("/api/v2/tasks?wait_ms=20", {"type": "greet"})
    assert slow.status_code == 202
    task = await worker.task()
    assert task["taskId"] == slow.json()["id"], "the job did not die with the call"
    polling = asyncio.ensure_future(app.get(f"/api/v2/tasks/{task['taskId']}?wait_ms=5000"))
    await app.settled()
    await worker.answer(task["taskId"], "late hello")
    assert (await polling).json()["result"] == "late hello"


@pytest.mark.contract("N-3")
async def test_the_same_key_is_the_same_task_and_another_body_is_refused(app: App) -> None:
    first = await submitted(app, payload=1, idempotency_key="k")
    again = await submitted(app, payload=1, idempotency_key="k")
    assert again["id"] == first["id"]
    header = await app.post(
        "/api/v2/tasks", {"type": "greet", "payload": 1}, headers={"Idempotency-Key": "k"}
    )
    assert header.json()["id"] == first["id"]
    other = await app.post("/api/v2/tasks", {"type": "greet", "payload": 2, "idempotency_key": "k"})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


@pytest.mark.contract("N-3")
@pytest.mark.parametrize(
    "path", ["/api/v2/tasks", "/api/v2/sessions/s1/tasks", "/api/v2/tools/post_task_tool"]
)
@pytest.mark.parametrize("key", [b"", b"x" * 256, b"caf\xe9", b"tab\there"])
async def test_a_key_in_the_header_has_the_limits_of_one_in_the_body(
    app: App, path: str, key: bytes
) -> None:
    service = {"name": "post", "task_types": ["mail"]}
    assert (await app.post("/api/v2/services", service)).status_code == 201
    by_tool = path.endswith("tool")
    body = {"parameters": {}, "session_id": "s1"} if by_tool else {"type": "mail"}
    refused = await app.post(path, body, headers={b"Idempotency-Key": key})
    assert refused.status_code == 422, refused.text
    taken = await app.post(path, body, headers={b"Idempotency-Key": b"x" * 255})
    assert taken.status_code in (200, 202), taken.text


@pytest.mark.contract("N-3")
async def test_two_hundred_calls_with_one_key_are_one_task(app: App) -> None:
    tasks = await asyncio.gather(
        *[submitted(app, payload=1, idempotency_key="k") for _ in range(200)]
    )
    assert len({task["id"] for task in tasks}) == 1


@pytest.mark.contract("N-3")
async def test_a_delayed_task_starts_when_it_is_due(app: App) -> None:
    task = await submitted(app, delay_ms=60_000)
    assert (task["state"], task["run_at"]) == ("scheduled", app.clock.now() + 60_000)
    worker = await app.worker(group=None, services=["greet"])
    await app.advance(59_999)
    assert worker.pending() == 0
    await app.advance(1)
    assert (await worker.task())["taskId"] == task["id"]


@pytest.mark.contract("N-3", "R-5")
async def test_a_failing_task_is_retried_on_its_own_schedule_and_then_dies(app: App) -> None:
    worker = await app.worker(group=None, services=["greet"])
    task = await submitted(app, max_retries=2, backoff_ms=[100, 200])
    for delay in (100, 200):
        await worker.answer((await worker.task())["taskId"], error="flaky", status=503)
        await app.settled()
        assert (await app.task(task["id"]))["phase"] == "retry_wait"
        await app.advance(delay)
    await worker.answer((await worker.task())["taskId"], error="flaky", status=503)
    await app.settled()
    dead = await app.task(task["id"])
    assert (dead["state"], dead["attempt"], dead["error"]["message"]) == ("dead", 3, "flaky")
    types = [event["type"] for event in await app.events(task["id"])]
    assert types.count("task.retrying") == 2
    assert types[-2:] == ["task.failed", "task.dlq"]


@pytest.mark.contract("R-5")
@pytest.mark.parametrize(
    "error",
    [
        {"error": "no", "status": 400},
        {"error": "no", "errorType": "InvalidInput"},
        {"error": "no", "status": 503, "retryable": False},
    ],
)
async def test_a_permanent_error_is_not_tried_again(app: App, error: dict[str, Any]) -> None:
    worker = await app.worker(group=None, services=["greet"])
    task = await submitted(app)
    await worker.answer((await worker.task())["taskId"], **error)
    await app.settled()
    assert (await app.task(task["id"]))["state"] == "dead"


@pytest.mark.contract("N-4", "R-7")
async def test_cancel_ends_what_waits_and_stops_what_runs(app: App) -> None:
    task = await submitted(app)
    canceled = await app.post(f"/api/v2/tasks/{task['id']}/cancel", None)
    assert canceled.json()["state"] == "canceled"
    again = await app.post(f"/api/v2/tasks/{task['id']}/cancel", None)
    assert (again.status_code, again.json()["code"]) == (409, "conflict")

    worker = await app.worker(group=None, services=["greet"])
    task = await submitted(app)
    await worker.task()
    asked = await app.post(f"/api/v2/tasks/{task['id']}/cancel", None)
    assert (asked.json()["state"], asked.json()["phase"]) == ("running", "canceling")
    assert await worker.receive() == {"type": "cancel", "taskId": task["id"]}
    await worker.answer(task["id"], "finished all the same")
    await app.settled()
    assert (await app.task(task["id"]))["state"] == "canceled"


@pytest.mark.contract("N-4")
async def test_a_worker_that_ignores_a_cancel_is_overruled(app: App) -> None:
    worker = await app.worker(group=None, services=["greet"])
    task = await submitted(app)
    await worker.task()
    await app.post(f"/api/v2/tasks/{task['id']}/cancel", None)
    await app.advance(10_000)
    assert (await app.task(task["id"]))["state"] == "canceled"


@pytest.mark.contract("N-4")
async def test_retry_begins_a_new_generation_with_a_mended_payload(app: App) -> None:
    worker = await app.worker(group=None, services=["greet"])
    task = await submitted(app, payload={"name": ""}, max_retries=0)
    await worker.answer((await worker.task())["taskId"], error="empty name")
    await app.settled()
    mended = await app.post(f"/api/v2/tasks/{task['id']}/retry", {"payload": {"name": "Ada"}})
    assert (mended.status_code, mended.json()["generation"]) == (200, 2)
    frame = await worker.task()
    assert (frame["taskId"], frame["payload"]) == (task["id"], {"name": "Ada"})
    await worker.answer(task["id"], "ok")
    await app.settled()
    assert (await app.task(task["id"]))["state"] == "succeeded"
    no = await app.post(f"/api/v2/tasks/{task['id']}/retry", None)
    assert no.status_code == 409


@pytest.mark.contract("N-2", "N-4")
async def test_lists_are_filtered_and_paged_newest_first(app: App) -> None:
    made = [(await submitted(app, payload={"n": n}))["id"] for n in range(5)]
    await submitted(app, type="other", session_id="s-1")
    first = (await app.get("/api/v2/tasks?type=greet&limit=3")).json()
    assert [task["id"] for task in first["items"]] == made[:1:-1]
    rest = (await app.get(f"/api/v2/tasks?type=greet&limit=3&cursor={first['next']}")).json()
    assert ([task["id"] for task in rest["items"]], rest["next"]) == (made[1::-1], None)
    assert len((await app.get("/api/v2/tasks?state=queued")).json()["items"]) == 6
    assert len((await app.get("/api/v2/tasks?state=dead")).json()["items"]) == 0
    assert len((await app.get("/api/v2/tasks?session=s-1")).json()["items"]) == 1
    assert len((await app.get('/api/v2/tasks?q="n":3')).json()["items"]) == 1


@pytest.mark.contract("N-2", "N-4")
@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v2/tasks/none", 404, "not_found"),
        ("/api/v2/tasks/none/events", 404, "not_found"),
        ("/api/v2/tasks/none/explain", 404, "not_found"),
        ("/api/v2/tasks?state=executing", 422, "invalid_request"),
        ("/api/v2/tasks?limit=0", 422, "invalid_request"),
        ("/api/v2/tasks?limit=1000000000", 422, "invalid_request"),
        ("/api/v2/tasks?cursor=x", 422, "invalid_request"),
        ("/api/v2/nothing-here", 404, "not_found"),
        ("/api/v2/tasks/none?wait_ms=-1", 422, "invalid_request"),
    ],
)
async def test_errors_are_problems_with_a_stable_code(
    app: App, path: str, status: int, code: str
) -> None:
    response = await app.get(path)
    assert (response.status_code, response.headers["content-type"]) == (status, PROBLEM)
    problem = response.json()
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["title"]
    assert problem["detail"]


@pytest.mark.contract("N-2", "N-3")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        *((body, 400) for body, _ in bad_json("payload")),
        (b'{"type":"a","type":"b"}', 400),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"type":""}', 422),
        (b'{"type":7}', 422),
        (b'{"type":"a","priority":"urgent"}', 422),
        (b'{"type":"a","delay_ms":-1}', 422),
        (b'{"type":"a","delay_ms":1,"run_at":2}', 422),
        (b'{"type":"a","max_retries":-1}', 422),
        (b'{"type":"a","timeout_ms":0}', 422),
        (b'{"type":"a","nonsense":1}', 422),
        (b'{"type":"a\\nb"}', 422),
    ],
)
async def test_a_bad_submission_is_a_problem_and_leaves_nothing_behind(
    app: App, body: bytes, status: int
) -> None:
    response = await app.http.post("/api/v2/tasks", content=body)
    assert (response.status_code, response.headers["content-type"]) == (status, PROBLEM)
    assert response.json()["code"] == "invalid_request"
    assert not await app.onward.backend.tasks.counts()


@pytest.mark.contract("N-4")
async def test_events_are_followed_live_and_resumed_where_they_were_cut(app: App) -> None:
    worker = await app.worker(group=None, services=["greet"])
    task = await submitted(app)
    await worker.task()

    async def follow(after: int | None) -> list[tuple[int, str]]:
        headers = {"accept": "text/event-stream"}
        if after is not None:
            headers["last-event-id"] = str(after)
        seen: list[tuple[int, str]] = []
        path = f"/api/v2/tasks/{task['id']}/events"
        async with app.http.stream("GET", path, headers=headers) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    seen.append((event["n"], event["type"]))
        return seen

    following = asyncio.ensure_future(follow(None))
    await app.settled()
    await worker.send({"type": "chunk", "taskId": task["id"], "data": "half"})
    await app.settled()
    await worker.answer(task["id"], "whole")
    whole = await following
    assert [type_ for _, type_ in whole] == [
        "task.created", "task.claimed", "task.chunk", "task.succeeded",
    ]  # fmt: skip
    assert [n for n, _ in whole] == [1, 2, 3, 4]
    assert await follow(2) == whole[2:]


@pytest.mark.contract("N-4")
async def test_explain_says_why_it_does_not_run_and_what_to_do(app: App) -> None:
    task = await submitted(app)

    async def why() -> dict[str, Any]:
        body: dict[str, Any] = (await app.get(f"/api/v2/tasks/{task['id']}/explain")).json()
        return body

    alone = await why()
    assert alone["reason"] == "no_worker"
    assert "greet" in alone["sentence"]
    assert "onward worker" in alone["hint"]
    worker = await app.worker(group=None, services=["greet"])
    await worker.task()
    assert ((await why())["reason"], (await why())["eta"]) == ("running", None)
    await app.advance(2_000)
    await worker.send({"type": "progress", "taskId": task["id"], "progress": 0.25})
    await app.settled()
    assert (await why())["eta"] == app.clock.now() + 6_000, "at the pace so far"
    task = await submitted(app)
    assert (await why())["reason"] == "workers_busy"
    task = await submitted(app, delay_ms=5_000)
    later = await why()
    assert (later["reason"], later["eta"]) == ("scheduled", app.clock.now() + 5_000)


@pytest.mark.contract("N-4")
@pytest.mark.parametrize(
    ("reported", "answer", "shown"),
    [
        ({"progress": 0.75, "message": "three of four"}, {"result": "ok"}, (1.0, None)),
        ({"progress": 1.0, "message": "all four"}, {"result": "ok"}, (1.0, "all four")),
        (None, {"result": "ok"}, (None, None)),
        (
            {"progress": 0.75, "message": "three"},
            {"error": "no", "retryable": False},
            (0.75, "three"),
        ),
    ],
)
async def test_what_succeeded_is_complete_and_what_failed_shows_how_far_it_got(
    app: App, reported: Any, answer: dict[str, Any], shown: tuple[Any, Any]
) -> None:
    worker = await app.worker(group=None, services=["greet"])
    id = (await submitted(app))["id"]
    await worker.task()
    if reported is not None:
        await worker.send({"type": "progress", "taskId": id, **reported})
    await worker.answer(id, **answer)
    await app.settled()
    task = await app.task(id)
    assert (task["progress"], task["progress_message"]) == shown


@pytest.mark.contract("N-11")
async def test_a_declared_service_brings_its_schema_and_defaults(app: App) -> None:
    schema = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
    body = {
        "name": "greeter", "task_types": ["greet"], "schema": {"greet": schema},
        "requires_approval": False, "sensitive": ["/name"], "timeout_ms": 5000, "max_retries": 1,
    }  # fmt: skip
    declared = await app.post("/api/v2/services", body)
    assert declared.status_code == 201, declared.text
    listed = (await app.get("/api/v2/services")).json()["items"]
    assert [service["name"] for service in listed] == ["greeter"]
    bad = await app.post("/api/v2/tasks", {"type": "greet", "payload": {"name": 7}})
    assert (bad.status_code, bad.json()["code"]) == (422, "invalid_request")
    assert bad.json()["errors"][0]["pointer"] == "/payload/name"
    await submitted(app, payload={"name": "Ada"})
    assert (await app.http.delete("/api/v2/services/greeter")).status_code == 204
    assert (await app.http.delete("/api/v2/services/greeter")).status_code == 404
    await submitted(app, payload={"name": 7})


@pytest.mark.contract("N-11")
@pytest.mark.parametrize(
    "ref", ["http://127.0.0.1:1/schema.json", "file:///etc/hostname", "other.json", "#/$defs/none"]
)
async def test_a_schema_that_points_out_of_itself_is_refused_unread(app: App, ref: str) -> None:
    body = {"name": "s", "task_types": ["s"], "schema": {"s": {"$ref": ref}}}
    refused = await app.post("/api/v2/services", body)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
    assert refused.json()["errors"][0]["pointer"] == "/schema/s"
    assert "\n" not in refused.json()["detail"]
    inside = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}
    assert (await app.post("/api/v2/services", {**body, "schema": {"s": inside}})).is_success


@pytest.mark.contract("N-11")
async def test_a_worker_declares_its_services_when_it_registers(app: App) -> None:
    declare = [{"name": "greet", "task_types": ["greet"], "schema": {"greet": {"type": "object"}}}]
    await app.worker(group=None, services=["greet"], declare=declare)
    bad = await app.post("/api/v2/tasks", {"type": "greet", "payload": 7})
    assert bad.status_code == 422


@pytest.mark.contract("N-3", "S1-11")
async def test_a_task_that_needs_approval_waits_and_holds_no_worker(app: App) -> None:
    worker = await app.worker(group=None, services=["greet"])
    task = await submitted(app, requires_approval=True)
    assert (task["state"], task["phase"]) == ("waiting", "waiting_approval")
    await app.advance(3_600_000)
    assert worker.pending() == 0


@pytest.mark.contract("S2-7")
async def test_with_a_session_the_timeout_is_told_and_the_work_goes_on(app: App) -> None:
    worker = await app.worker(group=None, services=["greet"])
    task = await submitted(app, session_id="s", timeout_ms=1_000)
    await worker.task()
    await app.advance(1_000)
    overdue = await app.task(task["id"])
    assert (overdue["state"], overdue["phase"]) == ("running", "overdue")
    await app.advance(1_000)
    await worker.answer(task["id"], "at last")
    await app.settled()
    assert (await app.task(task["id"]))["result"] == "at last"
    events = await app.events(task["id"])
    assert [event["type"] for event in events].count("task.timeout") == 1


@pytest.mark.contract("N-9", "S3-7")
async def test_health_readiness_and_metrics_answer_with_or_without_workers(app: App) -> None:
    assert (await app.get("/ready")).status_code == 200
    alone = await app.get("/health")
    assert (alone.status_code, alone.json()["status"]) == (503, "unhealthy")
    assert alone.json()["components"]["workers"] is False
    assert "no worker is connected" in alone.json()["details"]["workers"]["error"]
    await app.worker()
    health = await app.get("/health")
    assert (health.status_code, health.json()["status"]) == (200, "healthy")
    assert health.json()["components"] == {
        "ledger": True,
        "redis": None,
        "workers": True,
        "circuit_breaker": {"state": "closed", "open": []},
        "background": True,
    }
    assert health.json()["details"].keys() == health.json()["components"].keys() | {"background"}
    assert health.json()["timestamp"].endswith("Z")
    await submitted(app)
    metrics = (await app.get("/metrics")).text
    assert 'onward_events_total{type="task.created"} 1.0' in metrics
    assert 'onward_tasks{lane="primary",queue="greet",state="queued"} 1.0' in metrics
    assert "onward_ledger_log_bytes " in metrics


@pytest.mark.contract("S3-7")
async def test_health_turns_when_a_job_fails_again_and_again_and_turns_back(app: App) -> None:
    await app.worker()
    troubles = app.onward.dispatcher.troubles
    troubles.ended("a job of the test", RuntimeError("no"))
    ill = await app.get("/health")
    assert (ill.status_code, ill.json()["status"]) == (503, "unhealthy")
    assert ill.json()["components"]["background"] is False
    assert ill.json()["details"]["background"] == {
        "status": "unhealthy",
        "failing": {"a job of the test": "failed 5 times in a row: RuntimeError"},
    }
    troubles.went_well("a job of the test")
    well = await app.get("/health")
    assert (well.status_code, well.json()["components"]["background"]) == (200, True)
    assert well.json()["details"]["background"] == {"status": "healthy", "failing": {}}


@pytest.mark.contract("S1-8")
async def test_an_effect_is_begun_once_and_kept_over_a_retry(app: App) -> None:
    worker = await app.worker(group=None, services=["greet"])
    task = await submitted(app, backoff_ms=[0])
    frame = await worker.task()
    path = f"/api/v2/tasks/{task['id']}/effects/charge"
    assert (await app.post(path, {"fence": frame["fence"]})).json() == {"state": "begun"}
    put = await app.http.put(path, json={"fence": frame["fence"], "value": {"id": 7}})
    assert put.status_code == 200
    await worker.answer(task["id"], error="after the charge")
    frame = await worker.task()
    again = await app.post(path, {"fence": frame["fence"]})
    assert again.json() == {"state": "done", "value": {"id": 7}}
    stale = await app.post(path, {"fence": frame["fence"] - 1})
    assert stale.status_code == 409


@pytest.mark.contract("S1-8")
async def test_an_effect_is_finished_and_taken_back_only_with_the_fence_that_began_it(
    app: App,
) -> None:
    worker = await app.worker(group=None, services=["greet"])
    task = await submitted(app, backoff_ms=[0])
    first = (await worker.task())["fence"]
    path = f"/api/v2/tasks/{task['id']}/effects/charge"
    assert (await app.post(path, {"fence": first})).json() == {"state": "begun"}
    own = {"state": "unknown", "fence": first, "own": True}
    assert (await app.post(path, {"fence": first})).json() == own
    await worker.answer(task["id"], error="after the charge")
    second = (await worker.task())["fence"]
    assert (await app.http.delete(f"{path}?fence={second}")).status_code == 204
    assert (await app.http.delete(f"{path}?fence={first}")).status_code == 409
    assert (await app.http.put(path, json={"fence": second, "value": 2})).status_code == 409
    unknown = {"state": "unknown", "fence": first, "own": False}
    assert (await app.post(path, {"fence": second})).json() == unknown
    for value in (1, 2):
        put = await app.http.put(path, json={"fence": first, "value": value})
        assert put.json() == {"state": "done"}
    assert (await app.post(path, {"fence": second})).json() == {"state": "done", "value": 1}


@pytest.mark.contract("N-3")
async def test_a_full_house_of_waiters_refuses_more() -> None:
    async with running_app(max_waiters=1) as app:
        await app.worker(group=None, services=["greet"])
        first = asyncio.ensure_future(app.post("/api/v2/tasks?wait_ms=500", {"type": "greet"}))
        await wait_until(lambda: len(app.onward.dispatcher.waiters) == 1)
        second = await app.post("/api/v2/tasks?wait_ms=500", {"type": "greet"})
        assert (second.status_code, second.json()["code"]) == (503, "too_busy")
        assert int(second.headers["retry-after"]) >= 1
        assert (await first).status_code == 202


@pytest.mark.contract("N-2")
@pytest.mark.parametrize(("method", "status"), [("GET", 404), ("DELETE", 405)])
async def test_a_path_that_is_not_there_leads_to_those_that_are(
    app: App, method: str, status: int
) -> None:
    path = "/api/v2/taks" if status == 404 else "/api/v2/tasks"
    said = await app.http.request(method, path)
    assert (said.status_code, said.json()["status"]) == (status, status)
    assert "GET /openapi.json" in said.json()["hint"]
