"""SDK services behind `POST /exec/<service>`: called by a server, or by anybody (S4-5, N-7)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest

from onward.client.address import http_options
from onward.client.context import Context
from onward.client.errors import ProblemError, WorkerRefused
from onward.client.failures import Refused, TryAgain
from onward.client.http import Client
from onward.client.listening import bind
from onward.client.retrying import Admission
from onward.client.worker import Worker
from tests.client.conftest import served
from tests.support import wait_until

Start = Callable[[Worker], Awaitable[str]]


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with served() as url:
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(url) as client:
        yield client


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Let a worker be called until the test is over; returns where it listens."""
    async with AsyncExitStack() as stack:

        async def start(worker: Worker) -> str:
            at: list[str] = []
            worker.on_registered = at.append
            serving = asyncio.create_task(worker.serve(listen="http://127.0.0.1:0"))

            async def stop() -> None:
                serving.cancel()
                await asyncio.wait([serving])

            stack.push_async_callback(stop)
            await wait_until(lambda: at or serving.done())
            if serving.done():
                serving.result()
            return at[0]

        yield start


async def post(url: str, body: Any, **more: Any) -> httpx2.Response:
    async with httpx2.AsyncClient() as http:
        return await http.post(url, json=body, **more)


@pytest.mark.contract("S4-5", "N-1", "N-7")
async def test_typed_functions_do_the_tasks_they_are_called_for(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)

    @worker.service
    async def greet(name: str, ctx: Context) -> dict[str, Any]:
        return {"hello": name, "attempt": ctx.attempt, "key": ctx.key}

    @worker.service
    def double(input: int, params: dict[str, Any]) -> int:
        return input * params["by"]  # type: ignore[no-any-return]

    await start(worker)
    task = await client.submit("greet", {"name": "Ada"}, idempotency_key="k:1")
    done = await client.wait(task.id, timeout_ms=60_000)
    assert done.result == {"hello": "Ada", "attempt": 1, "key": "k:1"}
    assert await client.run("double", {"input": 4, "params": {"by": 2}}) == 8
    assert {service.name for service in await client.services()} == {"greet", "double"}


@pytest.mark.contract("N-11", "S1-11")
async def test_a_worker_does_not_remove_what_an_operator_declared(
    url: str, client: Client, start: Start
) -> None:
    service = {"name": "pay", "task_types": ["pay"], "requires_approval": True}
    assert (await post(f"{url}/api/v2/services", service)).status_code == 201
    worker = Worker(url)

    @worker.service
    async def pay(amount: int) -> int:
        return amount

    await start(worker)
    (declared,) = await client.services()
    assert declared.declared_by == ("operator", "worker")
    assert (await client.submit("pay", {"amount": 1})).phase == "waiting_approval"
    # Called by the name of the queue, it is guarded and checked whatever the type says.
    assert (await client.submit("x", {"amount": 1}, queue="pay")).phase == "waiting_approval"
    with pytest.raises(ProblemError):
        await client.submit("x", {"amount": "much"}, queue="pay")


@pytest.mark.contract("S4-5", "R-5", "N-7")
async def test_a_handlers_way_of_failing_reaches_the_server(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)

    @worker.service
    async def refuse() -> None:
        raise Refused("never")

    @worker.service
    async def later() -> None:
        raise TryAgain("not now", after_ms=60_000)

    await start(worker)
    task = await client.submit("refuse", {})
    refused = await client.wait(task.id, timeout_ms=60_000)
    assert (refused.state, refused.attempt) == ("dead", 1)
    assert refused.error is not None
    assert refused.error["kind"] == "Refused"

    task = await client.submit("later", {}, backoff_ms=[1])

    async def scheduled() -> bool:
        return (await client.get(task.id)).state == "scheduled"

    await wait_until(scheduled)
    found = await client.get(task.id)
    assert found.error is not None
    assert found.error["retry_after_ms"] == 60_000


