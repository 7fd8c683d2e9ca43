"""Work handed in by the function that does it, or by name with a type for the result."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel, ValidationError

from onward import Client, Context, OnwardError, StillRunning, SyncClient, TaskFailed, Worker
from tests.client.conftest import Start


class Order(BaseModel):
    number: int
    at: datetime


@dataclass
class Receipt:
    number: int
    total: float


worker = Worker()


@worker.service
async def greet(ctx: Context, name: str, sign: str = "!") -> str:
    return f"Hello, {name}{sign}"


@worker.service
def receipt(order: Order) -> Receipt:
    return Receipt(order.number, 9.5)


@worker.service(name="shop.refuse")
def refuse(reason: str, ctx: Context) -> None:
    raise ValueError(reason)


@pytest.fixture
async def served(url: str, start: Start) -> None:
    worker.url = url
    await start(worker)


@pytest.mark.contract("Y-1")
@pytest.mark.usefixtures("served")
async def test_a_decorated_function_is_run_with_its_arguments(client: Client) -> None:
    assert await client.run(greet, name="Ada") == "Hello, Ada!"
    assert await client.run(greet, "Ada", sign="?") == "Hello, Ada?"


@pytest.mark.contract("Y-1", "Y-3")
@pytest.mark.usefixtures("served")
async def test_the_result_of_a_function_has_the_type_that_it_returns(client: Client) -> None:
    order = Order(number=7, at=datetime(2026, 1, 1, tzinfo=UTC))

    assert await client.run(receipt, order) == Receipt(7, 9.5)


@pytest.mark.contract("Y-1")
async def test_a_wrong_name_is_refused_before_anything_is_sent(client: Client) -> None:
    with pytest.raises(TypeError, match="greet: got an unexpected keyword argument 'nme'"):
        await client.submit(greet, nme="Ada")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="missing a required argument"):
        await client.run(greet)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="unexpected keyword argument 'ctx'"):
        await client.run(greet, name="Ada", ctx=None)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="is submitted with no option 'queu'"):
        await client.submit("greet", {}, queu="slow")  # type: ignore[call-overload]

    assert (await client.list()).items == ()


@pytest.mark.contract("Y-1")
async def test_a_function_that_no_worker_serves_is_refused(client: Client) -> None:
    def unserved() -> None: ...

    with pytest.raises(TypeError, match="unserved is not served"):
        await client.submit(unserved)


@pytest.mark.contract("Y-1", "Y-2")
async def test_options_go_before_a_function_and_take_durations(client: Client) -> None:
    later = client.options(queue="slow", delay=timedelta(hours=1)).options(priority="high")

    task = await later.submit(greet, name="Ada")

    assert (task.type, task.queue, task.priority) == ("greet", "slow", "high")
    assert task.run_at is not None
    assert task.run_at - task.created_at == 3_600_000
    assert task.payload == {"name": "Ada"}


@pytest.mark.contract("Y-2")
async def test_a_number_is_no_duration(client: Client) -> None:
    with pytest.raises(TypeError, match="a duration is a timedelta, not 5"):
        await client.submit("greet", delay=5)  # type: ignore[call-overload]


async def test_an_instant_may_be_a_datetime(client: Client) -> None:
    at = datetime(2040, 1, 1, tzinfo=UTC)

    task = await client.submit("greet", {"name": "Ada"}, run_at=at)

    assert task.run_at == at.timestamp() * 1000


@pytest.mark.contract("Y-3")
@pytest.mark.usefixtures("served")
async def test_a_result_is_read_as_a_model_or_a_dataclass(client: Client) -> None:
    order = {"number": 7, "at": "2026-01-01T00:00:00Z"}

    assert await client.run("receipt", order, result_type=Receipt) == Receipt(7, 9.5)
    task = await client.submit("receipt", order)
    assert await client.result(task.id, result_type=Receipt) == Receipt(7, 9.5)
    assert await client.result(task.id) == {"number": 7, "total": 9.5}
    with pytest.raises(ValidationError):
        await client.result(task.id, result_type=Order)


@pytest.mark.contract("Y-1")
@pytest.mark.usefixtures("served")
async def test_the_end_of_a_function_that_fails_is_raised(client: Client) -> None:
    once = client.options(max_retries=0)

    with pytest.raises(TaskFailed, match="no paper"):
        await once.run(refuse, reason="no paper")  # type: ignore[call-overload]


async def test_a_wait_that_is_over_leaves_the_task(client: Client) -> None:
    with pytest.raises(StillRunning) as caught:
        await client.options(wait=timedelta(milliseconds=10)).run(greet, name="Ada")

    assert not (await client.get(caught.value.task.id)).over


@pytest.mark.contract("Y-1")
@pytest.mark.usefixtures("served")
async def test_the_same_works_without_await_where_a_loop_runs(url: str) -> None:
    def job() -> None:
        with SyncClient(url) as client:
            assert client.run(greet, name="Ada") == "Hello, Ada!"
            task = client.options(delay=timedelta(hours=1)).submit(greet, name="Ada")
            assert client.get(task.id).state == "scheduled"
            assert client.cancel(task.id).state == "canceled"
            done = client.submit("greet", {"name": "Ada"})
            assert client.wait(done.id, timeout=timedelta(seconds=30)).result == "Hello, Ada!"
            assert client.result(done.id, result_type=str) == "Hello, Ada!"
            assert [event.type for event in client.stream(done.id)][-1] == "task.succeeded"
            assert {each.type for each in client.list().items} == {"greet"}
            assert client.schedules.list().items == ()

    # The server and the worker of this test run in this loop, so another one runs around the call.
    async def inside_another_loop() -> None:
        job()

    await asyncio.to_thread(asyncio.run, inside_another_loop())


@pytest.mark.contract("Y-1")
async def test_a_sync_client_goes_on_after_it_was_closed(url: str) -> None:
    def job() -> None:
        client = SyncClient(url)
        for _ in range(2):
            assert client.list().items == ()
            client.close()

    await asyncio.to_thread(job)


@pytest.mark.contract("Y-1")
@pytest.mark.parametrize("joined", [False, True])
async def test_a_call_that_comes_while_the_client_closes_is_refused(url: str, joined: bool) -> None:
    client = SyncClient(url)

    def job() -> None:
        events = client.stream(client.submit("nobody.serves.this").id)
        next(events)
        thread = client._alive_thread()
        thread.let_go()
        if joined:  # the loop is closed; without, it may still be ending
            thread.close()
        with pytest.raises(OnwardError, match="was closed"):
            thread.wait(thread.client.health())
        with pytest.raises(OnwardError, match="was closed"):
            next(events)
        events.close()

    await asyncio.to_thread(job)


@pytest.mark.contract("K-11")
async def test_a_sync_client_sends_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str | None] = []
    monkeypatch.setattr(
        "onward.client.api.ServerApi.__init__",
        lambda _, url, *, key, **__: sent.append(key),
    )
    SyncClient("http://127.0.0.1:9", key="onward_a_b")._make()
    assert sent == ["onward_a_b"]


@pytest.mark.contract("Y-1")
async def test_a_call_of_another_thread_ends_with_the_client(url: str) -> None:
    client, seen = SyncClient(url), threading.Event()

    def follow(id: str) -> None:
        for _ in client.stream(id):
            seen.set()

    task = await asyncio.to_thread(client.submit, "nobody.serves.this")
    follows = asyncio.ensure_future(asyncio.to_thread(follow, task.id))
    await asyncio.to_thread(seen.wait)
    await asyncio.to_thread(client.close)
    with pytest.raises(OnwardError, match="was closed"):
        await follows
