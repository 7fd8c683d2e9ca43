"""The host of one process, without Celery around it: what a wake-up does to the ledger."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from onward import TryAgain
from onward.core.task import State
from onward.services.function import Service
from onward.settings import Settings
from onward.workers.celery import host as host_module
from onward.workers.celery.host import TRANSPORT, CeleryHost, HostThread
from onward.workers.celery.wiring import DEFAULT_QUEUE, wake_queue
from onward.workers.ledger.worker import Membership
from tests.celery.ledger_client import LedgerClient, ledger_client, until
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
        self.go.wait(10)
        return n

    async def patient(self) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            self.stopped.set()

    def broken(self) -> None:
        self.done.append(0)
        raise TryAgain("down")


class Shop:
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
async def shop(redis: RedisServer, doings: Doings) -> AsyncIterator[Shop]:
    redis.client.flushall()
    async with ledger_client(redis) as here:
        shop = Shop(here, doings, lease_ms=600, retry_schedules={"Default": [60.0]})

        async def signed_on() -> bool:
            return await here.workers() == ["celery@test/1"]

        await until(signed_on)
        yield shop
        doings.go.set()
        await shop.close()


async def test_one_wake_up_does_all_that_waits_and_wakes_one_other(
    shop: Shop, doings: Doings
) -> None:
    ids = [await shop.ledger.submit("quick", {"n": n}) for n in range(5)]
    await shop.work("quick")
    assert doings.done == [0, 1, 2, 3, 4]
    assert shop.passed_on == 1
    check_redis_invariants(shop.ledger.redis.client, ids)


async def test_the_last_task_wakes_no_other_and_neither_does_an_empty_queue(
    shop: Shop, doings: Doings
) -> None:
    await shop.ledger.submit("quick", {"n": 1})
    await shop.work("quick")
    await shop.work("quick")
    assert (doings.done, shop.passed_on) == ([1], 0)


async def test_a_queue_that_is_not_served_here_is_left_alone(shop: Shop) -> None:
    id = await shop.ledger.submit("elsewhere", {})
    await shop.work("elsewhere")
    assert (await shop.ledger.get(id)).fence == 0


async def test_after_a_while_a_run_takes_nothing_more_but_ends_what_it_has(
    shop: Shop, doings: Doings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "CLAIM_S", 0.1)
    ids = [await shop.ledger.submit("slow", {"n": n}) for n in range(3)]
    working = asyncio.create_task(shop.work("slow"))
    await wait_until(lambda: doings.done == [0])
    await asyncio.sleep(0.3)  # its time is over, its task is not
    assert not working.done()
    doings.go.set()
    await working
    states = [(await shop.ledger.get(id)).state for id in ids]
    assert states == [State.SUCCEEDED, State.QUEUED, State.QUEUED]
    assert [(await shop.ledger.get(id)).fence for id in ids] == [1, 0, 0]


async def test_work_that_is_no_longer_ours_is_stopped(shop: Shop, doings: Doings) -> None:
    id = await shop.ledger.submit("patient", {})
    working = asyncio.create_task(shop.work("patient"))
    await shop.ledger.until(id, State.RUNNING)
    await shop.ledger.dispatcher.cancel(id)
    await wait_until(doings.stopped.is_set)
    await working
    assert (await shop.ledger.get(id)).state is State.CANCELED


async def test_closing_hands_back_what_does_not_end_in_time(shop: Shop, doings: Doings) -> None:
    id = await shop.ledger.submit("slow", {})
    working = asyncio.create_task(shop.work("slow"))
    await wait_until(lambda: doings.done == [0])
    await shop.close(grace_ms=50)
    await working
    task = await shop.ledger.get(id)
    assert (task.state, task.attempt, task.lost) == (State.QUEUED, 0, 0)
    assert await shop.ledger.workers() == []


async def test_what_ends_in_time_is_not_handed_back(shop: Shop, doings: Doings) -> None:
    id = await shop.ledger.submit("slow", {})
    working = asyncio.create_task(shop.work("slow"))
    await wait_until(lambda: doings.done == [0])
    closing = asyncio.create_task(shop.close(grace_ms=5_000))
    await asyncio.sleep(0.1)
    assert not closing.done()
    doings.go.set()
    await asyncio.gather(working, closing)
    assert (await shop.ledger.get(id)).state is State.SUCCEEDED


@pytest.mark.contract("S3-11")
async def test_a_service_that_is_down_is_left_alone_and_no_process_is_woken(
    shop: Shop, doings: Doings
) -> None:
    for _ in range(14):
        await shop.ledger.submit("broken", {}, profile="tasks")
    await shop.work("broken")
    tried = len(doings.done)
    assert tried < 14, "no breaker opened"
    before = shop.passed_on
    await shop.work("broken")
    assert (len(doings.done), shop.passed_on) == (tried, before)


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


async def test_a_sweep_returns_what_waits_for_celery_workers(shop: Shop) -> None:
    later = shop.ledger.dispatcher.clock.now() + 50
    await shop.ledger.submit("quick", {}, run_at=later)
    await shop.ledger.submit("quick", {})
    await shop.ledger.submit("elsewhere", {})

    async def swept() -> bool:
        return await shop.sweep() == {"quick": 2}

    await until(swept)
