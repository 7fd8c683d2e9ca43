"""The client against a real server: submit, wait, follow, look, intervene."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from onward.client.context import Context
from onward.client.errors import ProblemError, StillRunning, TaskFailed, Unreachable
from onward.client.failures import Refused
from onward.client.http import Client
from onward.client.worker import Worker
from tests.client.conftest import Line, Start


@pytest.fixture
async def worker(url: str, start: Start) -> Worker:
    worker = Worker(url)

    @worker.service
    async def double(n: int) -> int:
        return n * 2

    @worker.service
    async def refuse() -> None:
        raise Refused("not today")

    @worker.service
    async def count(to: int, ctx: Context) -> str:
        for n in range(to):
            await ctx.emit(n)
            await asyncio.sleep(0.01)
        return "counted"

    await start(worker)
    return worker


@pytest.mark.contract("N-3", "N-4")
async def test_a_task_without_a_worker_is_accepted_and_can_be_read(client: Client) -> None:
    task = await client.submit("later", {"n": 1}, queue="q", priority="high")

    found = await client.get(task.id)

    assert (found.state, found.type, found.queue, found.payload) == (
        "queued",
        "later",
        "q",
        {"n": 1},
    )
    assert not found.over


@pytest.mark.contract("N-3", "N-7")
async def test_run_returns_the_result(client: Client, worker: Worker) -> None:
    assert await client.run("double", {"n": 21}) == 42


async def test_a_payload_may_be_a_model(client: Client, worker: Worker) -> None:
    class Double(BaseModel):
        n: int

    assert await client.run("double", Double(n=4)) == 8


@pytest.mark.contract("N-7")
async def test_run_raises_what_the_task_failed_of(client: Client, worker: Worker) -> None:
    with pytest.raises(TaskFailed, match="not today") as caught:
        await client.run("refuse", {})

    assert caught.value.task.over
    assert caught.value.task.error["kind"] == "Refused"


@pytest.mark.contract("N-4", "N-7")
async def test_waiting_ends_when_the_task_does(client: Client, worker: Worker) -> None:
    task = await client.submit("double", {"n": 3})

    assert (await client.wait(task.id)).result == 6


@pytest.mark.contract("N-3")
async def test_the_time_to_wait_may_be_over_before_the_task_is(client: Client) -> None:
    task = await client.submit("later")

    with pytest.raises(StillRunning, match="still queued"):
        await client.wait(task.id, timeout_ms=50)
    with pytest.raises(TimeoutError):
        await client.run("later", wait_ms=20)


@pytest.mark.contract("N-4", "N-7")
async def test_a_stream_tells_everything_in_order_and_ends(client: Client, worker: Worker) -> None:
    task = await client.submit("count", {"to": 3})

    events = [event async for event in client.stream(task.id)]

    assert [event.n for event in events] == list(range(1, len(events) + 1))
    assert [event.data for event in events if event.type == "task.chunk"] == [0, 1, 2]
    assert events[0].type == "task.created"
    assert events[-1].type == "task.succeeded"


@pytest.mark.contract("N-4")
async def test_a_stream_goes_on_after_the_event_one_has(client: Client, worker: Worker) -> None:
    task = await client.submit("count", {"to": 2})
    whole = [event async for event in client.stream(task.id)]

    assert [event async for event in client.stream(task.id, after=2)] == whole[2:]
    assert [event async for event in client.stream(task.id, after=len(whole))] == []
    assert (await client.events(task.id)).items == tuple(whole)


@pytest.mark.contract("N-4")
async def test_a_stream_outlives_a_cut_and_misses_nothing(
    line: Line, client: Client, worker: Worker
) -> None:
    task = await client.submit("count", {"to": 20})
    chunks: list[Any] = []

    async with Client(line.url) as far:
        async for event in far.stream(task.id):
            if event.type == "task.chunk":
                chunks.append(event.data)
                if event.data == 5:
                    line.cut()

    assert chunks == list(range(20))


async def test_waiting_outlives_a_cut(line: Line, client: Client) -> None:
    task = await client.submit("later")
    async with Client(line.url) as far:
        await far.get(task.id)
        waiting = asyncio.create_task(far.wait(task.id))
        await asyncio.sleep(0.05)
        line.cut()
        await client.cancel(task.id)

        assert (await waiting).state == "canceled"


@pytest.mark.contract("N-3")
async def test_a_submission_sent_again_after_a_cut_is_one_task(line: Line, client: Client) -> None:
    line.swallow_answers = 1
    async with Client(line.url) as far:
        task = await far.submit("later")

    assert line.connections == 2
    assert [found.id for found in (await client.list(type="later")).items] == [task.id]


@pytest.mark.contract("N-3")
async def test_the_same_key_is_the_same_task(client: Client) -> None:
    first = await client.submit("later", {"n": 1}, idempotency_key="monday")
    again = await client.submit("later", {"n": 1}, idempotency_key="monday")
    assert first.id == again.id

    with pytest.raises(ProblemError) as caught:
        await client.submit("later", {"n": 2}, idempotency_key="monday")
    assert (caught.value.status, caught.value.code) == (422, "idempotency_key_reused")


@pytest.mark.contract("N-2")
async def test_a_problem_says_what_where_and_what_next(client: Client) -> None:
    with pytest.raises(ProblemError) as caught:
        await client.get("nothing")

    problem = caught.value
    assert (problem.status, problem.code) == (404, "not_found")
    assert problem.title
    assert problem.hint


async def test_an_unreachable_server_is_reported_with_the_next_step(unused_tcp_port: int) -> None:
    async with Client(f"http://127.0.0.1:{unused_tcp_port}") as client:
        with pytest.raises(Unreachable, match="onward up"):
            await client.submit("later")


@pytest.mark.contract("N-2", "N-4")
async def test_lists_are_filtered_and_paged(client: Client) -> None:
    for type in ("a", "b", "b", "b"):
        await client.submit(type)

    first = await client.list(type="b", state="queued", limit=2)
    rest = await client.list(type="b", state="queued", limit=2, cursor=first.next)

    assert [len(first.items), len(rest.items)] == [2, 1]
    assert {task.type for task in (*first.items, *rest.items)} == {"b"}
    assert rest.next is None


@pytest.mark.contract("N-4", "R-7")
async def test_a_task_can_be_canceled_explained_and_retried(client: Client) -> None:
    task = await client.submit("later")

    assert "later" in (await client.explain(task.id)).sentence
    assert (await client.cancel(task.id)).state == "canceled"
    with pytest.raises(ProblemError) as caught:
        await client.cancel(task.id)
    assert caught.value.status == 409
    assert (await client.retry(task.id)).generation == 2


@pytest.mark.contract("N-11")
async def test_workers_services_and_health_can_be_asked_for(client: Client, worker: Worker) -> None:
    assert [found.id for found in await client.workers()] == [worker.id]
    assert {found.name for found in await client.services()} >= {"double", "refuse", "count"}
    assert (await client.health())["status"] == "healthy"
