"""The host of one process, without Celery around it: what a wake-up does to the ledger."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from onward import TryAgain
from onward.client.service import Service
from onward.core.task import State
from onward.ledgers.redis.documents import RedisDocuments
from onward.services.catalog import KIND, RENEW_MS
from onward.settings import Settings
from onward.workers.celery import host as host_module
from onward.workers.celery.host import TRANSPORT, CeleryHost, HostThread
from onward.workers.celery.wiring import DEFAULT_QUEUE, wake_queue
from onward.workers.ledger.worker import Membership
from tests.celery.ledger_client import LedgerClient, ledger_client
from tests.faults.redis_invariants import check_redis_invariants
from tests.servers import RedisServer
from tests.support import wait_until

pytestmark = pytest.mark.contract("S3-13")


class Doings:
    """Services that a test looks at from outside."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.go = threading.Event()
        self.stopped = threading.Event()

    def quick(self, n: int = 0) -> int:
        self.done.append(n)
        return n

    def slow(self, n: int = 0) -> int:
        self.done.append(n)
        self.go.wait(60)
        return n

    async def patient(self) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            self.stopped.set()

    def broken(self) -> None:
        self.done.append(0)
        raise TryAgain("down")


class HostOnLedger:
    def __init__(self, here: LedgerClient, doings: Doings, **settings: Any) -> None:
        self.ledger = here
        self.passed_on = 0
        services = {
            name: Service(getattr(doings, name)) for name in ("quick", "slow", "patient", "broken")
        }
        chosen = Settings(ledger=here.redis.url, archive="", **settings)
        membership = Membership("celery@test/1", TRANSPORT, tuple(services), 1)
        self.host = HostThread(lambda: CeleryHost(chosen, here.redis.url, membership, services))

    async def work(self, queue: str) -> None:
        def pass_on() -> None:
            self.passed_on += 1

        await asyncio.to_thread(self.host.work, queue, pass_on)

    async def sweep(self) -> dict[str, int]:
        return dict(await asyncio.to_thread(self.host.sweep))

    async def close(self, grace_ms: int = 0) -> None:
        await asyncio.to_thread(self.host.close, grace_ms)


@pytest.fixture
def doings() -> Iterator[Doings]:
    doings = Doings()
    yield doings
    doings.go.set()


@pytest.fixture
async def hosted(redis: RedisServer, doings: Doings) -> AsyncIterator[HostOnLedger]:
    redis.client.flushall()
    async with ledger_client(redis) as here:
        hosted = HostOnLedger(here, doings, lease_ms=6_000, retry_schedules={"Default": [60.0]})

        async def signed_on() -> bool:
            return await here.workers() == ["celery@test/1"]

        await wait_until(signed_on)
        yield hosted
        doings.go.set()
        await hosted.close()


async def test_one_wake_up_does_all_that_waits_and_wakes_one_other(
    hosted: HostOnLedger, doings: Doings
) -> None:
    ids = [await hosted.ledger.submit("quick", {"n": n}) for n in range(5)]
    await hosted.work("quick")
    assert doings.done == [0, 1, 2, 3, 4]
    assert hosted.passed_on == 1
    check_redis_invariants(hosted.ledger.redis.client, ids)


async def test_the_last_task_wakes_no_other_and_neither_does_an_empty_queue(
    hosted: HostOnLedger, doings: Doings
) -> None:
    await hosted.ledger.submit("quick", {"n": 1})
    await hosted.work("quick")
    await hosted.work("quick")
    assert (doings.done, hosted.passed_on) == ([1], 0)


