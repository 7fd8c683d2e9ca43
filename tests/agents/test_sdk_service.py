"""`onward worker --via agent-stream`: the SDK's worker as a service of agents, on real streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from onward.client.context import Context
from onward.client.failures import Refused
from onward.client.worker import Worker
from tests.streams.sdk_site import Site, open_site
from tests.support import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("S2-3", "N-1")]

CREATE = "agent:stream:task.create"


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.delenv("ONWARD_URL", raising=False)
    async with open_site(retry_schedules={"agents": [0.05]}) as opened:
        opened.agents = True
        yield opened


async def test_services_are_given_their_own_tasks_on_their_own_streams(site: Site) -> None:
    worker = Worker(site.url, concurrency=1)

    @worker.service(name="report.generate")
    async def report(quarter: str) -> dict[str, str]:
        return {"file": f"{quarter}.pdf"}

    @worker.service(name="math.add")
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    await site.start(worker)
    await site.declared("report.generate", "math.add")
    done = await site.ended("report.generate", {"quarter": "Q4"}, session_id="s1")
    assert (done.result, done.state) == ({"file": "Q4.pdf"}, "succeeded")
    tasks = [await site.client.submit("math.add", {"numbers": [n, 1]}) for n in range(20)]
    results = [(await site.client.wait(task.id, timeout_ms=60_000)).result for task in tasks]
    assert results == [n + 1 for n in range(20)]
    assert (await site.redis.xinfo_stream(CREATE))["last-generated-id"] == b"0-0"
    assert await site.redis.exists(f"{CREATE}:report.generate", f"{CREATE}:math.add") == 2
    (answer,) = [
        fields
        for _, fields in await site.redis.xrange("agent:stream:task.completed")
        if b"Q4.pdf" in fields[b"data"]
    ]
    assert answer[b"event_type"] == b"task.completed"


async def test_errors_are_tried_again_or_not_as_over_every_other_transport(site: Site) -> None:
    worker = Worker(site.url)
    tried: list[int] = []

    @worker.service
    async def flaky(ctx: Context) -> str:
        tried.append(ctx.attempt)
        if ctx.attempt < 3:
            raise RuntimeError("not yet")
        return "at last"

    @worker.service
    async def strict(n: int) -> int:
        raise Refused("never")

    await site.start(worker)
    await site.declared("flaky", "strict")
    assert (await site.ended("flaky", session_id="s")).result == "at last"
    assert tried == [1, 2, 3]
    refused = await site.ended("strict", {"n": 1}, session_id="s")
    assert (refused.state, refused.error and refused.error["message"]) == ("dead", "never")
    assert refused.retries == 0


async def test_a_cancel_reaches_the_handler(site: Site) -> None:
    worker = Worker(site.url)
    begun, stopped = asyncio.Event(), asyncio.Event()

    @worker.service
    async def endless() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    await site.start(worker)
    await site.declared("endless")
    task = await site.client.submit("endless", {})
    await asyncio.wait_for(begun.wait(), 60)
    await wait_until(lambda: site.client.get(task.id), holds=lambda found: found.phase == "running")
    await site.client.cancel(task.id)
    await asyncio.wait_for(stopped.wait(), 60)
    assert (await site.client.wait(task.id, timeout_ms=60_000)).state == "canceled"


async def test_a_worker_that_leaves_hands_back_what_it_has_not_finished(site: Site) -> None:
    leaver, heir = Worker(site.url, grace_ms=0), Worker(site.url)
    begun = asyncio.Event()

    @leaver.service(name="long")
    async def never() -> str:
        begun.set()
        await asyncio.sleep(3600)
        return "never"

    @heir.service(name="long")
    async def done() -> str:
        return "by the heir"

    await site.start(leaver)
    serving = site.serving
    await site.declared("long")
    task = await site.client.submit("long", {})
    await asyncio.wait_for(begun.wait(), 60)
    leaver.drain()
    await asyncio.wait_for(serving, 60)
    await site.start(heir)
    ended = await site.client.wait(task.id, timeout_ms=60_000)
    assert (ended.result, ended.failures) == ("by the heir", 0)


async def test_without_a_server_it_reads_the_common_stream_and_takes_what_is_its_own(
    site: Site,
) -> None:
    worker = Worker()
    done: list[str] = []

    @worker.service
    async def mine() -> str:
        done.append("mine")
        return "m"

    @worker.service
    async def other() -> str:
        done.append("other")
        return "o"

    await site.start(worker)
    tasks = [await site.client.submit(name, {}, queue="agents") for name in ("mine", "other")]
    results = [(await site.client.wait(task.id, timeout_ms=60_000)).result for task in tasks]
    assert results == ["m", "o"]
    assert sorted(done) == ["mine", "other"], "each once, although both groups are given both"
    assert not await site.redis.exists(f"{CREATE}:mine")
