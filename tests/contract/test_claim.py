"""Going out: whose turn it is, and what a claim returns."""

from __future__ import annotations

import asyncio

import pytest

from onward.core.contract import Ask, Want
from onward.core.outcome import Failed, Released
from onward.core.policy import Overrides
from onward.core.task import Lane, Priority, State
from onward.faults import Fault
from tests.contract.driver import Driver, submission
from tests.support import LEASE_MS, NOW, a_task, an_ask, ids

NO_DELAY = Overrides(backoff_ms=(0,)).encode()


def want(
    queue: str = "q",
    priority: Priority = Priority.NORMAL,
    lane: Lane = Lane.PRIMARY,
    limit: int = 10,
) -> Want:
    return Want(queue, priority, lane, limit)


async def test_an_empty_queue_gives_nothing(driver: Driver) -> None:
    assert await driver.claim(limit=5) == []
    assert await driver.store.claim([], now=NOW) == []


@pytest.mark.contract("S0-10")
async def test_a_claim_takes_the_oldest_and_no_more_than_asked(driver: Driver) -> None:
    tasks = await driver.submit_some(5)
    assert ids(await driver.claim(limit=2)) == ids(tasks[:2])
    assert ids(await driver.claim(limit=10)) == ids(tasks[2:])
    assert await driver.claim() == []


async def test_a_claim_raises_fence_and_rev_and_starts_the_clocks(driver: Driver) -> None:
    task = await driver.submit(attempt_ms=50_000, expires_at=NOW + 40_000)
    driver.now += 5
    (claimed,) = await driver.claim(worker="w7")
    found = await driver.task(task.id)
    assert (claimed.fence, claimed.rev) == (found.fence, found.rev) == (1, task.rev + 1)
    assert (found.state, found.worker, found.started_at) == (State.RUNNING, "w7", driver.now)
    assert (found.attempt, claimed.attempt) == (1, 1)
    assert found.lease_until == driver.now + LEASE_MS
    assert found.attempt_by == claimed.attempt_by == driver.now + 50_000
    assert found.due_at == driver.now + LEASE_MS, "the nearest of lease, attempt and age"
    events = await driver.events_of(task.id)
    assert [(e.n, e.type) for e in events] == [(1, "task.created"), (2, "task.claimed")]
    assert events[1].data == '{"worker":"w7","attempt":1}'


@pytest.mark.parametrize(
    ("fields", "due_at"),
    [
        ({}, NOW + LEASE_MS),
        ({"attempt_ms": 10}, NOW + 10),
        ({"expires_at": NOW + 20}, NOW + 20),
        ({"attempt_ms": 10, "expires_at": NOW + 5}, NOW + 5),
    ],
)
async def test_the_alarm_is_the_nearest_clock(
    driver: Driver, fields: dict[str, int], due_at: int
) -> None:
    claimed = await driver.running(**fields)
    assert (await driver.task(claimed.id)).due_at == due_at


async def test_a_claim_gives_what_is_needed_to_run_the_task(driver: Driver) -> None:
    task = await driver.submit(
        type="t", payload="[1]", key="k", parent="p", owner="o", overrides=NO_DELAY, journal="{}"
    )
    (claimed,) = await driver.claim()
    for name in type(claimed).__struct_fields__:
        if name not in ("worker", "fence", "rev", "attempt", "letters", "started_at"):
            assert getattr(claimed, name) == getattr(task, name), name
    assert isinstance(claimed.lane, Lane)
    assert claimed.started_at == driver.now


async def test_a_claim_gives_since_when_it_was_queued_and_runs(driver: Driver) -> None:
    """Of a task that was never moved, of one born into a free slot, and of one that comes again."""
    plain, dressed = await driver.submit(), await driver.submit(owner="o")
    driver.now += 7
    clocks = [(NOW, driver.now)] * 2
    claimed = await driver.claim(limit=2)
    assert [(one.id, one.queued_at, one.started_at) for one in claimed] == [
        (task.id, *clock) for task, clock in zip((plain, dressed), clocks, strict=True)
    ]
    born = submission(a_task(queue="r", created_at=driver.now))
    (straight,) = (await driver.insert(born, asks=(an_ask("r"),))).claimed
    assert (straight.queued_at, straight.started_at) == (driver.now, driver.now)
    driver.now += 5
    await driver.settle(claimed[0], Released())
    driver.now += 3
    (again,) = await driver.claim()
    assert (again.queued_at, again.started_at) == (driver.now - 3, driver.now)


