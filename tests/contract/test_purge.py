"""Forgetting: only what is over, and not before everybody has read of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from onward.core.clock import ManualClock
from onward.core.contract import Verdict
from onward.core.outcome import Failed, Succeeded
from onward.core.tail import Tail
from onward.core.task import Event, State
from onward.faults import Fault
from tests.contract.driver import Driver
from tests.support import NOW

BAD = Failed(Fault(kind="InvalidInput", message="no"))


class Reader:
    name = "reader"

    async def project(self, events: Sequence[Event]) -> None:
        pass


async def test_a_finished_task_is_forgotten_with_its_events(driver: Driver) -> None:
    over = await driver.finished()
    kept = await driver.submit()
    assert await driver.store.purge([over.id, "nobody"], now=NOW) == 1
    assert await driver.store.get([over.id]) == [None]
    assert await driver.events_of(over.id) == []
    assert {event.task for event in await driver.log()} == {kept.id}
    assert await driver.store.counts() == await driver.recount()
    assert await driver.store.purge([over.id], now=NOW) == 0


async def test_live_work_is_never_forgotten(driver: Driver) -> None:
    live = [
        (await driver.running(queue="r")).id,
        (await driver.submit()).id,
        (await driver.submit(run_at=NOW + 5)).id,
        (await driver.submit(waiting_for="event")).id,
    ]
    before = await driver.store.get(live)
    assert await driver.store.purge(live, now=NOW + 10**12) == 0
    assert await driver.store.get(live) == before


async def test_every_kind_of_end_can_be_forgotten(driver: Driver) -> None:
    dead = await driver.running()
    await driver.settle(dead, BAD)
    failed = await driver.running(profile="sync")
    await driver.settle(failed, BAD)
    over = await driver.finished()
    assert await driver.store.purge([dead.id, failed.id, over.id], now=NOW) == 3
    assert await driver.store.counts() == {}


async def test_a_letter_to_a_forgotten_task_is_gone(driver: Driver) -> None:
    task = await driver.submit()
    await driver.post(task.id, "1")
    (held,) = await driver.claim()
    await driver.settle(held, Succeeded("1"))
    await driver.store.purge([held.id], now=NOW)
    assert (await driver.post(held.id, "2")).verdicts == [Verdict.GONE]


@pytest.mark.parametrize("readers", [1, 2])
async def test_nothing_is_forgotten_before_the_slowest_reader_has_read_it(
    driver: Driver, readers: int
) -> None:
    clock = ManualClock()
    reader, slow = Reader(), Reader()
    slow.name = "slow"
    first = await driver.finished()
    tails = [Tail(driver.backend, one, clock) for one in (reader, slow)[:readers]]
    for tail in tails:
        await tail.step()
    second = await driver.finished()
    assert await driver.store.purge([first.id, second.id], now=NOW) == 1
    assert await driver.store.get([first.id]) == [None]
    found = await driver.task(second.id)
    assert found.state is State.SUCCEEDED
    assert found.due_at is not None
    assert found.due_at > NOW, "tried again later, not at every sweep"
    for tail in tails:
        assert await driver.store.purge([second.id], now=NOW) == 0
        await tail.step()
    assert await driver.store.purge([second.id], now=NOW) == 1
