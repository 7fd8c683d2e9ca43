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
from tests.house import House, open_house
from tests.support import a_task


@pytest.mark.contract("S3-1", "S3-2", "R-6")
async def test_a_text_to_summarize_is_accepted_as_pending(house: House) -> None:
    response = await house.post(SUMMARIZE, {"content": "Long text"})
    task = response.json()["task_id"]
    assert (response.status_code, response.json()) == (200, {"task_id": task, "state": "PENDING"})
    found = await house.get(f"/api/v1/tasks/{task}")
    assert found.json() == detail(house, task)
    assert list(found.json()) == list(TaskDetail.__struct_fields__), "the seed's order, then ours"


@pytest.mark.contract("S3-1", "R-6")
async def test_it_is_pending_also_when_an_idle_worker_has_it_already(house: House) -> None:
    worker = await summarizer(house)
    response = await house.post(SUMMARIZE, {"content": "Long text"})
    assert response.json()["state"] == "PENDING"
    assert (await worker.task())["payload"] == {"content": "Long text"}
    assert (await read(house, response.json()["task_id"]))["state"] == "ACTIVE"


@pytest.mark.contract("S3-1")
@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 400, "not JSON"),
        (b"", 400, "not JSON"),
        (b'{"content":NaN}', 400, "not JSON"),
        (b'{"content":"\\u0000"}', 400, "NUL"),
        (b'{"content":"\\ud800"}', 400, "surrogate"),
        (b"\xff", 400, ""),
        (b"[" * 65 + b"]" * 65, 400, "64 levels"),
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
    house: House, body: bytes, status: int, says: str, slash: str
) -> None:
    response = await house.http.post(f"/api/v1/tasks/summarize{slash}", content=body)
    assert response.status_code == status, response.text
    assert list(response.json()) == ["detail"]
    assert says in response.json()["detail"]
    assert response.json()["detail"]
    assert not await house.onward.backend.tasks.counts()


@pytest.mark.contract("S3-1")
async def test_a_body_over_a_mebibyte_is_too_large(house: House) -> None:
    response = await house.http.post(SUMMARIZE, content=b'{"content":"' + b"x" * (1 << 20) + b'"}')
    assert (response.status_code, list(response.json())) == (413, ["detail"])


@pytest.mark.contract("S3-1", "R-1")
@pytest.mark.parametrize("payload", [{"text": "ho"}, [1, 2], "plain", 7, None, {"content": [1]}])
async def test_the_body_is_the_payload_of_any_type_that_somebody_serves(
    house: House, payload: Any
) -> None:
    worker = await house.worker(group=None, services=["translate"])
    response = await house.http.post("/api/v1/tasks/translate/", content=json.dumps(payload))
    assert response.status_code == 200, response.text
    assert (await worker.task())["payload"] == payload
    task = await read(house, response.json()["task_id"])
    assert (task["task_type"], task["queue"]) == ("translate", "translate")
    assert task["payload"] == payload
    assert task["content"] == (payload.get("content") if isinstance(payload, dict) else None)


@pytest.mark.contract("S3-1")
async def test_a_type_that_nobody_registered_is_refused_at_once(house: House) -> None:
    await house.worker(group="gpu", services=["translate"])
    for type_ in ("sumarize", "group:gpu", "%00", "a%0Ab"):
        response = await house.post(f"/api/v1/tasks/{type_}/", {"content": "x"})
        assert response.status_code == 404, type_
        assert list(response.json()) == ["detail"]
        assert "is not registered; connect a worker" in response.json()["detail"]
    assert not await house.onward.backend.tasks.counts()


@pytest.mark.contract("S3-1")
async def test_a_worker_that_is_away_for_a_moment_does_not_turn_its_callers_away(
    house: House,
) -> None:
    worker = await house.worker(group=None, services=["translate"])
    await submitted(house, type_="translate")
    await worker.close()
    waiting = await submitted(house, type_="translate")
    assert (await read(house, waiting))["state"] == "PENDING"


@pytest.mark.contract("S3-1", "R-2")
async def test_a_type_of_the_stream_workers_is_registered() -> None:
    async with open_house(stream_types=("tool",)) as house:
        task = await submitted(house, type_="tool")
        assert (await stored(house, task)).profile == "tasks"
    async with open_house(stream_types=("*",)) as house:
        await submitted(house, type_="anything")