@pytest.mark.contract("S4-5", "N-7")
async def test_progress_parts_and_effects_go_back_over_the_servers_api(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)
    acts: list[int] = []

    def send() -> str:
        acts.append(1)
        return "sent"

    @worker.service
    async def act(ctx: Context) -> list[Any]:
        await ctx.progress(0.5, "half")
        await ctx.emit({"part": 1})
        return [await ctx.once("mail", send), await ctx.once("mail", send)]

    await start(worker)
    task = await client.submit("act", {})
    done = await client.wait(task.id, timeout_ms=60_000)
    assert (done.result, acts, done.progress) == (["sent", "sent"], [1], 1.0)
    async with httpx2.AsyncClient() as http:
        items = (await http.get(f"{url}/api/v2/tasks/{task.id}/events")).json()["items"]
    assert [item["data"] for item in items if item["type"] == "task.chunk"] == [{"part": 1}]


@pytest.mark.contract("S4-5", "S4-12", "N-7")
async def test_a_cancel_reaches_the_handler(url: str, client: Client, start: Start) -> None:
    worker = Worker(url)
    ended = asyncio.Event()
    began = asyncio.Event()

    @worker.service
    async def dream() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    await start(worker)
    task = await client.submit("dream", {})
    await asyncio.wait_for(began.wait(), 60)
    await client.cancel(task.id)
    await asyncio.wait_for(ended.wait(), 60)
    assert (await client.wait(task.id, timeout_ms=60_000)).state == "canceled"


@pytest.mark.contract("S4-5", "S4-12")
async def test_a_handler_is_stopped_by_cancel_and_by_a_caller_who_hangs_up(
    url: str, start: Start
) -> None:
    worker = Worker(url)
    began, ended = asyncio.Queue[str](), asyncio.Queue[str]()

    @worker.service
    async def dream(ctx: Context) -> None:
        began.put_nowait(ctx.task_id)
        try:
            await asyncio.sleep(60)
        finally:
            ended.put_nowait(ctx.task_id)

    at = await start(worker)
    called = asyncio.create_task(
        post(f"{at}/exec/dream", {}, headers={"x-onward-task": "t1"}, timeout=30)
    )
    assert await asyncio.wait_for(began.get(), 60) == "t1"
    assert (await post(f"{at}/cancel", {"task_id": "other"})).json() == {"canceled": False}
    assert (await post(f"{at}/cancel", {"task_id": "t1"})).json() == {"canceled": True}
    assert (await called).json()["errorType"] == "Canceled"
    await ended.get()

    called = asyncio.create_task(post(f"{at}/exec/dream", {}, timeout=30))
    await asyncio.wait_for(began.get(), 60)
    called.cancel()
    await asyncio.wait_for(ended.get(), 60)


async def test_an_earlier_attempt_gives_way_to_a_newer_one(url: str, start: Start) -> None:
    worker = Worker(url)
    began = asyncio.Queue[int]()

    @worker.service
    async def dream(ctx: Context) -> int:
        began.put_nowait(ctx.attempt)
        await asyncio.sleep(60 if ctx.attempt == 1 else 0)
        return ctx.attempt

    at = await start(worker)
    first = {"x-onward-task": "t1", "x-onward-attempt": "1", "x-onward-fence": "1"}
    second = {**first, "x-onward-attempt": "2", "x-onward-fence": "2"}
    early = asyncio.create_task(post(f"{at}/exec/dream", {}, headers=first, timeout=30))
    await asyncio.wait_for(began.get(), 60)
    late = await post(f"{at}/exec/dream", {}, headers=second)
    assert late.json() == {"result": 2, "error": ""}
    assert (await early).status_code == 409


@pytest.mark.contract("S4-5")
async def test_what_a_worker_does_not_take(url: str, start: Start) -> None:
    worker = Worker(url)

    @worker.service
    async def big() -> str:
        return "x" * (1 << 20)

    at = await start(worker)
    assert (await post(f"{at}/exec/nobody", {})).status_code == 404
    assert (await post(f"{at}/exec/big", [1])).status_code == 400
    page = {"origin": "http://evil.example"}
    assert (await post(f"{at}/exec/big", {}, headers=page)).status_code == 400
    assert (await post(f"{at}/cancel", {"task_id": "x"}, headers=page)).status_code == 400
    async with httpx2.AsyncClient() as http:
        assert (await http.post(f"{at}/exec/big", content=b"{")).status_code == 400
        assert (await http.post(f"{at}/exec/big", content=b" " * (1 << 21))).status_code == 400
        assert (await http.get(f"{at}/health")).json()["services"] == ["big"]
    answer = (await post(f"{at}/exec/big", {})).json()
    assert (answer["errorType"], answer["retryable"]) == ("ResultTooLarge", False)


