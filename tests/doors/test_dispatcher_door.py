"""The dispatcher door, byte for byte: bodies, orders of checks, and the worker's frames."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.wire.frames import LARGEST
from tests.running_app import App, running_app
from tests.support import bad_json


@pytest.mark.contract("S0-9")
@pytest.mark.parametrize(
    ("body", "details"),
    [
        (b"[]", None),
        (b'"text"', None),
        (b"\xff\xfe", None),
        (b"{}", "messages or data is required"),
        (b'{"data":null}', "messages or data is required"),
        (b'{"messages":"hi"}', "messages must be a list"),
        (b'{"messages":null}', "messages must be a list"),
        (b'{"data":1,"group":7}', "group must be a string"),
        (b'{"data":1,"group":""}', "group must be 1 to 128 printable characters"),
        (b'{"data":1,"async":"yes"}', "async must be true or false"),
        (b'{"data":1,"timeout":"5s"}', "timeout must be a number of milliseconds"),
        (b'{"data":1,"timeout":true}', "timeout must be a number of milliseconds"),
        (b'{"data":1,"timeout":null}', "timeout must be a number of milliseconds"),
        (b'{"data":1,"model":5}', "model must be a string"),
        *((body, None) for body, _ in bad_json("data")),
    ],
)
async def test_what_makes_no_sense_is_refused_and_leaves_nothing_behind(
    app: App, body: bytes, details: str | None
) -> None:
    response = await app.http.post("/api/openai", content=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert list(response.json()) == ["error"]
    assert error.startswith("Invalid request: ")
    assert error != "Invalid request: "
    if details is not None:
        assert error == f"Invalid request: {details}"
    assert not await app.onward.backend.tasks.counts()


@pytest.mark.contract("S0-9")
async def test_a_body_over_a_mebibyte_is_too_large(app: App) -> None:
    response = await app.http.post("/api/openai", content=b'{"data":"' + b"x" * (1 << 20) + b'"}')
    assert response.status_code == 413
    assert list(response.json()) == ["error"]


@pytest.mark.contract("S0-9")
async def test_an_unexpected_fault_tells_nothing_of_the_inside(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret: password=hunter2")

    monkeypatch.setattr(app.onward.backend.tasks, "insert", broken)
    response = await app.post("/api/openai", {"data": 1, "async": True})
    assert response.status_code == 500
    assert response.content == b'{"error":"Internal error"}'
    assert response.headers["x-request-id"]


@pytest.mark.contract("S0-7")
async def test_checks_come_in_order_bad_request_then_no_worker_then_full() -> None:
    async with running_app(max_queue_length=0) as app:
        bad = await app.post("/api/openai", {"group": "g"})
        assert bad.status_code == 400
        nobody = await app.post("/api/openai", {"data": 1, "group": "g"})
        assert nobody.content == b'{"error":"No worker available"}'
        full = await app.post("/api/openai", {"data": 1, "group": "g", "async": True})
        assert full.content == b'{"error":"Queue is full"}'
        assert (nobody.status_code, full.status_code) == (503, 503)


@pytest.mark.contract("S0-7", "S0-6")
async def test_a_queue_without_places_still_serves_idle_workers() -> None:
    async with running_app(max_queue_length=0) as app:
        worker = await app.worker(group="g")
        call = asyncio.ensure_future(app.post("/api/openai", {"data": 1, "group": "g"}))
        await worker.answer((await worker.task())["taskId"], "done")
        assert (await call).json()["result"] == "done"


@pytest.mark.contract("S0-7")
async def test_when_the_last_worker_leaves_queued_callers_wait_until_their_timeout(
    app: App,
) -> None:
    worker = await app.worker(group="g")
    first = asyncio.ensure_future(app.post("/api/openai", {"data": 1, "group": "g"}))
    await worker.task()
    second = asyncio.ensure_future(app.post("/api/openai", {"data": 2, "group": "g"}))
    await app.settled()
    await worker.close()
    assert (await first).content == b'{"error":"Worker disconnected"}'
    assert not second.done()
    await app.advance(60_000)
    assert (await second).content == b'{"error":"Task timeout"}'


@pytest.mark.contract("S0-7", "S0-8")
async def test_a_second_connection_of_a_live_worker_replaces_the_first(app: App) -> None:
    first = await app.worker(workerId="gpu-1", group="g")
    call = asyncio.ensure_future(app.post("/api/openai", {"data": 1, "group": "g"}))
    await first.task()
    second = await app.worker(workerId="gpu-1", group="g")
    assert (await call).content == b'{"error":"Worker disconnected"}'
    with pytest.raises(ConnectionError):
        await first.receive()
    again = asyncio.ensure_future(app.post("/api/openai", {"data": 2, "group": "g"}))
    await second.answer((await second.task())["taskId"], 2)
    assert (await again).json()["result"] == 2
    await first.close()
    members = (await app.get("/api/v2/workers")).json()["items"]
    assert [member["id"] for member in members] == ["gpu-1"]


@pytest.mark.contract("S0-5")
async def test_a_polled_task_times_out_from_its_dispatch_and_when_queued_too_long() -> None:
    async with running_app(queue_age_ms=50_000) as app:
        body = {"data": 1, "group": "g", "async": True, "timeout": 5_000}
        queued = (await app.post("/api/openai", body)).json()["taskId"]
        await app.advance(49_999)
        worker = await app.worker(group="g")
        assert (await worker.task())["timeout"] == 5_000
        stuck = (await app.post("/api/openai", body)).json()["taskId"]
        await app.advance(5_000)
        failed = (await app.get(f"/api/task/{queued}")).json()
        assert (failed["status"], failed["error"]) == ("failed", "Task timeout")
        await worker.close()
        await app.advance(50_000)
        failed = (await app.get(f"/api/task/{stuck}")).json()
        assert (failed["status"], failed["error"]) == ("failed", "Task timeout")


@pytest.mark.contract("S0-5")
async def test_a_timed_out_workers_slot_is_free_at_its_late_answer(app: App) -> None:
    worker = await app.worker(group="g")
    call = asyncio.ensure_future(
        app.post("/api/openai", {"data": 1, "group": "g", "timeout": 5_000})
    )
    task = await worker.task()
    await app.advance(5_000)
    await call
    assert (await worker.receive())["type"] == "cancel"
    nxt = asyncio.ensure_future(app.post("/api/openai", {"data": 2, "group": "g"}))
    await app.settled()
    assert worker.pending() == 0
    await worker.answer(task["taskId"], "late")
    second = await worker.task()
    assert second["payload"] == {"data": 2}
    await worker.answer(second["taskId"], "in time")
    assert (await nxt).json()["result"] == "in time"


@pytest.mark.contract("S0-5")
async def test_a_timed_out_workers_slot_is_free_a_second_later_without_an_answer(app: App) -> None:
    worker = await app.worker(group="g")
    call = asyncio.ensure_future(
        app.post("/api/openai", {"data": 1, "group": "g", "timeout": 5_000})
    )
    await worker.task()
    await app.advance(5_000)
    await call
    nxt = asyncio.ensure_future(app.post("/api/openai", {"data": 2, "group": "g"}))
    assert (await worker.receive())["type"] == "cancel"
    second = await worker.receive()
    assert second["payload"] == {"data": 2}
    await worker.answer(second["taskId"], 2)
    assert (await nxt).status_code == 200


@pytest.mark.contract("S0-5")
@pytest.mark.parametrize(
    ("timeout", "effective"),
    [
        ("1" + "0" * 19, 600_000),
        ("9" * 5_000, 600_000),
        ("-" + "9" * 5_000, 5_000),
        ("1e300", 600_000),
        ("-0.5", 5_000),
    ],
)
async def test_any_number_is_clamped(app: App, timeout: str, effective: int) -> None:
    worker = await app.worker(group="g")
    body = '{"data": "\\u0041", "group": "g", "async": true, "timeout": %s}'
    response = await app.http.post("/api/openai", content=(body % timeout).encode())
    assert response.status_code == 200
    frame = await worker.task()
    assert (frame["timeout"], frame["payload"]) == (effective, {"data": "A"})
    both = (body % f'{timeout}, "more": [{"9" * 30}]').encode()
    refused = await app.http.post("/api/openai", content=both)
    assert "an integer of more than 64 bits" in refused.json()["error"]


@pytest.mark.contract("S0-4")
async def test_the_operators_own_timeout_may_be_beyond_the_bounds() -> None:
    async with running_app(task_timeout_ms=1_000) as app:
        worker = await app.worker(group="g")
        await app.post("/api/openai", {"data": 1, "group": "g", "async": True})
        assert (await worker.task())["timeout"] == 1_000


@pytest.mark.contract("S0-12")
async def test_the_frames_of_a_worker_are_those_of_the_contract(app: App) -> None:
    worker = await app.worker(group="g", workerId="w-1")
    assert worker.id == "w-1"
    body = {"model": "m", "messages": [], "data": [1], "group": "g", "timeout": 9_000, "x": "y"}
    call = asyncio.ensure_future(app.post("/api/openai", body))
    frame = await worker.task()
    assert frame["group"] == "g"
    assert frame["payload"] == {"model": "m", "messages": [], "data": [1], "x": "y"}
    assert (frame["timeout"], frame["attempt"]) == (9_000, 1)
    await worker.send({"type": "progress", "taskId": frame["taskId"], "progress": 0.5})
    await worker.send({"type": "chunk", "taskId": frame["taskId"], "data": {"part": 1}})
    await worker.send({"type": "ping"})
    assert await worker.receive() == {"type": "pong"}
    await worker.answer(frame["taskId"], error="out of memory", errorType="Oom")
    response = await call
    assert (response.status_code, response.json()) == (500, {"error": "out of memory"})
    events = await app.events(frame["taskId"])
    types = [event["type"] for event in events]
    assert types == [
        "task.created", "task.claimed", "task.progress", "task.chunk", "task.failed",
    ]  # fmt: skip


@pytest.mark.contract("S0-12")
@pytest.mark.parametrize(
    "frame",
    [
        "not json",
        "[]",
        "{}",
        '{"type":"nonsense"}',
        '{"type":"taskResult"}',
        '{"type":"taskResult","taskId":"nobody-knows","result":1}',
        '{"type":"progress","taskId":"nobody-knows","progress":0.5}',
        '{"type":"progress","taskId":"x","progress":7}',
        '{"type":"chunk","taskId":"nobody-knows","data":1}',
        '{"type":"register"}',
        '{"type":"taskResult","taskId":7}',
    ],
)
async def test_a_frame_not_understood_gets_one_error_and_the_connection_stays(
    app: App, frame: str
) -> None:
    worker = await app.worker(group="g")
    await worker.send_text(frame)
    error = await worker.receive()
    assert error["type"] == "error"
    assert error["message"]
    await worker.send({"type": "ping"})
    assert await worker.receive() == {"type": "pong"}


@pytest.mark.contract("S0-8", "S0-12")
async def test_a_result_that_is_too_large_fails_its_own_task_alone(app: App) -> None:
    worker = await app.worker(group="g", concurrency=2)
    calls = [
        asyncio.ensure_future(app.post("/api/openai", {"data": n, "group": "g"})) for n in (1, 2)
    ]
    huge, small = (await worker.task())["taskId"], (await worker.task())["taskId"]
    await worker.answer(huge, "x" * LARGEST)
    error = await worker.receive()
    assert (error["type"], f"at most {LARGEST:,}" in error["message"]) == ("error", True)
    refused = await calls[0]
    assert (refused.status_code, "bytes" in refused.json()["error"]) == (500, True)
    await worker.send({"type": "chunk", "taskId": small, "data": "x" * LARGEST})
    assert (await worker.receive())["type"] == "error"
    await worker.answer(small, "fits")
    assert (await calls[1]).json()["result"] == "fits"


@pytest.mark.contract("S0-8", "S0-12")
@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("NaN", "not JSON"),
        (r'"\ud800"', "lone surrogate"),
        (r'1, "status": "no number"', "the fields of a taskResult"),
    ],
)
async def test_an_unreadable_result_fails_its_task_at_once(app: App, result: str, why: str) -> None:
    worker = await app.worker(group="g")
    call = asyncio.ensure_future(app.post("/api/openai", {"data": 1, "group": "g"}))
    task = (await worker.task())["taskId"]
    await worker.send_text(f'{{"type": "taskResult", "taskId": "{task}", "result": {result}}}')
    assert (await worker.receive())["type"] == "error"
    refused = await call
    assert (refused.status_code, why in refused.json()["error"]) == (500, True), refused.text
    await worker.send({"type": "ping"})
    assert await worker.receive() == {"type": "pong"}


@pytest.mark.contract("S0-12")
async def test_a_result_for_another_workers_task_is_refused(app: App) -> None:
    owner, thief = await app.worker(group="g"), await app.worker(group="other")
    call = asyncio.ensure_future(app.post("/api/openai", {"data": 1, "group": "g"}))
    task = (await owner.task())["taskId"]
    await thief.answer(task, "stolen")
    assert (await thief.receive())["type"] == "error"
    await owner.answer(task, "mine")
    assert (await call).json()["result"] == "mine"


@pytest.mark.contract("S0-12", "R-1")
async def test_a_worker_serves_its_group_and_the_types_it_names(app: App) -> None:
    worker = await app.worker(group="g", services=["greet"], concurrency=2)
    native = await app.post("/api/v2/tasks", {"type": "greet", "payload": {"name": "Ada"}})
    frame = await worker.task()
    assert frame["taskId"] == native.json()["id"]
    assert (frame["payload"], frame["group"], frame["service"]) == ({"name": "Ada"}, None, "greet")
    await worker.answer(frame["taskId"], "hello")
    await app.settled()
    task = await app.task(frame["taskId"])
    assert (task["state"], task["result"]) == ("succeeded", "hello")


@pytest.mark.contract("S0-11")
async def test_a_result_outlives_the_profiles_retention_if_its_ttl_is_longer() -> None:
    day = 86_400_000
    async with running_app(task_result_ttl_ms=day, retention={"sync": "1m"}) as app:
        worker = await app.worker(group="g")
        accepted = await app.post("/api/openai", {"data": 1, "group": "g", "async": True})
        await worker.answer((await worker.task())["taskId"], "done")
        await app.settled()
        path = f"/api/task/{accepted.json()['taskId']}"
        await app.advance(day - 1)
        assert (await app.get(path)).json()["result"] == "done"
        await app.advance(1)
        assert (await app.get(path)).status_code == 404


@pytest.mark.contract("R-8")
async def test_the_dispatcher_shows_only_its_own_tasks(app: App) -> None:
    native = await app.submit("greet")
    response = await app.get(f"/api/task/{native}")
    assert (response.status_code, response.content) == (404, b'{"error":"Task not found"}')


@pytest.mark.contract("R-3", "N-1")
async def test_the_built_in_worker_answers_the_default_group_while_no_other_does() -> None:
    async with running_app(builtin_worker=True) as app:
        first = await app.post("/api/openai", {"data": {"n": 1}})
        assert first.json()["result"] == {"n": 1}
        worker = await app.worker()
        call = asyncio.ensure_future(app.post("/api/openai", {"data": {"n": 2}}))
        await worker.answer((await worker.task())["taskId"], "by the real one")
        assert (await call).json()["result"] == "by the real one"
        await worker.close()
        third = await app.post("/api/openai", {"data": {"n": 3}})
        assert third.json()["result"] == {"n": 3}


@pytest.mark.contract("S0-4", "R-9")
def test_a_setting_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from pydantic import ValidationError

    from onward.settings import Settings

    monkeypatch.setenv("TASK_TIMEOUT_MS", "soon")
    with pytest.raises(ValidationError, match="TASK_TIMEOUT_MS"):
        Settings()
    monkeypatch.setenv("TASK_TIMEOUT_MS", "7000")
    assert Settings().task_timeout_ms == 7_000
