"""The sweep takes the one write path, too, on a ledger in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.core import alarm
from onward.core.alarm import Alarm
from onward.core.clock import ManualClock
from onward.core.contract import Verdict
from onward.core.dispatch import Dispatcher
from onward.core.errors import LedgerUnavailable
from onward.core.outcome import Succeeded
from onward.core.task import State
from tests.core.dispatcher import Observed, dispatcher
from tests.support import LEASE_MS, NOW, PROFILES, a_task, wait_until

__all__ = ["dispatcher"]


async def test_the_sweep_looks_at_everything_that_is_due(
    dispatcher: Observed, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarm, "BATCH", 3)
    await dispatcher.submit_all([a_task(run_at=NOW + 10) for _ in range(8)])
    sweep = Alarm(dispatcher).sweep
    assert await sweep() == 0
    clock.advance(10)
    assert await sweep() == 8
    assert await sweep() == 0
    assert dispatcher.tally["task.queued"] == 8
    dispatcher.add_worker(8)
    await wait_until(lambda: len(dispatcher.inbox) == 8)


async def test_what_is_kept_long_enough_is_forgotten(
    dispatcher: Observed, clock: ManualClock
) -> None:
    held = await dispatcher.running(profile="sync")
    await dispatcher.settle(held, Succeeded("1"))
    clock.advance(PROFILES["sync"].retention_ms - 1)
    await Alarm(dispatcher).sweep()
    assert (await dispatcher.task(held.id)).result == "1"
    clock.advance(1)
    await Alarm(dispatcher).sweep()
    assert await dispatcher.backend.tasks.get([held.id]) == [None]


async def test_of_two_sweepers_one_acts(dispatcher: Observed, clock: ManualClock) -> None:
    held = await dispatcher.running()
    clock.advance(LEASE_MS)
    other = Dispatcher(dispatcher.backend, PROFILES, clock)
    due = await dispatcher.backend.tasks.due(now=clock.now(), limit=10)
    await asyncio.gather(*(one.apply_clock(due, clock.now()) for one in (dispatcher, other)))
    assert (await dispatcher.history(held.id)).count("task.reclaimed") == 1
    assert dispatcher.tally["task.reclaimed"] + other.tally["task.reclaimed"] == 1


@pytest.mark.contract("S2-7")
async def test_an_overdue_task_is_told_of_once_and_may_still_succeed(
    dispatcher: Observed, clock: ManualClock
) -> None:
    held = await dispatcher.running(profile="notified", expires_at=NOW + 1_000)
    clock.advance(1_000)
    for _ in range(3):
        await Alarm(dispatcher).sweep()
    assert (await dispatcher.task(held.id)).overdue
    assert await dispatcher.settle(held, Succeeded("1")) is Verdict.APPLIED
    assert (await dispatcher.history(held.id))[2:] == ["task.timeout", "task.succeeded"]


@pytest.mark.contract("R-5")
async def test_a_task_that_takes_its_workers_with_it_dies(
    dispatcher: Observed, clock: ManualClock
) -> None:
    receipt = await dispatcher.submit(a_task())
    dispatcher.add_worker(10)
    for lost in range(1, 6):
        await wait_until(lambda lost=lost: len(dispatcher.inbox) == lost)  # type: ignore[misc]
        clock.advance(LEASE_MS)
        await Alarm(dispatcher).sweep()
    task = await dispatcher.task(receipt.task)
    assert (task.state, task.failures, task.retries) == (State.DEAD, 0, 0)
    assert (await dispatcher.history(task.id))[-2:] == ["task.failed", "task.dlq"]


async def test_the_sweep_goes_on_when_the_ledger_comes_back(
    dispatcher: Observed, clock: ManualClock
) -> None:
    await dispatcher.submit(a_task(run_at=NOW + 1))
    clock.advance(1)
    due, tried = dispatcher.backend.tasks.due, asyncio.Event()

    async def away(**_: Any) -> Any:
        dispatcher.backend.tasks.due = due  # type: ignore[method-assign]
        tried.set()
        raise LedgerUnavailable("away")

    dispatcher.backend.tasks.due = away  # type: ignore[method-assign]
    running = asyncio.create_task(Alarm(dispatcher, every_ms=1).run())
    await tried.wait()
    await wait_until(lambda: dispatcher.tally["task.queued"] == 1)
    running.cancel()
    await asyncio.wait([running])
