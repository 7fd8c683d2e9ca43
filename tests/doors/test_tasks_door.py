"""The tasks door, key for key: submit, read, list, delete; queues and dead letters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onward.core.contract import Submission
from onward.core.task import Lane, State, Task
from onward.doors.tasks.shapes import TaskDetail
from tests.doors.summarizing import (
    SUMMARIZE,
    dead,
    detail,
    fail,
    listed,
    read,
    stored,
    submitted,
    summarizer,
)
from tests.running_app import App, running_app
from tests.support import a_task, bad_json


@pytest.mark.contract("S3-1", "S3-2", "R-6")
async def test_a_text_to_summarize_is_accepted_as_pending(app: App) -> None:
    response = await app.post(SUMMARIZE, {"content": "Long text"})
    task = response.json()["task_id"]
    assert (response.status_code, response.json()) == (200, {"task_id": task, "state": "PENDING"})
    found = await app.get(f"/api/v1/tasks/{task}")
    assert found.json() == detail(app, task)
    assert list(found.json()) == list(TaskDetail.__struct_fields__), "the seed's order, then ours"


@pytest.mark.contract("S3-1", "R-6")
async def test_it_is_pending_also_when_an_idle_worker_has_it_already(app: App) -> None:
    worker = await summarizer(app)
    response = await app.post(SUMMARIZE, {"content": "Long text"})
    assert response.json()["state"] == "PENDING"
    assert (await worker.task())["payload"] == {"content": "Long text"}
    assert (await read(app, response.json()["task_id"]))["state"] == "ACTIVE"


@pytest.mark.contract("S3-1")
@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        *((body, 400, why) for body, why in bad_json("content")),
        (b"{}", 422, "content must be"),
        (b"[]", 422, "content must be"),
        (b'"text"', 422, "content must be"),
        (b"null", 422, "content must be"),
        (b'{"content":null}', 422, "content must be"),
        (b'{"content":7}', 422, "content must be"),
        (b'{"content":""}', 422, "content must be"),
        (b'{"content":" \\n"}', 422, "content must be"),
    ],
)
@pytest.mark.parametrize("slash", ["", "/"])
async def test_what_makes_no_sense_is_refused_and_leaves_nothing_behind(
    app: App, body: bytes, status: int, says: str, slash: str
) -> None:
    response = await app.http.post(f"/api/v1/tasks/summarize{slash}", content=body)
    assert response.status_code == status, response.text
    assert list(response.json()) == ["detail"]
    assert says in response.json()["detail"]
    assert response.json()["detail"]
    assert not await app.onward.backend.tasks.counts()


@pytest.mark.contract("S3-1")
async def test_a_body_over_a_mebibyte_is_too_large(app: App) -> None:
    response = await app.http.post(SUMMARIZE, content=b'{"content":"' + b"x" * (1 << 20) + b'"}')
    assert (response.status_code, list(response.json())) == (413, ["detail"])


@pytest.mark.contract("S3-1", "R-1")
@pytest.mark.parametrize("payload", [{"text": "ho"}, [1, 2], "plain", 7, None, {"content": [1]}])
async def test_the_body_is_the_payload_of_any_served_type(app: App, payload: Any) -> None:
    worker = await app.worker(group=None, services=["translate"])
    response = await app.http.post("/api/v1/tasks/translate/", content=json.dumps(payload))
    assert response.status_code == 200, response.text
    assert (await worker.task())["payload"] == payload
    task = await read(app, response.json()["task_id"])
    assert (task["task_type"], task["queue"]) == ("translate", "translate")
    assert task["payload"] == payload
    assert task["content"] == (payload.get("content") if isinstance(payload, dict) else None)


@pytest.mark.contract("S3-1")
async def test_an_unregistered_type_is_refused_at_once(app: App) -> None:
    await app.worker(group="gpu", services=["translate"])
    for type_ in ("sumarize", "group:gpu", "%00", "a%0Ab"):
        response = await app.post(f"/api/v1/tasks/{type_}/", {"content": "x"})
        assert response.status_code == 404, type_
        assert list(response.json()) == ["detail"]
        assert "is not registered; connect a worker" in response.json()["detail"]
    assert not await app.onward.backend.tasks.counts()


@pytest.mark.contract("S3-1")
async def test_a_worker_that_is_away_for_a_moment_does_not_turn_its_callers_away(app: App) -> None:
    worker = await app.worker(group=None, services=["translate"])
    await submitted(app, type_="translate")
    await worker.close()
    waiting = await submitted(app, type_="translate")
    assert (await read(app, waiting))["state"] == "PENDING"


@pytest.mark.contract("S3-1", "R-2")
async def test_a_type_of_the_stream_workers_is_registered() -> None:
    async with running_app(stream_types=("tool",)) as app:
        task = await submitted(app, type_="tool")
        assert (await stored(app, task)).profile == "tasks"
    async with running_app(stream_types=("*",)) as app:
        await submitted(app, type_="anything")


@pytest.mark.contract("S3-1", "N-11", "S1-11")
async def test_what_a_declared_service_says_holds_at_this_door_too(app: App) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    body = {
        "name": "greeter", "task_types": ["greet"], "schema": {"greet": schema},
        "requires_approval": True, "timeout_ms": 5000, "max_retries": 1,
    }  # fmt: skip
    assert (await app.post("/api/v2/services", body)).status_code == 201
    bad = await app.post("/api/v1/tasks/greet/", {"name": 7})
    assert bad.status_code == 422
    assert bad.json() == {
        "detail": "payload/name does not fit 'greet': 7 is not of type \"string\"; "
        "GET /api/v2/services/greeter shows the schema"
    }
    response = await app.post("/api/v1/tasks/greet/", {"name": "Ada"})
    assert response.json()["state"] == "PENDING"
    task = response.json()["task_id"]
    found = await read(app, task)
    assert (found["state"], found["phase"]) == ("ACTIVE", "waiting_approval")
    assert found["max_retries"] == 1
    assert (await stored(app, task)).attempt_ms == 5000
    approved = await app.post(f"/api/v2/approvals/{task}/approve", {"by": "ada"})
    assert approved.status_code == 200, approved.text
    assert (await read(app, task))["state"] == "PENDING"


@pytest.mark.contract("S3-1", "R-6")
async def test_every_path_answers_with_and_without_its_last_slash(app: App) -> None:
    for slash in ("", "/"):
        made = await app.post(f"/api/v1/tasks/summarize{slash}", {"content": "x"})
        assert made.status_code == 200
        task = made.json()["task_id"]
        for method, path in (
            ("GET", "/tasks"),
            ("GET", f"/tasks/{task}"),
            ("DELETE", f"/tasks/{task}"),  # live: canceled
            ("POST", f"/tasks/{task}/retry"),
            ("POST", "/tasks/requeue-orphaned"),
            ("GET", "/queues/status"),
            ("GET", "/queues/dlq"),
        ):
            response = await app.http.request(method, f"/api/v1{path}{slash}")
            assert response.status_code == 200, (method, path + slash, response.text)


@pytest.mark.contract("S3-2", "R-6")
async def test_an_unknown_task_is_404_and_cannot_be_retried(app: App) -> None:
    for method in ("GET", "DELETE"):
        response = await app.http.request(method, "/api/v1/tasks/nobody")
        assert (response.status_code, response.json()) == (404, {"detail": "Task not found"})
    response = await app.post("/api/v1/tasks/nobody/retry", None)
    assert (response.status_code, response.json()) == (400, {"detail": "Task cannot be retried"})


@pytest.mark.contract("S3-2", "R-8")
async def test_what_belongs_to_others_is_not_shown_here(app: App) -> None:
    worker = await app.worker(group="default", services=["greet"], concurrency=10)
    native = await app.submit("greet")
    sync = (await app.post("/api/openai", {"data": 1, "async": True})).json()["taskId"]
    session = await app.submit("greet", session_id="s")
    child = await born(app, parent=native)
    own_child = await born(app, profile="tasks", parent=native)
    own = await submitted(app)
    assert await listed(app) == [own, native]
    for task in (native, own):
        assert (await read(app, task))["task_id"] == task
    for task in (sync, session, child, own_child):
        for method, path, status in (
            ("GET", "", 404),
            ("DELETE", "", 404),
            ("POST", "/retry", 400),
        ):
            response = await app.http.request(method, f"/api/v1/tasks/{task}{path}")
            assert response.status_code == status, (method, task)
    await worker.task()


async def born(app: App, **fields: Any) -> str:
    """A task that no door would make like this."""
    task = a_task(**{"created_at": app.clock.now(), **fields})
    await app.onward.dispatcher.submit(task)
    return task.id


@pytest.mark.contract("S3-3", "R-6")
async def test_deleting_a_live_task_cancels_it(app: App) -> None:
    waiting = await submitted(app)
    response = await app.http.delete(f"/api/v1/tasks/{waiting}")
    assert (response.status_code, response.json()) == (200, {"task_id": waiting, "state": "FAILED"})
    assert (await read(app, waiting))["phase"] == "canceled"

    worker = await summarizer(app)
    running = await submitted(app)
    await worker.task()
    response = await app.http.delete(f"/api/v1/tasks/{running}")
    assert response.json() == {"task_id": running, "state": "ACTIVE"}, "it was asked to stop"
    assert await worker.receive() == {"type": "cancel", "taskId": running}
    await worker.answer(running, "too late")
    await app.settled()
    found = await read(app, running)
    assert (found["state"], found["phase"], found["result"]) == ("FAILED", "canceled", None)
    assert (found["error_type"], found["error_history"]) == ("Canceled", [])


@pytest.mark.contract("S3-3", "R-6")
async def test_deleting_a_finished_task_forgets_it(app: App) -> None:
    worker = await summarizer(app)
    done = await submitted(app)
    await worker.answer((await worker.task())["taskId"], "short")
    await app.settled()
    lost = await dead(app, worker)
    for task, state in ((done, "COMPLETED"), (lost, "DLQ")):
        response = await app.http.delete(f"/api/v1/tasks/{task}")
        assert (response.status_code, response.json()) == (200, {"task_id": task, "state": state})
        assert (await app.get(f"/api/v1/tasks/{task}")).status_code == 404
        assert (await app.http.delete(f"/api/v1/tasks/{task}")).status_code == 404
    assert await listed(app) == []
    assert (await app.get("/api/v1/queues/dlq")).json() == []
    assert not await app.onward.backend.tasks.counts()


@pytest.mark.contract("S3-3")
async def test_a_task_that_ends_while_it_is_being_deleted_is_forgotten(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await summarizer(app)
    task = await submitted(app)
    await worker.task()
    cancel = app.onward.dispatcher.cancel

    async def overtaken(id: str) -> Task:
        await worker.answer(id, "short")
        await app.settled()
        return await cancel(id)

    monkeypatch.setattr(app.onward.dispatcher, "cancel", overtaken)
    response = await app.http.delete(f"/api/v1/tasks/{task}")
    assert response.json() == {"task_id": task, "state": "COMPLETED"}
    assert (await app.get(f"/api/v1/tasks/{task}")).status_code == 404


@pytest.mark.contract("S3-3")
async def test_what_is_still_being_read_is_not_called_deleted(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.doors.tasks.router.ERASING_PAUSE_S", 0)
    documents = app.onward.backend.documents
    await documents.put("cursor", "slow", '"0"', now=app.clock.now())
    worker = await summarizer(app)
    task = await dead(app, worker)
    response = await app.http.delete(f"/api/v1/tasks/{task}")
    assert (response.status_code, list(response.json())) == (503, ["detail"])
    assert (await read(app, task))["state"] == "DLQ"
    await documents.delete("cursor", "slow")
    assert (await app.http.delete(f"/api/v1/tasks/{task}")).status_code == 200


@pytest.mark.contract("S3-3", "R-6")
async def test_lists_are_newest_first_and_by_the_doors_own_states(app: App) -> None:
    worker = await summarizer(app)
    lost = await dead(app, worker)
    failed = await submitted(app)
    await fail(app, worker)
    done = await submitted(app)
    await worker.answer((await worker.task())["taskId"], "short")
    await app.settled()
    active = await submitted(app)
    await worker.task()
    pending = [await submitted(app, f"text {n}") for n in range(3)]
    later = await app.post("/api/v2/tasks", {"type": "greet", "delay_ms": 5000})
    waits = later.json()["id"]
    canceled = await submitted(app)
    await app.http.delete(f"/api/v1/tasks/{canceled}")

    everything = [canceled, waits, *reversed(pending), active, done, failed, lost]
    assert await listed(app) == everything
    assert await listed(app, limit=2) == everything[:2]
    assert await listed(app, status="") == everything
    assert await listed(app, status="PENDING") == [waits, *reversed(pending)]
    assert await listed(app, status="PENDING", limit=1) == [waits]
    assert await listed(app, status="ACTIVE") == [active]
    assert await listed(app, status="COMPLETED") == [done]
    assert await listed(app, status="FAILED") == [canceled, failed]
    assert await listed(app, status="DLQ") == [lost]
    whole = (await app.get("/api/v1/tasks/")).json()
    assert whole == [await read(app, task) for task in everything]


@pytest.mark.contract("S3-3")
async def test_a_list_looks_further_when_most_tasks_are_of_another_phase(app: App) -> None:
    worker = await summarizer(app)
    failed = await submitted(app)
    await fail(app, worker)
    for _ in range(7):
        await app.post("/api/v2/tasks", {"type": "greet", "delay_ms": 5000})
    assert await listed(app, status="FAILED", limit=1) == [failed]


@pytest.mark.contract("S3-3", "S3-6")
@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/tasks/?limit=0",
        "/api/v1/tasks/?limit=1001",
        "/api/v1/tasks/?limit=-1",
        "/api/v1/tasks/?limit=many",
        "/api/v1/tasks/?limit=1.5",
        "/api/v1/tasks/?limit=",
        "/api/v1/tasks/?status=LOST",
        "/api/v1/tasks/?status=pending",
        "/api/v1/queues/dlq?limit=0",
        "/api/v1/queues/dlq?limit=1001",
        "/api/v1/queues/dlq?limit=x",
    ],
)
async def test_a_bad_parameter_is_named(app: App, path: str) -> None:
    response = await app.get(path)
    assert response.status_code == 422
    assert list(response.json()) == ["detail"]
    assert response.json()["detail"].startswith("status: " if "status" in path else "limit: ")


async def test_a_list_reads_no_log_of_what_never_failed(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        await submitted(app, f"text {n}")

    async def refuse(**_: Any) -> None:
        raise AssertionError("the log was read")

    monkeypatch.setattr(app.onward.backend.tasks, "events", refuse)
    assert len(await listed(app)) == 3


async def test_errors_are_found_behind_many_other_events(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.core.follow.BATCH", 3)
    worker = await summarizer(app)
    task = await submitted(app)
    await fail(app, worker)
    await app.advance(6_000)
    await worker.task()
    for n in range(8):
        await worker.send({"type": "chunk", "taskId": task, "data": n})
    await worker.answer(task, error="flaky", status=503)
    await app.settled()
    assert [entry["attempt"] for entry in (await read(app, task))["error_history"]] == [1, 2]


@pytest.mark.contract("S3-6", "R-4")
async def test_the_queues_are_told_in_one_answer(app: App) -> None:
    empty = (await app.get("/api/v1/queues/status")).json()
    none = {"PENDING": 0, "ACTIVE": 0, "COMPLETED": 0, "FAILED": 0, "DLQ": 0}
    assert empty == {
        "queues": {"primary": 0, "retry": 0, "scheduled": 0, "dlq": 0},
        "states": none,
        "retry_ratio": 0.3,
    }
    worker = await summarizer(app)
    lost = await dead(app, worker)
    await submitted(app)
    await fail(app, worker)
    await submitted(app)
    await worker.answer((await worker.task())["taskId"], "short")
    await app.settled()
    await submitted(app)
    await worker.task()
    await submitted(app)
    await app.post("/api/v2/tasks", {"type": "greet"})
    status = (await app.get("/api/v1/queues/status")).json()
    assert status["queues"] == {"primary": 2, "retry": 0, "scheduled": 1, "dlq": 1}
    assert status["states"] == {"PENDING": 2, "ACTIVE": 1, "COMPLETED": 1, "FAILED": 1, "DLQ": 1}
    dlq = (await app.get("/api/v1/queues/dlq")).json()
    assert dlq == [await read(app, lost)]


@pytest.mark.contract("S3-6")
async def test_dead_letters_come_newest_first(app: App) -> None:
    worker = await summarizer(app)
    made = [await dead(app, worker) for _ in range(3)]
    dlq = (await app.get("/api/v1/queues/dlq?limit=2")).json()
    assert [task["task_id"] for task in dlq] == [made[2], made[1]]


@pytest.mark.contract("S3-6", "S3-8", "R-9")
async def test_the_more_retries_wait_the_smaller_is_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_app(retry_ratio=0.6) as app:
        for waiting, share in ((999, 0.6), (1000, 0.4), (5000, 0.4), (5001, 0.2)):

            async def counts(waiting: int = waiting) -> dict[tuple[str, Lane, State], int]:
                return {
                    ("a", Lane.RETRY, State.QUEUED): waiting - 1,
                    ("b", Lane.RETRY, State.QUEUED): 1,
                    ("b", Lane.PRIMARY, State.QUEUED): 7,
                }

            monkeypatch.setattr(app.onward.backend.tasks, "counts", counts)
            status = (await app.get("/api/v1/queues/status")).json()
            assert (status["queues"]["retry"], status["retry_ratio"]) == (waiting, share)


@pytest.mark.contract("S3-1")
async def test_an_unexpected_fault_tells_nothing_of_the_inside(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: list[Submission], *__: Any, **___: Any) -> None:
        raise RuntimeError("secret: password=hunter2")

    monkeypatch.setattr(app.onward.backend.tasks, "insert", broken)
    response = await app.post(SUMMARIZE, {"content": "x"})
    assert (response.status_code, response.content) == (500, b'{"detail":"Internal error"}')