@pytest.mark.contract("S3-1", "N-11", "S1-11")
async def test_what_a_declared_service_says_holds_at_this_door_too(house: House) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    body = {
        "name": "greeter", "task_types": ["greet"], "schema": {"greet": schema},
        "requires_approval": True, "timeout_ms": 5000, "max_retries": 1,
    }  # fmt: skip
    assert (await house.post("/api/v2/services", body)).status_code == 201
    bad = await house.post("/api/v1/tasks/greet/", {"name": 7})
    assert bad.status_code == 422
    assert bad.json() == {
        "detail": "payload/name does not fit 'greet': 7 is not of type \"string\"; "
        "GET /api/v2/services/greeter shows the schema"
    }
    response = await house.post("/api/v1/tasks/greet/", {"name": "Ada"})
    assert response.json()["state"] == "PENDING"
    task = response.json()["task_id"]
    found = await read(house, task)
    assert (found["state"], found["phase"]) == ("ACTIVE", "waiting_approval")
    assert found["max_retries"] == 1
    assert (await stored(house, task)).attempt_ms == 5000
    approved = await house.post(f"/api/v2/approvals/{task}/approve", {"by": "ada"})
    assert approved.status_code == 200, approved.text
    assert (await read(house, task))["state"] == "PENDING"


@pytest.mark.contract("S3-1", "R-6")
async def test_every_path_answers_with_and_without_its_last_slash(house: House) -> None:
    for slash in ("", "/"):
        made = await house.post(f"/api/v1/tasks/summarize{slash}", {"content": "x"})
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
            response = await house.http.request(method, f"/api/v1{path}{slash}")
            assert response.status_code == 200, (method, path + slash, response.text)


@pytest.mark.contract("S3-2", "R-6")
async def test_an_unknown_task_is_404_and_cannot_be_retried(house: House) -> None:
    for method in ("GET", "DELETE"):
        response = await house.http.request(method, "/api/v1/tasks/nobody")
        assert (response.status_code, response.json()) == (404, {"detail": "Task not found"})
    response = await house.post("/api/v1/tasks/nobody/retry", None)
    assert (response.status_code, response.json()) == (400, {"detail": "Task cannot be retried"})


@pytest.mark.contract("S3-2", "R-8")
async def test_what_belongs_to_others_is_not_shown_here(house: House) -> None:
    worker = await house.worker(group="default", services=["greet"], concurrency=10)
    native = (await house.post("/api/v2/tasks", {"type": "greet"})).json()["id"]
    sync = (await house.post("/api/openai", {"data": 1, "async": True})).json()["taskId"]
    session = (await house.post("/api/v2/tasks", {"type": "greet", "session_id": "s"})).json()["id"]
    child = await born(house, parent=native)
    own_child = await born(house, profile="tasks", parent=native)
    own = await submitted(house)
    assert await listed(house) == [own, native]
    for task in (native, own):
        assert (await read(house, task))["task_id"] == task
    for task in (sync, session, child, own_child):
        for method, path, status in (
            ("GET", "", 404),
            ("DELETE", "", 404),
            ("POST", "/retry", 400),
        ):
            response = await house.http.request(method, f"/api/v1/tasks/{task}{path}")
            assert response.status_code == status, (method, task)
    await worker.task()


async def born(house: House, **fields: Any) -> str:
    """A task that no door would make like this."""
    task = a_task(**{"created_at": house.clock.now(), **fields})
    await house.onward.dispatcher.submit(task)
    return task.id


@pytest.mark.contract("S3-3", "R-6")
async def test_deleting_a_live_task_cancels_it(house: House) -> None:
    waiting = await submitted(house)
    response = await house.http.delete(f"/api/v1/tasks/{waiting}")
    assert (response.status_code, response.json()) == (200, {"task_id": waiting, "state": "FAILED"})
    assert (await read(house, waiting))["phase"] == "canceled"

    worker = await summarizer(house)
    running = await submitted(house)
    await worker.task()
    response = await house.http.delete(f"/api/v1/tasks/{running}")
    assert response.json() == {"task_id": running, "state": "ACTIVE"}, "it was asked to stop"
    assert await worker.receive() == {"type": "cancel", "taskId": running}
    await worker.answer(running, "too late")
    await house.settled()
    found = await read(house, running)
    assert (found["state"], found["phase"], found["result"]) == ("FAILED", "canceled", None)