async def test_wake_ups_read_what_is_declared_twice_a_second_at_most(
    hosted: HostOnLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_ = RedisDocuments.list
    reads: list[str] = []

    async def counted(self: RedisDocuments, kind: str, **how: Any) -> Any:
        reads.append(kind)
        return await list_(self, kind, **how)

    monkeypatch.setattr(RedisDocuments, "list", counted)
    began = time.monotonic()
    for _ in range(10):
        await asyncio.gather(*(hosted.work("quick") for _ in range(4)))
    allowed = 2 + int((time.monotonic() - began) * 1_000 / RENEW_MS)
    assert reads.count(KIND) <= allowed


async def test_a_queue_that_is_not_served_here_is_left_alone(hosted: HostOnLedger) -> None:
    id = await hosted.ledger.submit("elsewhere", {})
    await hosted.work("elsewhere")
    assert (await hosted.ledger.get(id)).fence == 0


async def test_after_a_while_a_run_takes_nothing_more_but_ends_what_it_has(
    hosted: HostOnLedger, doings: Doings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "CLAIM_S", 0.1)
    ids = [await hosted.ledger.submit("slow", {"n": n}) for n in range(3)]
    working = asyncio.create_task(hosted.work("slow"))
    await wait_until(lambda: doings.done == [0])
    await asyncio.sleep(0.3)  # its time is over, its task is not
    assert not working.done()
    doings.go.set()
    await working
    states = [(await hosted.ledger.get(id)).state for id in ids]
    assert states == [State.SUCCEEDED, State.QUEUED, State.QUEUED]
    assert [(await hosted.ledger.get(id)).fence for id in ids] == [1, 0, 0]


async def test_work_that_is_no_longer_ours_is_stopped(hosted: HostOnLedger, doings: Doings) -> None:
    id = await hosted.ledger.submit("patient", {})
    working = asyncio.create_task(hosted.work("patient"))
    await hosted.ledger.until(id, State.RUNNING)
    await hosted.ledger.dispatcher.cancel(id)
    await wait_until(doings.stopped.is_set)
    await working
    assert (await hosted.ledger.get(id)).state is State.CANCELED


async def test_closing_hands_back_what_does_not_end_in_time(
    hosted: HostOnLedger, doings: Doings
) -> None:
    id = await hosted.ledger.submit("slow", {})
    working = asyncio.create_task(hosted.work("slow"))
    await wait_until(lambda: doings.done == [0])
    await hosted.close(grace_ms=50)
    await working
    task = await hosted.ledger.get(id)
    assert (task.state, task.attempt, task.lost) == (State.QUEUED, 0, 0)
    assert await hosted.ledger.workers() == []


async def test_what_ends_in_time_is_not_handed_back(hosted: HostOnLedger, doings: Doings) -> None:
    id = await hosted.ledger.submit("slow", {})
    working = asyncio.create_task(hosted.work("slow"))
    await wait_until(lambda: doings.done == [0])
    closing = asyncio.create_task(hosted.close(grace_ms=60_000))
    await asyncio.sleep(0.1)
    assert not closing.done()
    doings.go.set()
    await asyncio.gather(working, closing)
    assert (await hosted.ledger.get(id)).state is State.SUCCEEDED


@pytest.mark.contract("S3-11")
async def test_a_service_that_is_down_is_left_alone_and_no_process_is_woken(
    hosted: HostOnLedger, doings: Doings
) -> None:
    for _ in range(14):
        await hosted.ledger.submit("broken", {}, profile="tasks")
    await hosted.work("broken")
    tried = len(doings.done)
    assert tried < 14, "no breaker opened"
    before = hosted.passed_on
    await hosted.work("broken")
    assert (len(doings.done), hosted.passed_on) == (tried, before)


def test_wake_ups_that_are_not_read_do_not_pile_up(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis.client.flushall()
    monkeypatch.setenv("ONWARD_LEDGER", redis.url)
    name = "onward.workers.celery.celery"
    application = import_module(name)
    try:
        application._serve(conf=application.app.conf)
        waiting = {"echo": 60, "countdown": 2}
        monkeypatch.setattr(application._process, "_host", SimpleNamespace(sweep=lambda: waiting))
        monkeypatch.setattr(application._process, "_pid", os.getpid())
        names = [*map(wake_queue, ("echo", "countdown", "summarize")), DEFAULT_QUEUE]
        lying = []
        for _ in range(3):
            application._sweep()
            lying.append([redis.client.llen(f"onward:celery:{name}") for name in names])
        assert lying == [[16, 2, 0, 0]] * 3
    finally:
        application.app.close()
        del sys.modules[name]


async def test_a_sweep_returns_what_waits_for_celery_workers(hosted: HostOnLedger) -> None:
    later = hosted.ledger.dispatcher.clock.now() + 50
    await hosted.ledger.submit("quick", {}, run_at=later)
    await hosted.ledger.submit("quick", {})
    await hosted.ledger.submit("elsewhere", {})

    async def swept() -> bool:
        return await hosted.sweep() == {"quick": 2}

    await wait_until(swept)
