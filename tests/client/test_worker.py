"""The worker SDK against a real server: what handlers can do, and what happens to their tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Unpack

import httpx2
import pytest
from pydantic import BaseModel

from onward.client.address import http_options
from onward.client.api import ServerApi
from onward.client.context import Context, PlainContext
from onward.client.failures import Refused, TryAgain
from onward.client.http import Client, Options, TaskView
from onward.client.task_context import LostTask, TaskContext
from onward.client.worker import NameTaken, Worker
from onward.wire.frames import LARGEST, SocketFrame, TaskFrame
from tests.client.conftest import Line, Start
from tests.support import wait_until

SOON: Options = {"backoff_ms": [1]}


class Receipt(BaseModel):
    number: int


async def ended(
    client: Client, type: str, payload: Mapping[str, Any] = {}, **options: Unpack[Options]
) -> TaskView:
    task = await client.submit(type, payload, **options)
    return await client.wait(task.id, timeout_ms=60_000)


@pytest.mark.contract("N-7", "R-1")
async def test_typed_functions_async_and_plain_do_the_tasks_of_their_name(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)

    @worker.service
    async def greet(name: str, loud: bool = False) -> str:
        return f"hello {name}".upper() if loud else f"hello {name}"

    @worker.service(name="math.add")
    def add(numbers: list[int]) -> dict[str, Any]:
        return {"sum": sum(numbers), "thread": threading.current_thread().name}

    await start(worker)

    assert await client.run("greet", {"name": "Ada", "loud": True}) == "HELLO ADA"
    answer = await client.run("math.add", {"numbers": [1, 2]})
    assert answer["sum"] == 3
    assert answer["thread"].startswith("onward-handler")


@pytest.mark.contract("N-7", "N-11")
async def test_a_services_schema_is_declared_when_it_registers(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)

    @worker.service(timeout_ms=5_000, max_retries=7, sensitive=("/name",))
    async def greet(name: str) -> str:
        return name

    await start(worker)

    (declared,) = await client.services()
    assert declared.schema["greet"]["required"] == ["name"]
    assert (declared.timeout_ms, declared.max_retries) == (5_000, 7)


@pytest.mark.contract("N-7")
async def test_progress_is_throttled_and_the_last_word_is_kept(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)

    @worker.service
    async def hurry(ctx: Context) -> None:
        for n in range(500):
            await ctx.progress(n / 499, f"step {n}")
            await asyncio.sleep(0.0005)

    await start(worker)
    began = time.monotonic()
    task = await ended(client, "hurry")
    took = time.monotonic() - began

    events = (await client.events(task.id)).items
    told = [event.data for event in events if event.type == "task.progress"]
    assert len(told) <= took * 10 + 2
    assert told[0] == {"progress": 0.0, "message": "step 0"}
    assert told[-1] == {"progress": 1.0, "message": "step 499"}
    assert (task.progress, task.progress_message) == (1.0, "step 499")


async def test_a_last_word_that_cannot_be_sent_costs_no_result(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)

    @worker.service
    async def odd(ctx: Context) -> str:
        unspeakable: Any = ValueError()
        await ctx.progress(0.1)
        await ctx.progress(0.2, unspeakable)
        return "done"

    await start(worker)
    assert (await ended(client, "odd")).result == "done"


@pytest.mark.contract("N-7", "N-4")
async def test_a_plain_function_can_tell_progress_and_emit_parts(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)

    @worker.service
    def write(ctx: PlainContext) -> str:
        ctx.progress(0.5)
        ctx.emit("hel")
        ctx.emit("lo")
        return "hello"

    await start(worker)
    task = await ended(client, "write")

    events = (await client.events(task.id)).items
    assert [event.data for event in events if event.type == "task.chunk"] == ["hel", "lo"]


@pytest.mark.contract("N-7", "N-4")
async def test_a_canceled_task_interrupts_its_async_handler(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)
    seen: list[bool] = []

    @worker.service
    async def sleep(ctx: Context) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(ctx.cancelled)

    await start(worker)
    task = await client.submit("sleep", {})
    await running(client, task.id)
    await client.cancel(task.id)

    assert (await client.wait(task.id, timeout_ms=60_000)).state == "canceled"
    assert seen == [True]


@pytest.mark.contract("N-7", "N-4")
async def test_a_canceled_task_is_seen_by_its_plain_handler(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)

    @worker.service
    def sleep(ctx: PlainContext) -> str:
        while not ctx.cancelled:
            time.sleep(0.005)
        return "stopped early"

    await start(worker)
    task = await client.submit("sleep", {})
    await running(client, task.id)
    await client.cancel(task.id)

    assert (await client.wait(task.id, timeout_ms=60_000)).state == "canceled"


@pytest.mark.contract("R-5", "N-7")
async def test_refused_is_final_and_try_again_is_not(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)
    attempts: list[int] = []

    @worker.service
    async def refuse() -> None:
        raise Refused("no")

    @worker.service
    async def wobble(ctx: Context) -> int:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise TryAgain("busy", after_ms=5)
        if ctx.attempt == 2:
            raise TryAgain("busy", after=timedelta(milliseconds=5))
        return ctx.attempt

    await start(worker)

    assert (await ended(client, "refuse")).attempt == 1
    assert (await ended(client, "wobble")).result == 3, "not after 5 and 15 s"
    assert attempts == [1, 2, 3]


@pytest.mark.contract("Y-3")
async def test_what_a_function_returns_is_held_to_its_annotation(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)

    @worker.service
    async def wrong() -> int:
        return "s3cret"  # type: ignore[return-value]

    @worker.service
    def wrong_inside() -> dict[str, list[int]]:
        return {"numbers": [1, None]}  # type: ignore[list-item]

    @worker.service
    def mended() -> list[Receipt]:
        return ({"number": 1}, Receipt(number=2))  # type: ignore[return-value]

    @worker.service
    def free():  # type: ignore[no-untyped-def]
        return ["as", {"it": "is"}]

    await start(worker)
    for name, said in (
        ("wrong", "wrong returned what is not as annotated: result: Input should be a valid int"),
        ("wrong_inside", "result['numbers'][1]: Input should be a valid integer"),
    ):
        task = await ended(client, name, **SOON)
        assert (task.state, task.attempt, task.error["kind"]) == ("dead", 1, "ResultInvalid")
        assert said in task.error["message"]
        assert "s3cret" not in task.error["message"]
    assert await client.run("mended", {}) == [{"number": 1}, {"number": 2}]
    assert await client.run("free", {}) == ["as", {"it": "is"}]


async def test_a_failure_in_the_log_names_its_task_and_attempt(
    url: str, client: Client, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(url)

    @worker.service
    async def refuse() -> None:
        raise Refused("no")

    await start(worker)
    task = await ended(client, "refuse")
    assert f"refuse failed (Refused), task {task.id}, attempt 1" in caplog.text


@pytest.mark.contract("R-5")
async def test_a_payload_that_does_not_fit_is_not_tried_again(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)

    @worker.group("gpu")
    async def infer(prompt: str) -> str:
        return prompt

    await start(worker)
    async with httpx2.AsyncClient(**http_options(url)) as http:
        answer = await http.post("/api/openai", json={"data": 1, "group": "gpu"})

    assert answer.status_code == 500
    assert answer.json()["error"]


@pytest.mark.contract("S0-1", "S0-12")
async def test_a_group_handler_answers_what_http_clients_send(url: str, start: Start) -> None:
    worker = Worker(url)
    payloads: list[Any] = []

    @worker.group("gpu")
    async def infer(payload: Any) -> Any:
        payloads.append(payload)
        if payload["data"] == "bad":
            raise ValueError("the GPU is on fire")
        return {"answer": payload["data"] * 2}

    await start(worker)
    async with httpx2.AsyncClient(**http_options(url)) as http:
        good = await http.post("/api/openai", json={"data": 4, "group": "gpu", "timeout": 9000})
        bad = await http.post("/api/openai", json={"data": "bad", "group": "gpu"})

    assert (good.status_code, good.json()["result"]) == (200, {"answer": 8})
    assert (bad.status_code, bad.json()) == (500, {"error": "the GPU is on fire"})
    assert payloads == [{"data": 4}, {"data": "bad"}]


@pytest.mark.contract("S0-12", "S0-7")
async def test_a_worker_without_a_group_is_in_none(url: str, start: Start) -> None:
    worker = Worker(url)

    @worker.service
    async def greet() -> str:
        return "hello"

    await start(worker)
    async with httpx2.AsyncClient(**http_options(url)) as http:
        answer = await http.post("/api/openai", json={"data": 1})

    assert (answer.status_code, answer.json()) == (503, {"error": "No worker available"})


@pytest.mark.contract("S1-8", "N-7")
async def test_an_effect_happens_once_over_retries_and_its_value_is_remembered(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)
    charged: list[str] = []

    @worker.service
    async def pay(ctx: Context) -> Any:
        async def charge() -> tuple[str, int]:
            charged.append(ctx.key)
            return ("receipt", len(charged))

        receipt = await ctx.once("charge card 1/2", charge)
        if ctx.attempt == 1:
            raise TryAgain("and now?")
        return receipt

    await start(worker)
    task = await ended(client, "pay", **SOON)

    assert task.result == ["receipt", 1]
    assert len(charged) == 1


@pytest.mark.contract("S1-8", "N-7")
async def test_an_effect_that_raised_may_be_tried_again(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)

    @worker.service
    def pay(ctx: PlainContext) -> Any:
        def charge() -> str:
            if ctx.attempt == 1:
                raise ConnectionError("the bank is closed")
            return "paid"

        return ctx.once("charge", charge)

    await start(worker)
    task = await ended(client, "pay", **SOON)

    assert (task.result, task.attempt) == ("paid", 2)


@pytest.mark.contract("S1-8", "N-7")
async def test_an_effect_begun_by_a_lost_attempt_is_not_repeated_blindly(
    url: str, line: Line, client: Client, start: Start
) -> None:
    worker = Worker(line.url)
    begun: list[int] = []

    def handle(ctx: Context, *, repeat_unknown: bool) -> Any:
        async def charge() -> str:
            begun.append(ctx.attempt)
            if len(begun) == 1:
                await asyncio.sleep(60)
            return "paid"

        return ctx.once("charge", charge, repeat_unknown=repeat_unknown)

    @worker.service
    async def careful(ctx: Context) -> Any:
        return await handle(ctx, repeat_unknown=False)

    @worker.service
    async def bold(ctx: Context) -> Any:
        return await handle(ctx, repeat_unknown=True)

    await start(worker)
    ends = []
    for type in ("careful", "bold"):
        begun.clear()
        task = await client.submit(type, {}, **SOON)
        await wait_until(lambda: begun)
        line.cut()
        ends.append(await client.wait(task.id, timeout_ms=60_000))

    careful_end, bold_end = ends
    assert careful_end.error["kind"] == "EffectUnknown"
    assert bold_end.result == "paid"


@pytest.mark.contract("S1-8")
async def test_a_stale_attempt_has_no_effects(url: str, client: Client) -> None:
    task = await client.submit("later", {})

    class Stale:
        api = ServerApi(url)
        keeps_logs = False

        async def send(self, frame: SocketFrame) -> None: ...

    link = Stale()
    context = TaskContext(TaskFrame(task_id=task.id, fence=7), link)
    done: list[bool] = []

    with pytest.raises(LostTask):
        await context.once("charge", lambda: done.append(True))

    assert done == []
    await link.api.close()


@pytest.mark.contract("S0-8", "S0-12")
async def test_a_worker_comes_back_after_a_cut_and_the_lost_attempt_is_dropped(
    line: Line, client: Client, start: Start
) -> None:
    worker = Worker(line.url)
    lost: list[int] = []

    @worker.service
    async def work(ctx: Context) -> str:
        if not lost:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                lost.append(ctx.attempt)
                return "the wrong answer"
        return "the right answer"

    await start(worker)
    task = await client.submit("work", {})
    await running(client, task.id)
    line.cut()

    assert (await client.wait(task.id, timeout_ms=60_000)).result == "the right answer"
    assert lost == [1]


@pytest.mark.contract("N-7")
async def test_a_draining_worker_finishes_what_runs_and_takes_nothing_more(
    url: str, client: Client
) -> None:
    worker = Worker(url)
    go = asyncio.Event()

    @worker.service
    async def work() -> str:
        await go.wait()
        return "finished"

    serving = asyncio.create_task(worker.serve())
    first = await client.submit("work", {})
    await running(client, first.id)
    worker.drain()
    await wait_until(client.workers, holds=lambda found: all(one.draining for one in found))
    second = await client.submit("work", {})
    go.set()
    await asyncio.wait_for(serving, 30)

    assert (await client.get(first.id)).result == "finished"
    assert (await client.get(second.id)).state == "queued"


async def test_a_drain_ends_when_its_time_is_over(url: str, client: Client) -> None:
    worker = Worker(url, grace_ms=100)

    @worker.service
    async def work() -> None:
        await asyncio.sleep(60)

    serving = asyncio.create_task(worker.serve())
    task = await client.submit("work", {})
    await running(client, task.id)
    worker.drain()

    await asyncio.wait_for(serving, 30)


@pytest.mark.contract("S0-7")
async def test_a_worker_whose_name_is_taken_gives_way(url: str, start: Start) -> None:
    first, second = Worker(url, id="twin"), Worker(url, id="twin")
    for worker in (first, second):
        worker.service(name="work")(lambda: None)
    serving = asyncio.create_task(first.serve())
    await wait_until(lambda: first.connected)

    await start(second)

    with pytest.raises(NameTaken, match="another worker"):
        await asyncio.wait_for(serving, 30)


async def test_a_worker_waits_for_a_server_that_is_not_there_yet(unused_tcp_port: int) -> None:
    worker = Worker(f"http://127.0.0.1:{unused_tcp_port}")
    worker.service(name="work")(lambda: None)
    serving = asyncio.create_task(worker.serve())
    await asyncio.sleep(0.2)
    assert not serving.done()

    worker.drain()

    await asyncio.wait_for(serving, 30)


async def test_a_result_may_fill_a_frame_and_no_more(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)

    @worker.service
    async def fill(size: int) -> str:
        return "x" * size

    await start(worker)
    room = LARGEST - 200

    assert len(await client.run("fill", {"size": room})) == room
    task = await ended(client, "fill", {"size": LARGEST})
    assert task.error["kind"] == "ResultTooLarge"
    assert worker.connected


def test_a_worker_with_nothing_to_do_says_so() -> None:
    with pytest.raises(ValueError, match=r"@worker\.service"):
        asyncio.run(Worker().serve())
    with pytest.raises(ValueError, match=r"@worker\.group"):
        asyncio.run(Worker(group="gpu").serve())


def test_a_worker_serves_each_name_once_and_one_group() -> None:
    worker = Worker()
    worker.service(name="work")(lambda: None)
    with pytest.raises(ValueError, match="twice"):
        worker.service(name="work")(lambda: None)
    worker.group("gpu")(lambda payload: payload)
    with pytest.raises(ValueError, match="one group"):
        worker.group("cpu")(lambda payload: payload)


async def running(client: Client, id: str) -> None:
    async with asyncio.timeout(30), aclosing(client.stream(id)) as events:
        async for event in events:
            if event.type == "task.claimed":
                return