@pytest.mark.contract("S4-4", "S4-5")
async def test_it_says_its_load_and_registers_again_when_forgotten(url: str, start: Start) -> None:
    worker = Worker(url, id="w1")
    began, go_on = asyncio.Event(), asyncio.Event()

    @worker.service
    async def hold() -> None:
        began.set()
        await go_on.wait()

    at = await start(worker)
    async with httpx2.AsyncClient(**http_options(url)) as http:

        async def loads(*said: int) -> bool:
            listed = (await http.get("/workers/list")).json()
            return [one["load"] for one in listed] == list(said)

        called = asyncio.create_task(post(f"{at}/exec/hold", {}, timeout=30))
        await asyncio.wait_for(began.wait(), 60)
        await wait_until(lambda: loads(1))
        await http.post("/workers/deregister", json={"id": "w1"})
        go_on.set()
        await called
        await wait_until(lambda: loads(0))


@pytest.mark.contract("S4-5")
async def test_a_drained_worker_leaves_and_finishes_what_runs(url: str, client: Client) -> None:
    worker = Worker(url, id="w1")
    began, go_on = asyncio.Event(), asyncio.Event()

    @worker.service
    async def hold() -> str:
        began.set()
        await go_on.wait()
        return "done"

    serving = asyncio.create_task(worker.serve(listen="http://127.0.0.1:0"))
    await wait_until(lambda: worker.connected)
    task = await client.submit("hold", {})
    await asyncio.wait_for(began.wait(), 60)
    worker.drain()
    async with httpx2.AsyncClient(**http_options(url)) as http:

        async def gone() -> bool:
            return not (await http.get("/workers/list")).json()

        await wait_until(gone)
    assert not serving.done()
    go_on.set()
    assert (await client.wait(task.id, timeout_ms=60_000)).result == "done"
    await asyncio.wait_for(serving, 30)


async def test_a_url_that_the_server_refuses_ends_the_worker() -> None:
    async with served(worker_hosts=("10.0.0.0/8",)) as url:
        worker = Worker(url)
        worker.service(name="x")(_nothing)
        with pytest.raises(WorkerRefused, match="ONWARD_WORKER_HOSTS"):
            await worker.serve(listen="http://127.0.0.1:0")


async def test_a_key_that_is_not_let_in_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "LIMIT_S", 0.2)
    admin = "a" * 40
    async with served(admin_key=admin) as url, Client(url, key=admin) as client:
        made = await client.keys.create("other", ["work:other"])
        for token, why in ((made.token, "may not serve x"), ("onward_0_0", "not known here")):
            worker = Worker(url, key=token)
            worker.service(name="x")(_nothing)
            with pytest.raises(WorkerRefused, match=why):
                await asyncio.wait_for(worker.serve(listen="http://127.0.0.1:0"), 30)


async def _nothing() -> None:
    pass


async def test_a_group_is_not_served_this_way(url: str) -> None:
    worker = Worker(url)
    worker.group()(_whole)
    with pytest.raises(ValueError, match="over a socket"):
        await worker.serve(listen="http://127.0.0.1:0")


async def _whole(payload: Any) -> Any:
    return payload


@pytest.mark.contract("S4-5")
def test_a_taken_port_is_another_port() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        listening, at = bind(f"http://localhost:{port}")
        with listening:
            assert at.startswith("http://localhost:")
            assert at != f"http://localhost:{port}"


@pytest.mark.parametrize(
    "url",
    ["https://127.0.0.1:1", "127.0.0.1:8080", "http://", "http://127.0.0.1:x", "http://127.0.0.1/a",
     "http://a@127.0.0.1", "http://203.0.113.9:8080", "http://nobody.invalid:8080"],
)  # fmt: skip
def test_where_a_worker_cannot_listen(url: str) -> None:
    with pytest.raises(ValueError, match="listen"):
        bind(url)
