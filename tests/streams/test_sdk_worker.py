"""The SDK's worker over streams, against a real server and a real Valkey."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import redis.asyncio

from onward.client.context import Context, PlainContext
from onward.client.errors import ProblemError, ServerNeeded
from onward.client.failures import Refused
from onward.client.worker import Worker
from tests.client.conftest import wait_until_put_off
from tests.servers import fresh_url
from tests.streams.sdk_site import OVER, Site, open_site
from tests.streams.stream_app import DEAD, GROUP, RESULTS, TASKS, text
from tests.support import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("S1-13")]


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    # Longer than any stall of a busy machine; heartbeats come often all the same.
    monkeypatch.setenv("VISIBILITY_TIMEOUT_S", "30")
    monkeypatch.setenv("HEARTBEAT_INTERVAL_S", "0.5")
    monkeypatch.delenv("ONWARD_URL", raising=False)
    async with open_site(visibility_timeout_s=30.0) as opened:
        yield opened


@pytest.mark.contract("N-1", "N-7", "N-11")
async def test_typed_functions_do_their_tasks_and_are_declared(site: Site) -> None:
    worker = Worker(site.url)

    @worker.service
    async def greet(name: str) -> str:
        return f"hello {name}"

    @worker.service(name="math.add")
    def add(numbers: list[int]) -> dict[str, Any]:
        return {"sum": sum(numbers), "thread": threading.current_thread().name}

    await site.start(worker)
    assert (await site.ended("greet", {"name": "Ada"})).result == "hello Ada"
    answer = (await site.ended("math.add", {"numbers": [1, 2]})).result
    assert (answer["sum"], answer["thread"][:14]) == (3, "onward-handler")

    async def is_declared() -> bool:
        task = await site.client.submit("greet", {"name": "Bob"})
        return (await site.client.get(task.id)).queue == "streams"

    for _ in range(50):
        if await is_declared():
            break
        await asyncio.sleep(0.05)
    task = await site.client.submit("greet", {"name": "Eve"})
    assert (await site.client.wait(task.id, timeout_ms=60_000)).result == "hello Eve"


async def test_a_payload_that_does_not_fit_is_a_dead_letter_at_once(site: Site) -> None:
    worker = Worker()

    @worker.service
    async def greet(name: str) -> str:
        return name

    @worker.service
    async def picky() -> None:
        raise Refused("never")

    await site.start(worker)
    for type, kind in (("greet", "SchemaInvalid"), ("picky", "Refused")):
        dead = await site.ended(type, {"nome": 1} if type == "greet" else {})
        assert (dead.state, dead.attempt) == ("dead", 1)
        assert dead.error is not None
        assert dead.error["kind"] == kind


async def test_failures_are_retried_with_the_next_attempt(site: Site) -> None:
    worker = Worker()
    attempts = []

    @worker.service
    async def flaky(ctx: Context) -> str:
        attempts.append((ctx.attempt, ctx.key))
        if ctx.attempt < 3:
            raise RuntimeError("not yet")
        return "now"

    await site.start(worker)
    done = await site.ended("flaky", idempotency_key="k-1")
    assert done.result == "now"
    assert attempts == [(1, "k-1"), (2, "k-1"), (3, "k-1")]


async def test_a_type_it_does_not_serve_goes_back_and_burns_nothing(site: Site) -> None:
    worker = Worker()

    @worker.service
    async def mine() -> None: ...

    await site.start(worker)
    task = await site.client.submit("others", {}, queue="streams", max_retries=0)
    await wait_until_put_off(site.client, task.id)


@pytest.mark.contract("S1-5")
async def test_heartbeats_keep_a_long_task_and_add_no_entry(site: Site) -> None:
    worker = Worker()
    go = asyncio.Event()

    @worker.service
    async def slow() -> str:
        await go.wait()
        return "done"

    await site.start(worker)
    task = await site.client.submit("slow", **OVER)
    await site.running(task.id)
    ((entry, _),) = await site.redis.xrange(TASKS)

    async def pending() -> dict[str, Any]:
        (row,) = await site.redis.xpending_range(TASKS, GROUP, entry, entry, 1)
        return dict(row)

    name = (await pending())["consumer"]
    for _ in range(3):
        # As if it had been silent for most of the time: three times make more than it may be.
        silence = {"idle": 20_000, "justid": True}
        await site.redis.xclaim(TASKS, GROUP, name, 0, [entry], **silence)
        await wait_until(pending, holds=lambda row: row["time_since_delivered"] < 10_000)
        assert (await site.redis.xlen(TASKS), await site.redis.xlen(RESULTS)) == (1, 0)
    go.set()
    assert (await site.client.wait(task.id, timeout_ms=60_000)).result == "done"
    assert "task.reclaimed" not in await site.types(task.id)


async def test_it_takes_no_more_than_it_has_hands_for(site: Site) -> None:
    worker = Worker(concurrency=2)
    running, most = 0, 0

    @worker.service
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.2)
        running -= 1

    await site.start(worker)
    tasks = [await site.client.submit("work", **OVER) for _ in range(8)]
    pending = set()
    while (await site.client.get(tasks[-1].id)).state != "succeeded":
        pending.add((await site.redis.xpending(TASKS, GROUP))["pending"])
        await asyncio.sleep(0.02)
    assert most == 2
    assert max(pending) <= 2


@pytest.mark.contract("S1-3")
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_canceled_task_is_stopped_within_a_second_or_two(site: Site, kind: str) -> None:
    worker = Worker()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    if kind == "async":

        @worker.service(name="long")
        async def long() -> None:
            try:
                await asyncio.sleep(30)
            finally:
                stopped.set()
    else:

        @worker.service(name="long")
        def plain(ctx: PlainContext) -> None:
            while not ctx.cancelled:
                threading.Event().wait(0.05)
            loop.call_soon_threadsafe(stopped.set)

    await site.start(worker)
    task = await site.client.submit("long", **OVER)
    await site.running(task.id)
    await site.client.cancel(task.id)
    await asyncio.wait_for(stopped.wait(), 60)
    done = await site.client.wait(task.id, timeout_ms=60_000)
    assert done.state == "canceled"


@pytest.mark.contract("S1-3", "S1-10")
async def test_a_cancel_does_not_reach_the_replay_that_follows_it(site: Site) -> None:
    worker = Worker()
    runs = []

    @worker.service
    async def work() -> str:
        runs.append(1)
        await asyncio.sleep(30 if len(runs) == 1 else 1.5)
        return "done"

    await site.start(worker)
    task = await site.client.submit("work", **OVER)
    await site.running(task.id)
    await site.client.cancel(task.id)
    assert (await site.client.wait(task.id, timeout_ms=60_000)).state == "canceled"
    await site.client.retry(task.id)
    assert (await site.client.wait(task.id, timeout_ms=60_000)).result == "done"


async def _stolen(site: Site, task: str) -> str:
    """Somebody else claims the entry from under the worker."""
    ((entry, _),) = await site.redis.xrange(TASKS)
    await site.redis.xclaim(TASKS, GROUP, "thief", 0, [entry])
    return str(entry.decode())


@pytest.mark.contract("S1-5")
async def test_a_beat_for_another_workers_entry_takes_nothing_back(site: Site) -> None:
    worker = Worker()
    began, stopped = asyncio.Event(), asyncio.Event()

    @worker.service
    async def long(ctx: Context) -> str:
        began.set()
        try:
            await asyncio.sleep(30)
        finally:
            stopped.set()
        return "never"

    await site.start(worker)
    task = await site.client.submit("long", **OVER)
    await asyncio.wait_for(began.wait(), 60)
    entry = await _stolen(site, task.id)
    await asyncio.wait_for(stopped.wait(), 60)
    (row,) = await site.redis.xpending_range(TASKS, GROUP, entry, entry, 1)
    assert row["consumer"] == b"thief"
    assert await site.redis.xlen(RESULTS) == 0, "what came of it is dropped"


@pytest.mark.contract("S1-4")
async def test_an_answer_for_another_workers_entry_is_dropped_and_acks_nothing(site: Site) -> None:
    worker = Worker()
    began, go, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @worker.service
    def quick(ctx: PlainContext) -> str:
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        loop.call_soon_threadsafe(over.set)
        return "stale"

    loop = asyncio.get_running_loop()
    await site.start(worker)
    task = await site.client.submit("quick", **OVER)
    await asyncio.wait_for(began.wait(), 60)
    transport: Any = worker._transport
    transport._held.clear()  # so that no heartbeat finds out before the answer does
    entry = await _stolen(site, task.id)
    go.set()
    await asyncio.wait_for(over.wait(), 60)
    await wait_until(lambda: len(transport._running) == 0)
    (row,) = await site.redis.xpending_range(TASKS, GROUP, entry, entry, 1)
    assert row["consumer"] == b"thief"
    assert (await site.client.get(task.id)).state in ("queued", "running")  # as was last seen


@pytest.mark.contract("S1-13", "N-7")
async def test_a_drained_worker_finishes_what_it_can_and_leaves_no_name(site: Site) -> None:
    worker = Worker(id="drains")
    began = asyncio.Event()

    @worker.service
    async def work() -> str:
        began.set()
        await asyncio.sleep(0.5)
        return "done"

    await site.start(worker)
    task = await site.client.submit("work", **OVER)
    await asyncio.wait_for(began.wait(), 60)
    worker.drain()
    await asyncio.wait_for(site.serving, 30)
    assert (await site.client.wait(task.id, timeout_ms=60_000)).result == "done"
    assert not [name for name in await site.consumers() if name.startswith("drains")]


@pytest.mark.contract("S1-13", "N-7")
async def test_what_a_drained_worker_cannot_finish_goes_back_at_once_and_unburned(
    site: Site,
) -> None:
    worker = Worker(id="drains", grace_ms=100)
    began = asyncio.Event()

    @worker.service
    async def work() -> str:
        began.set()
        await asyncio.sleep(60)
        return "never"

    await site.start(worker)
    task = await site.client.submit("work", **OVER)
    await asyncio.wait_for(began.wait(), 60)
    await site.running(task.id)
    worker.drain()
    await asyncio.wait_for(site.serving, 30)
    heir = Worker(id="heir")

    @heir.service(name="work")
    async def again(ctx: Context) -> int:
        return ctx.attempt

    await site.start(heir)
    assert (await site.client.wait(task.id, timeout_ms=60_000)).result == 1
    types = await site.types(task.id)
    assert "task.released" in types
    assert "task.reclaimed" not in types


@pytest.mark.contract("S1-8", "N-7")
async def test_progress_parts_and_effects_go_to_a_server_that_is_named(site: Site) -> None:
    worker = Worker(site.url)
    charged = []

    def charge() -> str:
        charged.append(1)
        return "r-1"

    @worker.service
    async def pay(ctx: Context) -> Any:
        await ctx.progress(0.25, "a quarter")
        await ctx.emit({"part": 1})
        receipt = await ctx.once("charge", charge)
        if ctx.attempt == 1:
            raise RuntimeError("after the charge")
        return receipt

    await site.start(worker)
    done = await site.ended("pay")
    assert (done.result, charged) == ("r-1", [1])
    page = await site.client.events(done.id)
    events = {event.type: event.data for event in page.items}
    assert events["task.progress"] == {"progress": 0.25, "message": "a quarter"}
    assert events["task.chunk"] == {"part": 1}


@pytest.mark.contract("S1-8", "S1-13")
async def test_a_foreign_entry_acts_once_however_late_the_server_adopts_it(site: Site) -> None:
    worker = Worker(site.url)
    charged: list[str] = []

    @worker.service
    async def pay(ctx: Context) -> Any:
        return await ctx.once("charge", lambda: charged.append(ctx.task_id))

    await site.start(worker)
    tasks = [f"theirs-{n}" for n in range(5)]
    for task in tasks:
        await site.redis.xadd(TASKS, {"task_id": task, "tool_name": "pay", "payload": "{}"})
    for task in tasks:
        await wait_until(partial(_found, site, task))
        done = await site.client.wait(task, timeout_ms=60_000)
        assert (done.state, done.attempt) == ("succeeded", 1)
    assert sorted(charged) == tasks


async def _found(site: Site, task: str) -> bool:
    try:
        await site.client.get(task)
    except ProblemError:
        return False
    return True


@pytest.mark.contract("S1-8", "N-7")
async def test_without_a_server_progress_is_dropped_and_once_says_what_to_set(site: Site) -> None:
    worker = Worker()
    seen: list[str] = []

    @worker.service
    async def pay(ctx: Context) -> str:
        await ctx.progress(0.5)
        await ctx.emit("part")
        try:
            await ctx.once("charge", lambda: 1)
        except ServerNeeded as error:
            seen.append(str(error))
        return "paid"

    await site.start(worker)
    assert (await site.ended("pay")).result == "paid"
    assert "ONWARD_URL" in seen[0]


async def test_a_worker_survives_a_deleted_group(site: Site) -> None:
    worker = Worker()

    @worker.service
    async def echo(n: int) -> int:
        return n

    await site.start(worker)
    assert (await site.ended("echo", {"n": 1})).result == 1
    await site.redis.xgroup_destroy(TASKS, GROUP)
    assert (await site.ended("echo", {"n": 2})).result == 2


@pytest.mark.contract("S1-2", "S1-4")
async def test_it_serves_any_program_of_the_protocol_without_our_server() -> None:
    url = fresh_url("valkey")
    line: Any = redis.asyncio.Redis.from_url(url, protocol=2)
    worker = Worker(id="alone")

    @worker.service
    async def echo(n: int) -> int:
        return n

    serving = asyncio.create_task(worker.serve(redis=url))
    await line.xadd(TASKS, {"task_id": "a", "tool_name": "echo", "payload": '{"n": 7}'})
    await line.xadd(TASKS, {"tool_name": "echo"})
    for stream in (RESULTS, DEAD):
        await wait_until(partial(line.xlen, stream))
    ((_, answer),) = await line.xrange(RESULTS)
    said = text(answer)
    assert (said["task_id"], said["status"], said["result"]) == ("a", "succeeded", "7")
    assert said["worker"].startswith("alone:")
    assert said["finished_at"].isdigit()
    assert "fence" not in said, "nobody gave it one"
    ((_, letter),) = await line.xrange(DEAD)
    assert text(letter)["error"] == "an entry without task_id"
    assert (await line.xpending(TASKS, GROUP))["pending"] == 0
    worker.drain()
    await asyncio.wait_for(serving, 30)
    assert await line.xinfo_consumers(TASKS, GROUP) == []
    await line.aclose()


async def test_a_worker_that_is_stopped_while_it_answers_leaves_no_connection_behind() -> None:
    url = fresh_url("valkey")
    line: Any = redis.asyncio.Redis.from_url(url, protocol=2)
    worker = Worker(id="alone")
    returned = asyncio.Event()

    @worker.service
    async def echo(n: int) -> int:
        await line.client_pause(60_000, all=False)  # the answer is sent, and waits there
        returned.set()
        return n

    serving = asyncio.create_task(worker.serve(redis=url))
    try:
        await line.xadd(TASKS, {"task_id": "a", "tool_name": "echo", "payload": '{"n": 7}'})
        await asyncio.wait_for(returned.wait(), 60)
        stopped: Any = worker._transport
        await wait_until(lambda: bool(stopped._running._answering))
        serving.cancel()
        await asyncio.wait({serving})
    finally:
        await line.client_unpause()
        await line.aclose()
    assert len(stopped._running) == 0, "no answer is sent on a closed connection"
    assert stopped._held == {}


def test_a_group_cannot_be_served_over_streams() -> None:
    worker = Worker()

    @worker.group("g")
    async def group(payload: Any) -> None: ...

    with pytest.raises(ValueError, match="over streams, services only"):
        asyncio.run(worker.serve(redis="redis://127.0.0.1:1"))


@pytest.mark.contract("Y-5")
async def test_what_a_handler_logs_reaches_the_server(site: Site) -> None:
    worker = Worker(site.url)

    @worker.service
    async def speak() -> None:
        logging.getLogger("shop").warning("over streams")

    await site.start(worker)
    done = await site.ended("speak")

    assert done.state == "succeeded"
    assert [line.message for line in (await site.client.task_logs(done.id)).items] == [
        "over streams"
    ]
