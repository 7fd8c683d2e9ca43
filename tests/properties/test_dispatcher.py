"""The dispatcher seed's eleven properties, each with at least a hundred examples (S0-13)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onward.core.task import new_id
from tests.running_app import App

pytestmark = [pytest.mark.contract("S0-13"), pytest.mark.slow]

a_hundred = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)

CAP = 5


@pytest.fixture
def app_settings() -> dict[str, Any]:
    return {"max_queue_length": CAP}


def a_group() -> str:
    """Examples share an application, not a group."""
    return f"g-{new_id()}"


async def poll(app: App, task: str) -> dict[str, Any]:
    body: dict[str, Any] = (await app.get(f"/api/task/{task}")).json()
    return body


async def submit(app: App, group: str, **more: Any) -> str:
    response = await app.post("/api/openai", {"data": 1, "group": group, "async": True, **more})
    assert response.status_code == 200, response.text
    task: str = response.json()["taskId"]
    return task


# **Feature: sync-task-response, Property 1: Task Result Resolution Correctness**
@pytest.mark.contract("S0-1")
@a_hundred
@given(results=st.lists(values, min_size=1, max_size=4), data=st.data())
async def test_every_caller_gets_the_exact_result_of_his_own_task(
    app: App, results: list[Any], data: st.DataObject
) -> None:
    group = a_group()
    worker = await app.worker(group=group, concurrency=len(results))
    calls = [
        asyncio.ensure_future(app.post("/api/openai", {"data": {"n": n}, "group": group}))
        for n in range(len(results))
    ]
    frames = [await worker.task() for _ in results]
    for frame in data.draw(st.permutations(frames)):
        await worker.answer(frame["taskId"], results[frame["payload"]["data"]["n"]])
    given_out = {frame["payload"]["data"]["n"]: frame["taskId"] for frame in frames}
    for n, call in enumerate(calls):
        response = await call
        assert response.status_code == 200
        assert response.json() == {"taskId": given_out[n], "result": results[n]}
    await worker.close()


# **Feature: sync-task-response, Property 2: Task Timeout Behavior**
@pytest.mark.contract("S0-5")
@a_hundred
@given(timeout=st.integers(5_000, 600_000), over=st.integers(0, 5_000), late=values)
async def test_a_task_that_takes_too_long_is_rejected_and_a_late_result_ignored(
    app: App, timeout: int, over: int, late: Any
) -> None:
    group = a_group()
    worker = await app.worker(group=group)
    body = {"data": 1, "group": group, "timeout": timeout}
    call = asyncio.ensure_future(app.post("/api/openai", body))
    frame = await worker.task()
    assert frame["timeout"] == timeout
    await app.advance(timeout - 1)
    assert (await poll(app, frame["taskId"]))["status"] == "executing"
    await app.advance(1 + over)
    response = await call
    assert (response.status_code, response.json()) == (500, {"error": "Task timeout"})
    assert (await worker.receive()) == {"type": "cancel", "taskId": frame["taskId"]}
    await worker.answer(frame["taskId"], late)
    await app.settled()
    status = await poll(app, frame["taskId"])
    assert (status["status"], status["error"]) == ("failed", "Task timeout")
    await worker.close()


# **Feature: sync-task-response, Property 3: Queue Length Enforcement**
@pytest.mark.contract("S0-6")
@a_hundred
@given(extra=st.integers(1, 12), waits=st.lists(st.booleans(), min_size=12, max_size=12))
async def test_a_full_queue_refuses_at_once_and_never_grows_over_its_bound(
    app: App, extra: int, waits: list[bool]
) -> None:
    group = a_group()
    worker = await app.worker(group=group)
    await submit(app, group)  # in the worker's hands, not in the queue
    bodies = [
        {"data": n, "group": group, "async": n < CAP or not waits[n % 12]}
        for n in range(CAP + extra)
    ]
    for body in bodies[:CAP]:
        assert (await app.post("/api/openai", body)).status_code == 200
    refused = await asyncio.gather(*[app.post("/api/openai", body) for body in bodies[CAP:]])
    for response in refused:
        assert (response.status_code, response.json()) == (503, {"error": "Queue is full"})
        assert int(response.headers["retry-after"]) >= 1
    await worker.close()


# **Feature: sync-task-response, Property 4: Queue Space Recovery**
@pytest.mark.contract("S0-6")
@a_hundred
@given(dequeued=st.integers(1, CAP))
async def test_each_dequeued_task_frees_exactly_one_place(app: App, dequeued: int) -> None:
    group = a_group()
    worker = await app.worker(group=group)
    for _ in range(1 + CAP):
        await submit(app, group)
    frame = await worker.task()
    for _ in range(dequeued):
        await worker.answer(frame["taskId"])
        frame = await worker.task()
    accepted = 0
    while True:
        body = {"data": 1, "group": group, "async": True}
        response = await app.post("/api/openai", body)
        if response.status_code == 503:
            break
        accepted += 1
    assert accepted == dequeued
    await worker.close()


# **Feature: sync-task-response, Property 5: Auto-Dispatch on Idle Worker**
@pytest.mark.contract("S0-10")
@a_hundred
@given(queued=st.integers(1, CAP), slots=st.integers(1, 3))
async def test_queued_work_goes_to_an_idle_worker_first_in_first_out(
    app: App, queued: int, slots: int
) -> None:
    group = a_group()
    tasks = [await submit(app, group) for _ in range(queued)]
    worker = await app.worker(group=group, concurrency=slots)
    seen: list[str] = []
    while len(seen) < queued:
        frame = await worker.task()
        seen.append(frame["taskId"])
        await worker.answer(frame["taskId"])
    assert seen == tasks
    await worker.close()


# **Feature: sync-task-response, Property 6: Dispatch State Management**
@pytest.mark.contract("S0-10")
@a_hundred
@given(workers=st.integers(1, 4), tasks=st.integers(1, 4))
async def test_a_task_goes_to_exactly_one_idle_worker_which_is_then_busy(
    app: App, workers: int, tasks: int
) -> None:
    group = a_group()
    crew = [await app.worker(group=group) for _ in range(workers)]
    submitted = [await submit(app, group) for _ in range(tasks)]
    await app.settled()
    busy = [worker for worker in crew if worker.pending()]
    assert len(busy) == min(workers, tasks)
    for worker in busy:
        assert worker.pending() == 1, "one at a time"
        frame = await worker.task()
        status = await poll(app, frame["taskId"])
        assert (status["status"], status["workerId"]) == ("executing", worker.id)
        submitted.remove(frame["taskId"])
    for task in submitted:
        assert (await poll(app, task))["status"] == "queued"
    for worker in crew:
        await worker.close()


# **Feature: sync-task-response, Property 7: Worker Disconnect Handling**
@pytest.mark.contract("S0-8")
@a_hundred
@given(running=st.integers(0, 3))
async def test_a_worker_that_disconnects_is_gone_and_its_tasks_are_rejected(
    app: App, running: int
) -> None:
    group = a_group()
    worker = await app.worker(group=group, concurrency=3)
    calls = [
        asyncio.ensure_future(app.post("/api/openai", {"data": n, "group": group}))
        for n in range(running)
    ]
    frames = [await worker.task() for _ in range(running)]
    await worker.close()
    for call in calls:
        response = await call
        assert (response.status_code, response.json()) == (500, {"error": "Worker disconnected"})
    for frame in frames:
        assert (await poll(app, frame["taskId"]))["error"] == "Worker disconnected"
    response = await app.post("/api/openai", {"data": 1, "group": group})
    assert (response.status_code, response.json()) == (503, {"error": "No worker available"})


# **Feature: sync-task-response, Property 8: Timeout Normalization**
@pytest.mark.contract("S0-4", "S0-5")
@a_hundred
@given(timeout=st.none() | st.integers(-(10**12), 10**12) | st.floats(-1e6, 1e6))
async def test_a_timeout_is_clamped_to_its_bounds(app: App, timeout: float | None) -> None:
    group = a_group()
    worker = await app.worker(group=group)
    await submit(app, group, **({} if timeout is None else {"timeout": timeout}))
    frame = await worker.task()
    effective = 60_000 if timeout is None else int(min(max(timeout, 5_000), 600_000))
    assert frame["timeout"] == effective
    await worker.close()


# **Feature: sync-task-response, Property 9: Async Mode Immediate Return**
@pytest.mark.contract("S0-2")
@a_hundred
@given(data=values.filter(lambda value: value is not None), worker_there=st.booleans())
async def test_an_async_submission_returns_at_once(app: App, data: Any, worker_there: bool) -> None:
    group = a_group()
    worker = await app.worker(group=group) if worker_there else None
    response = await app.post("/api/openai", {"data": data, "group": group, "async": True})
    status = "executing" if worker_there else "queued"
    assert response.status_code == 200
    assert response.json() == {"taskId": response.json()["taskId"], "status": status}
    if worker is not None:
        assert (await worker.task())["payload"] == {"data": data}
        await worker.close()


# **Feature: sync-task-response, Property 10: Task Status Query Correctness**
@pytest.mark.contract("S0-3")
@a_hundred
@given(ahead=st.integers(0, 3), result=values, error=st.none() | texts.filter(len))
async def test_a_status_query_tells_what_belongs_to_the_state(
    app: App, ahead: int, result: Any, error: str | None
) -> None:
    group = a_group()
    born = app.clock.now()
    before = [await submit(app, group) for _ in range(ahead)]
    task = await submit(app, group)
    queued = await poll(app, task)
    assert queued == {
        "taskId": task, "status": "queued", "enqueuedAt": born, "position": ahead + 1,
    }  # fmt: skip
    app.clock.advance(7)
    worker = await app.worker(group=group)
    for _ in before:
        await worker.answer((await worker.task())["taskId"])
    assert (await worker.task())["taskId"] == task
    assert await poll(app, task) == {
        "taskId": task, "status": "executing", "workerId": worker.id, "startedAt": born + 7,
    }  # fmt: skip
    app.clock.advance(11)
    await worker.answer(task, **({"result": result} if error is None else {"error": error}))
    await app.settled()
    over: dict[str, Any] = {"taskId": task}
    if error is None:
        over |= {"status": "completed", "result": result, "completedAt": born + 18}
    else:
        over |= {"status": "failed", "error": error, "failedAt": born + 18}
    assert await poll(app, task) == over
    await worker.close()


# **Feature: sync-task-response, Property 11: Task Result TTL**
@pytest.mark.contract("S0-11")
@a_hundred
@given(result=values, before=st.integers(0, 299_999), after=st.integers(0, 10_000_000))
async def test_a_result_is_readable_for_exactly_its_ttl(
    app: App, result: Any, before: int, after: int
) -> None:
    group = a_group()
    worker = await app.worker(group=group)
    task = await submit(app, group)
    await worker.answer((await worker.task())["taskId"], result)
    await app.settled()
    await app.advance(before)
    assert (await poll(app, task))["result"] == result
    await app.advance(299_999 - before)
    assert (await poll(app, task))["status"] == "completed"
    await app.advance(1 + after)
    response = await app.get(f"/api/task/{task}")
    assert (response.status_code, response.json()) == (404, {"error": "Task not found"})
    await worker.close()