@pytest.mark.contract("S3-3", "R-6")
async def test_deleting_a_finished_task_forgets_it(house: House) -> None:
    worker = await summarizer(house)
    done = await submitted(house)
    await worker.answer((await worker.task())["taskId"], "short")
    await house.settled()
    lost = await dead(house, worker)
    for task, state in ((done, "COMPLETED"), (lost, "DLQ")):
        response = await house.http.delete(f"/api/v1/tasks/{task}")
        assert (response.status_code, response.json()) == (200, {"task_id": task, "state": state})
        assert (await house.get(f"/api/v1/tasks/{task}")).status_code == 404
        assert (await house.http.delete(f"/api/v1/tasks/{task}")).status_code == 404
    assert await listed(house) == []
    assert (await house.get("/api/v1/queues/dlq")).json() == []
    assert not await house.onward.backend.tasks.counts()


@pytest.mark.contract("S3-3")
async def test_a_task_that_ends_while_it_is_being_deleted_is_forgotten(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await summarizer(house)
    task = await submitted(house)
    await worker.task()
    cancel = house.onward.dispatcher.cancel

    async def overtaken(id: str) -> Task:
        await worker.answer(id, "short")
        await house.settled()
        return await cancel(id)

    monkeypatch.setattr(house.onward.dispatcher, "cancel", overtaken)
    response = await house.http.delete(f"/api/v1/tasks/{task}")
    assert response.json() == {"task_id": task, "state": "COMPLETED"}
    assert (await house.get(f"/api/v1/tasks/{task}")).status_code == 404


@pytest.mark.contract("S3-3")
async def test_what_is_still_being_read_is_not_called_deleted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.doors.tasks.router.ERASING_PAUSE_S", 0)
    documents = house.onward.backend.documents
    await documents.put("cursor", "slow", '"0"', now=house.clock.now())
    worker = await summarizer(house)
    task = await dead(house, worker)
    response = await house.http.delete(f"/api/v1/tasks/{task}")
    assert (response.status_code, list(response.json())) == (503, ["detail"])
    assert (await read(house, task))["state"] == "DLQ"
    await documents.delete("cursor", "slow")
    assert (await house.http.delete(f"/api/v1/tasks/{task}")).status_code == 200


@pytest.mark.contract("S3-3", "R-6")
async def test_lists_are_newest_first_and_by_the_doors_own_states(house: House) -> None:
    worker = await summarizer(house)
    lost = await dead(house, worker)
    failed = await submitted(house)
    await fail(house, worker)
    done = await submitted(house)
    await worker.answer((await worker.task())["taskId"], "short")
    await house.settled()
    active = await submitted(house)
    await worker.task()
    pending = [await submitted(house, f"text {n}") for n in range(3)]
    later = await house.post("/api/v2/tasks", {"type": "greet", "delay_ms": 5000})
    waits = later.json()["id"]
    canceled = await submitted(house)
    await house.http.delete(f"/api/v1/tasks/{canceled}")

    everything = [canceled, waits, *reversed(pending), active, done, failed, lost]
    assert await listed(house) == everything
    assert await listed(house, limit=2) == everything[:2]
    assert await listed(house, status="") == everything
    assert await listed(house, status="PENDING") == [waits, *reversed(pending)]
    assert await listed(house, status="PENDING", limit=1) == [waits]
    assert await listed(house, status="ACTIVE") == [active]
    assert await listed(house, status="COMPLETED") == [done]
    assert await listed(house, status="FAILED") == [canceled, failed]
    assert await listed(house, status="DLQ") == [lost]
    whole = (await house.get("/api/v1/tasks/")).json()
    assert whole == [await read(house, task) for task in everything]


@pytest.mark.contract("S3-3")
async def test_a_list_looks_further_when_most_tasks_are_of_another_phase(house: House) -> None:
    worker = await summarizer(house)
    failed = await submitted(house)
    await fail(house, worker)
    for _ in range(7):
        await house.post("/api/v2/tasks", {"type": "greet", "delay_ms": 5000})
    assert await listed(house, status="FAILED", limit=1) == [failed]


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
async def test_a_bad_parameter_is_named(house: House, path: str) -> None:
    response = await house.get(path)
    assert response.status_code == 422
    assert list(response.json()) == ["detail"]
    assert response.json()["detail"].startswith("status: " if "status" in path else "limit: ")


async def test_a_list_reads_no_log_of_what_never_failed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        await submitted(house, f"text {n}")

    async def refuse(**_: Any) -> None:
        raise AssertionError("the log was read")

    monkeypatch.setattr(house.onward.backend.tasks, "events", refuse)
    assert len(await listed(house)) == 3


async def test_errors_are_found_behind_many_other_events(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.core.follow.BATCH", 3)
    worker = await summarizer(house)
    task = await submitted(house)
    await fail(house, worker)
    await house.advance(6_000)
    await worker.task()
    for n in range(8):
        await worker.send({"type": "chunk", "taskId": task, "data": n})
    await worker.answer(task, error="flaky", status=503)
    await house.settled()
    assert [entry["attempt"] for entry in (await read(house, task))["error_history"]] == [1, 2]


@pytest.mark.contract("S3-6", "R-4")
async def test_the_queues_are_told_in_one_answer(house: House) -> None:
    empty = (await house.get("/api/v1/queues/status")).json()
    none = {"PENDING": 0, "ACTIVE": 0, "COMPLETED": 0, "FAILED": 0, "DLQ": 0}
    assert empty == {
        "queues": {"primary": 0, "retry": 0, "scheduled": 0, "dlq": 0},
        "states": none,
        "retry_ratio": 0.3,
    }
    worker = await summarizer(house)
    lost = await dead(house, worker)
    await submitted(house)
    await fail(house, worker)
    await submitted(house)
    await worker.answer((await worker.task())["taskId"], "short")
    await house.settled()
    await submitted(house)
    await worker.task()
    await submitted(house)
    await house.post("/api/v2/tasks", {"type": "greet"})
    status = (await house.get("/api/v1/queues/status")).json()
    assert status["queues"] == {"primary": 2, "retry": 0, "scheduled": 1, "dlq": 1}
    assert status["states"] == {"PENDING": 2, "ACTIVE": 1, "COMPLETED": 1, "FAILED": 1, "DLQ": 1}
    dlq = (await house.get("/api/v1/queues/dlq")).json()
    assert dlq == [await read(house, lost)]


@pytest.mark.contract("S3-6")
async def test_dead_letters_come_newest_first(house: House) -> None:
    worker = await summarizer(house)
    made = [await dead(house, worker) for _ in range(3)]
    dlq = (await house.get("/api/v1/queues/dlq?limit=2")).json()
    assert [task["task_id"] for task in dlq] == [made[2], made[1]]


@pytest.mark.contract("S3-6", "S3-8", "R-9")
async def test_the_more_retries_wait_the_smaller_is_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_house(retry_ratio=0.6) as house:
        for waiting, share in ((999, 0.6), (1000, 0.4), (5000, 0.4), (5001, 0.2)):

            async def counts(waiting: int = waiting) -> dict[tuple[str, Lane, State], int]:
                return {
                    ("a", Lane.RETRY, State.QUEUED): waiting - 1,
                    ("b", Lane.RETRY, State.QUEUED): 1,
                    ("b", Lane.PRIMARY, State.QUEUED): 7,
                }

            monkeypatch.setattr(house.onward.backend.tasks, "counts", counts)
            status = (await house.get("/api/v1/queues/status")).json()
            assert (status["queues"]["retry"], status["retry_ratio"]) == (waiting, share)


@pytest.mark.contract("S3-1")
async def test_an_unexpected_fault_tells_nothing_of_the_inside(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: list[Submission], *__: Any, **___: Any) -> None:
        raise RuntimeError("secret: password=hunter2")

    monkeypatch.setattr(house.onward.backend.tasks, "insert", broken)
    response = await house.post(SUMMARIZE, {"content": "x"})
    assert (response.status_code, response.content) == (500, b'{"detail":"Internal error"}')
