"""How far a task is, and what it has put out so far, by every way of asking."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward.native.tools.toolbox import LAST_OUTPUT, MOST_OUTPUT
from tests.agents.sessions import TYPE, Sessions
from tests.agents.test_figures import ledger
from tests.agents.test_ownership import spoken
from tests.running_app import SocketWorker, running_app
from tests.support import wait_until

PIECES: list[Any] = ["first", {"n": 2}, None]


@pytest.fixture(params=["sqlite", "redis"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[Sessions]:
    async with running_app(**ledger(request.param)) as app:
        yield Sessions(app)


async def begun(sessions: Sessions, session: str | None) -> tuple[SocketWorker, str]:
    """A task that is half done."""
    worker = await sessions.worker()
    task = await sessions.submit(session, backoff_ms=[0])
    await worker.task()
    await put_out(sessions, worker, task, PIECES)
    return worker, task


async def put_out(sessions: Sessions, worker: SocketWorker, task: str, pieces: list[Any]) -> None:
    for piece in pieces:
        await worker.send({"type": "chunk", "taskId": task, "data": piece})
    said = {"type": "progress", "taskId": task, "progress": 0.5, "message": "half"}
    await worker.send(said)

    async def written() -> bool:
        found = (await sessions.app.get(f"/api/v2/tasks/{task}/events?limit=1000")).json()["items"]
        since = [event["type"] for event in found][::-1]
        since = since[: since.index("task.claimed")]
        return "task.progress" in since and since.count("task.chunk") == len(pieces)

    await wait_until(written)


async def result(sessions: Sessions, task: str) -> dict[str, Any]:
    path = "/api/v2/tools/get_task_result_tool?session_id=s1"
    body: dict[str, Any] = (await sessions.app.post(path, {"task_id": task})).json()
    return body


def shown(body: dict[str, Any]) -> tuple[Any, Any]:
    return body["progress"], body["progress_message"]


@pytest.mark.contract("S2-1")
async def test_the_tool_tells_how_far_it_is_and_what_there_is(either: Sessions) -> None:
    worker, task = await begun(either, "s1")
    said = await result(either, task)
    assert shown(said) == (0.5, "half")
    assert said["partial_output"] == PIECES
    assert said["result"] is None
    await worker.answer(task, "whole")
    await either.over(task)
    said = await result(either, task)
    assert (said["result"], said["partial_output"]) == ("whole", [])


@pytest.mark.contract("S2-1")
async def test_what_a_failed_attempt_put_out_is_not_taken_for_the_next_ones(
    either: Sessions,
) -> None:
    worker, task = await begun(either, "s1")
    await worker.answer(task, error="afterwards")
    assert (await worker.task())["taskId"] == task
    assert (await result(either, task))["partial_output"] == []
    await put_out(either, worker, task, ["anew"])
    assert (await result(either, task))["partial_output"] == ["anew"]


@pytest.mark.contract("S2-1")
async def test_of_much_output_the_newest_is_shown(sessions: Sessions) -> None:
    worker = await sessions.worker()
    task = await sessions.submit("s1")
    await worker.task()
    many = list(range(LAST_OUTPUT + 50))
    await put_out(sessions, worker, task, many)
    assert (await result(sessions, task))["partial_output"] == many[-MOST_OUTPUT:]


@pytest.mark.contract("S2-1")
async def test_mcp_tells_the_same(sessions: Sessions) -> None:
    _, task = await begun(sessions, "s1")
    arguments = {"name": "get_task_result_tool", "arguments": {"task_id": task}}
    called = await spoken(sessions.app, "s1", "tools/call", arguments)
    said = json.loads(called.text.partition("data: ")[2])["result"]["structuredContent"]
    assert shown(said) == (0.5, "half")
    assert said["partial_output"] == PIECES
    asked = await spoken(sessions.app, "s1", "tasks/get", {"taskId": task})
    handle = json.loads(asked.text.partition("data: ")[2])["result"]
    assert handle["statusMessage"] == f"{TYPE} is running: 50%, half."


@pytest.mark.contract("N-5")
async def test_a_caller_that_polls_reads_the_progress(either: Sessions) -> None:
    _, task = await begun(either, "s1")
    one = (await either.app.get(f"/api/v2/sessions/s1/tasks/{task}")).json()
    assert shown(one) == (0.5, "half")
    (listed,) = (await either.app.get("/api/v2/sessions/s1/tasks")).json()["items"]
    assert shown(listed) == (0.5, "half")


@pytest.mark.contract("N-3")
async def test_an_event_stream_has_every_piece_in_its_order(either: Sessions) -> None:
    worker, task = await begun(either, "s1")
    await worker.answer(task, "whole")
    await either.over(task)
    events = await either.app.get(
        f"/api/v2/tasks/{task}/events", headers={"accept": "text/event-stream"}
    )
    seen = [
        json.loads(line.removeprefix("data: "))
        for line in events.text.splitlines()
        if line.startswith("data: ")
    ]
    assert [one["data"] for one in seen if one["type"] == "task.chunk"] == PIECES
    (progress,) = [one["data"] for one in seen if one["type"] == "task.progress"]
    assert (progress["progress"], progress["message"]) == (0.5, "half")
    assert seen[-1]["type"] == "task.succeeded"


@pytest.mark.contract("S3-4")
async def test_the_tasks_door_tells_how_far_a_task_without_a_session_is(either: Sessions) -> None:
    _, task = await begun(either, None)
    assert shown((await either.app.get(f"/api/v1/tasks/{task}")).json()) == (0.5, "half")


@pytest.mark.contract("S2-11")
async def test_a_canceled_task_is_stopped_and_its_output_stays_in_its_history(
    either: Sessions,
) -> None:
    worker, task = await begun(either, "s1")
    path = "/api/v2/tools/cancel_task_tool?session_id=s1"
    asked = (await either.app.post(path, {"task_id": task})).json()
    assert (asked["status"], asked["message"]) == ("processing", "It was asked to stop.")
    assert (await result(either, task))["partial_output"] == PIECES
    stop = await worker.receive()
    assert (stop["type"], stop["taskId"]) == ("cancel", task)
    await worker.answer(task, error="stopped")
    assert (await either.over(task))["state"] == "canceled"
    said = await result(either, task)
    assert (said["status"], said["error"]["code"]) == ("failed", "CANCELED")
    events = await either.app.events(task)
    assert [one["data"] for one in events if one["type"] == "task.chunk"] == PIECES