@pytest.mark.contract("K-5")
async def test_a_claim_gives_the_owner(driver: Driver) -> None:
    """Also of a task that has nothing else out of the ordinary, born into a free slot or not."""
    await driver.submit(owner="o")
    await driver.submit()
    assert [claimed.owner for claimed in await driver.claim(limit=2)] == ["o", None]
    (born,) = (await driver.insert(submission(a_task(owner="o")), asks=(an_ask(),))).claimed
    assert born.owner == "o"


async def test_each_claim_raises_the_fence(driver: Driver) -> None:
    claimed = await driver.running()
    for fence in (2, 3, 4):
        await driver.settle(claimed, Released())
        (claimed,) = await driver.claim()
        assert claimed.fence == fence


async def test_wants_are_tried_in_order_until_the_limit(driver: Driver) -> None:
    low = await driver.submit_some(3, priority=Priority.LOW)
    high = await driver.submit_some(3, priority=Priority.HIGH)
    other = await driver.submit_some(2, queue="other")
    wants = (
        want("other", limit=1),
        want(priority=Priority.LOW, limit=2),
        want(priority=Priority.HIGH),
        want("other"),
    )
    claimed = await driver.store.claim([Ask("w", 5, wants, LEASE_MS)], now=NOW)
    assert ids(claimed) == ids([other[0], *low[:2], *high[:2]])
    claimed = await driver.store.claim([Ask("w", 5, wants, LEASE_MS)], now=NOW)
    assert ids(claimed) == ids([other[1], low[2], high[2]])


async def test_a_want_takes_its_own_lane_only(driver: Driver) -> None:
    held = await driver.running(overrides=NO_DELAY)
    await driver.settle(held, Failed(Fault(kind="Odd", message="")))
    (fresh,) = await driver.submit_some(1)
    asks = {lane: Ask("w", 5, (want(lane=lane),), LEASE_MS) for lane in Lane}
    assert ids(await driver.store.claim([asks[Lane.PRIMARY]], now=NOW)) == [fresh.id]
    (again,) = await driver.store.claim([asks[Lane.RETRY]], now=NOW)
    assert (again.id, again.lane, again.failures) == (held.id, Lane.RETRY, 1)


async def test_many_asks_are_filled_in_one_trip(driver: Driver) -> None:
    tasks = await driver.submit_some(5)
    asks = [an_ask(worker=name, limit=2) for name in "abc"]
    claimed = await driver.store.claim(asks, now=NOW)
    assert ids(claimed) == ids(tasks)
    assert [task.worker for task in claimed] == ["a", "a", "b", "b", "c"]


@pytest.mark.contract("S0-10")
async def test_no_task_is_claimed_twice(driver: Driver) -> None:
    tasks = await driver.submit_some(30)
    claims = await asyncio.gather(*(driver.claim(limit=3, worker=f"w{n}") for n in range(15)))
    found = [task for claimed in claims for task in claimed]
    assert sorted(ids(found)) == sorted(ids(tasks))


async def test_letters_come_with_the_claim_in_their_order(driver: Driver) -> None:
    task = await driver.submit()
    other = await driver.submit()
    await driver.post(task.id, "1", "2")
    await driver.post(task.id, "3")
    claimed = await driver.claim(limit=2)
    assert ids(claimed) == ids([task, other])
    assert [(letter.to, letter.name, letter.body) for letter in claimed[0].letters] == [
        (task.id, "signal", body) for body in "123"
    ]
    assert claimed[1].letters == ()


async def test_letters_that_no_settlement_has_seen_come_again(driver: Driver) -> None:
    task = await driver.submit()
    await driver.post(task.id, "1")
    (claimed,) = await driver.claim()
    await driver.settle(claimed, Released())
    await driver.post(task.id, "2")
    (claimed,) = await driver.claim()
    assert [letter.body for letter in claimed.letters] == ["1", "2"]
