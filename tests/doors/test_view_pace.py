"""The views take little of what others need: time, memory, and the end of a full Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest

from onward.core.task import Event
from onward.doors.redis_views import projector
from onward.doors.redis_views.projector import BATCH, LONGEST_REST_S, TOGETHER, Metered, SeedViews
from onward.doors.redis_views.writer import MOST_BYTES, Item, Superseded, ViewWriter
from tests.doors.seed_003 import Seed003
from tests.doors.summarizing import submitted, summarizer
from tests.running_app import running_app
from tests.servers import RedisServer, fresh_url, shared
from tests.support import wait_until

pytestmark = pytest.mark.contract("R-4")

BURNED_S = 0.05


def burn() -> None:
    until = time.thread_time() + BURNED_S
    while time.thread_time() < until:
        pass


async def test_only_the_steps_of_the_work_itself_are_metered() -> None:
    done = asyncio.Event()

    async def work() -> None:
        burn()
        await done.wait()
        burn()

    async def neighbour() -> None:
        for _ in range(10):
            burn()
            await asyncio.sleep(0)
        done.set()

    metered = Metered(work())
    await asyncio.gather(_awaited(metered), neighbour())
    assert 2 * BURNED_S <= metered.cpu_s < 4 * BURNED_S, "without the neighbour's ten"


async def test_what_goes_wrong_or_is_canceled_goes_through() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("so")

    with pytest.raises(ValueError, match="so"):
        await Metered(fails())

    ended = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    task = asyncio.ensure_future(_awaited(Metered(waits())))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def _awaited(work: Metered) -> None:
    await work


async def test_a_full_batch_rests_after_a_few_tasks_and_not_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from onward.ledgers.redis.client import connect

    redis = connect(fresh_url("valkey"))
    done: list[str | float] = []

    class Noting(ViewWriter):
        async def write(self, items: Sequence[Item]) -> None:
            done.extend(item.id for item in items)

    async def rest(spent_s: float, longest_s: float) -> float:
        done.append(longest_s)
        return 0.25

    monkeypatch.setattr(projector, "_rest", rest)
    async with running_app(ledger=shared("valkey").url, archive="") as app:
        views = SeedViews(app.onward.dispatcher, Noting(redis, "", beside_ledger=False), whole=True)
        events = [Event(f"t{n}", 1, 1, "task.created", 0, None) for n in range(BATCH)]
        await views.project(events)
    rests = [at for at, one in enumerate(done) if isinstance(one, float)]
    assert max(b - a - 1 for a, b in pairwise([-1, *rests])) == TOGETHER
    assert len(done) - len(rests) == BATCH
    assert done[rests[0]] == LONGEST_REST_S
    assert done[rests[1]] == LONGEST_REST_S - 0.25, "what is left for the whole batch"
    await redis.aclose()


async def test_a_rest_ends_when_nothing_is_left_for_it() -> None:
    resting = asyncio.ensure_future(projector._rest(3_600.0, -1.0))
    await wait_until(resting.done)


async def test_one_call_is_bounded_in_bytes_and_larger_tasks_go_by_themselves() -> None:
    from onward.ledgers.redis.client import connect

    redis = connect(fresh_url("valkey"))
    sizes: list[int] = []

    class Counting(ViewWriter):
        async def _call(self, script: object, request: bytes) -> object:
            sizes.append(len(request))
            return await super()._call(script, request)

    writer = Counting(redis, "", beside_ledger=False)
    fields = ["state", "PENDING", "content", "x" * (MOST_BYTES // 3)]
    items = [Item(id=f"t{n}", fields=fields, place="tasks:pending:primary") for n in range(7)]
    await writer.write([*items, Item(id="big", fields=["content", "x" * 3 * MOST_BYTES])])
    assert max(sizes[:-1]) <= MOST_BYTES + 100
    client = shared("valkey").client
    assert client.llen("tasks:pending:primary") == 7
    assert client.hstrlen("task:big", "content") == 3 * MOST_BYTES
    await redis.aclose()


async def test_nothing_is_written_into_a_redis_that_has_lost_its_ledger() -> None:
    from onward.ledgers.redis.client import connect

    redis = connect(fresh_url("valkey"))
    with pytest.raises(Superseded):
        await ViewWriter(redis, "", beside_ledger=True).write(
            [Item(id="t", fields=["state", "PENDING"])]
        )
    assert shared("valkey").client.keys("*") == []
    await redis.aclose()


async def test_views_are_written_in_a_redis_that_is_full() -> None:
    server = RedisServer("valkey")
    seed = Seed003()
    seed.redis = server.client
    try:
        async with running_app(ledger=server.url, archive="") as app:
            worker = await summarizer(app)
            task = await submitted(app)
            await wait_until(lambda: seed.state(task) == "ACTIVE")
            server.client.config_set("maxmemory", 1_000_000)
            refused = await app.post("/api/v1/tasks/summarize/", {"content": "x"})
            assert refused.status_code == 503
            await worker.answer((await worker.task())["taskId"], "short")
            await wait_until(lambda: seed.state(task) == "COMPLETED")
            server.client.config_set("maxmemory", 0)
    finally:
        server.close()
