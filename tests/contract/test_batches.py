"""Batches: how many of their tasks are in which state, and the letter when none is left."""

from __future__ import annotations

import asyncio

import pytest

from onward.core import machine
from onward.core.contract import BATCH_OVER, Ask, Submission
from onward.core.outcome import Failed, Parked, Succeeded
from onward.core.task import State, Task
from onward.faults import Fault
from tests.contract.driver import Driver, submission
from tests.contract.peers import SHARED, two_servers
from tests.support import a_task, an_ask

BATCH = "the-batch"
BROKEN = Failed(Fault(kind="InvalidInput", message="no"))


def batch_itself(**fields: object) -> Submission:
    return submission(a_task(id=BATCH, queue="onward:batches", waiting_for="tasks", **fields))


async def counted(driver: Driver) -> dict[State, int]:
    (found,) = await driver.store.batches([BATCH])
    return dict(found)


@pytest.mark.contract("B-2")
async def test_a_batch_is_counted_by_state_with_each_move(driver: Driver) -> None:
    tasks = [a_task(batch=BATCH) for _ in range(4)]
    later = a_task(batch=BATCH, run_at=driver.now + 1_000)
    await driver.insert(*map(submission, [*tasks, later, a_task()]))
    assert await counted(driver) == {State.QUEUED: 4, State.SCHEDULED: 1}
    first, second = await driver.claim(limit=2)
    assert await counted(driver) == {State.QUEUED: 2, State.RUNNING: 2, State.SCHEDULED: 1}
    await driver.settle(first, Succeeded("1"))
    await driver.settle(second, BROKEN)
    await driver.intervene(await driver.task(later.id), machine.cancel)
    assert await counted(driver) == {
        State.QUEUED: 2, State.SUCCEEDED: 1, State.DEAD: 1, State.CANCELED: 1,
    }  # fmt: skip
    await driver.intervene(await driver.task(second.id), machine.replay)
    assert (await counted(driver))[State.QUEUED] == 3
    assert await driver.store.batches(["none", BATCH]) == [{}, await counted(driver)]


@pytest.mark.contract("B-2")
async def test_what_goes_straight_into_a_slot_or_back_from_one_is_counted(driver: Driver) -> None:
    ask = Ask("w", 1, an_ask(limit=1).wants, an_ask().lease_ms)
    inserted = await driver.insert(submission(a_task(batch=BATCH)), asks=(ask,))
    (held,) = inserted.claimed
    assert await counted(driver) == {State.RUNNING: 1}
    parked = Parked(seen=0, journal="{}", waiting_for="event")
    await driver.settle(held, parked)
    assert await counted(driver) == {State.WAITING: 1}
    await driver.post(held.id, "1")
    assert await counted(driver) == {State.QUEUED: 1}


@pytest.mark.contract("B-2")
async def test_what_is_purged_counts_until_its_batch_is(driver: Driver) -> None:
    await driver.insert(batch_itself())
    done = await driver.finished(batch=BATCH)
    assert await driver.store.purge([done.id], now=driver.now) == 1
    assert await counted(driver) == {State.SUCCEEDED: 1}
    (held,) = await driver.claim("onward:batches")
    await driver.settle(held, Succeeded("1"))
    assert await driver.store.purge([BATCH], now=driver.now) == 1
    assert await counted(driver) == {}


@pytest.mark.contract("B-2")
async def test_the_last_of_a_batch_wakes_it_with_one_letter(driver: Driver) -> None:
    await driver.insert(batch_itself())
    tasks = [a_task(batch=BATCH) for _ in range(5)]
    await driver.insert(*map(submission, tasks))
    held = await driver.claim(limit=5)
    await driver.apply(*[driver.decide(each, Succeeded("1")) for each in held[:2]])
    await driver.settle(held[2], BROKEN)
    assert (await driver.task(BATCH)).state is State.WAITING
    moved = await driver.apply(*[driver.decide(each, Succeeded("1")) for each in held[3:]])
    assert "onward:batches" in moved.awake
    (woken,) = await driver.claim("onward:batches")
    assert [letter.name for letter in woken.letters] == [BATCH_OVER]


@pytest.mark.contract("B-2")
async def test_a_batch_whose_tasks_are_canceled_is_over_too(driver: Driver) -> None:
    await driver.insert(batch_itself())
    (task,) = await driver.submit_some(1, batch=BATCH)
    await driver.intervene(task, machine.cancel)
    assert (await driver.task(BATCH)).state is State.QUEUED


@pytest.mark.contract("B-2")
@pytest.mark.parametrize("name", SHARED)
async def test_of_two_servers_that_end_the_last_tasks_one_sees_that(
    name: str,
) -> None:
    async with two_servers(name) as (one, other):
        drivers = Driver(one), Driver(other)
        await drivers[0].insert(batch_itself())
        for _ in range(15):
            tasks: list[Task] = [a_task(batch=BATCH) for _ in range(2)]
            await drivers[0].insert(*map(submission, tasks))
            held = await drivers[0].claim(limit=2)
            await asyncio.gather(
                *[
                    driver.settle(each, Succeeded("1"))
                    for driver, each in zip(drivers, held, strict=True)
                ]
            )
            (woken,) = await drivers[0].claim("onward:batches")
            parked = Parked(seen=len(woken.letters), journal="{}", waiting_for="tasks")
            await drivers[0].settle(woken, parked)
            assert (await drivers[0].task(BATCH)).state is State.WAITING
