"""What a bound lets run, at once and by time: over every ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onward.core import machine
from onward.core.contract import Ask, Verdict
from onward.core.limits import Bound, Rate
from onward.core.outcome import Failed, Lost, Parked, Released, Succeeded
from onward.core.policy import CANCEL_GRACE_MS, Overrides
from onward.core.task import Claimed, Lane, Priority, State
from onward.faults import Fault
from onward.ledgers import open_backend
from onward.ledgers.sql.dialect import Step
from tests.contract.driver import Driver, submission
from tests.contract.ledgers import LASTING
from tests.support import LEASE_MS, NOW, PROFILES, a_task, an_ask, ids

AT_ONCE = Overrides(backoff_ms=(0,)).encode()
IN_5_S = Overrides(backoff_ms=(5_000,)).encode()
FAILED = Failed(Fault(kind="ServiceUnavailable", message=""))
SHARED = ("redis7", "valkey", "postgres15", "postgres18")


def total(most: int, *queues: str, types: tuple[str, ...] = (), name: str = "total") -> Bound:
    return Bound(name, False, most, None, queues or ("q",), types)


def each(most: int, *queues: str, types: tuple[str, ...] = (), name: str = "each") -> Bound:
    return Bound(name, True, most, None, queues or ("q",), types)


def rated(
    count: int, per_ms: int, burst: int = 1, *, each: bool = False, queues: Sequence[str] = ("q",)
) -> Bound:
    return Bound("rate", each, None, Rate(count, per_ms, burst), tuple(queues))


# At once.


@pytest.mark.contract("L-3")
async def test_no_more_than_the_bound_run_at_once(driver: Driver) -> None:
    tasks = await driver.submit_some(5)
    bounds = (total(3),)
    claimed = await driver.claim_all(limit=2, bounds=bounds)
    assert ids(claimed) == ids(tasks[:3])
    assert (await driver.usage(bounds[0])).used == 3
    assert await driver.settle(claimed[1], Succeeded("1")) is Verdict.APPLIED
    assert (await driver.usage(bounds[0])).used == 2
    assert ids(await driver.claim(limit=5, bounds=bounds)) == [tasks[3].id]


@pytest.mark.contract("L-3")
async def test_a_bound_of_none_pauses(driver: Driver) -> None:
    (task,) = await driver.submit_some(1, partition="a")
    for bound in (total(0), each(0)):
        assert await driver.claim(limit=5, bounds=(bound,)) == []
    assert ids(await driver.claim(bounds=(total(1), each(1)))) == [task.id]


@pytest.mark.contract("L-3")
async def test_what_is_only_offered_counts_too(driver: Driver) -> None:
    await driver.submit_some(3)
    offered = await driver.claim(lease_ms=None, bounds=(total(2),))
    assert len(await driver.claim(limit=5, bounds=(total(2),))) == 1
    await driver.apply(machine.delivered(offered[0], "v", driver.now, driver.now + LEASE_MS))
    assert await driver.claim(limit=5, bounds=(total(2),)) == []
    assert (await driver.usage(total(2))).used == 2


@pytest.mark.contract("L-3")
async def test_what_ran_before_the_bound_came_counts(driver: Driver) -> None:
    await driver.submit_some(6, partition="a")
    assert len(await driver.claim(limit=3)) == 3
    for bound in (total(3), each(3)):
        assert await driver.claim(limit=5, bounds=(bound,)) == []
        assert (await driver.usage(bound, "a")).used == 3
    assert len(await driver.claim(limit=5, bounds=(total(4),))) == 1
    assert len(await driver.claim(limit=5, bounds=(each(6),))) == 2


@pytest.mark.contract("L-3")
async def test_what_the_same_claim_took_elsewhere_hides_nothing_that_runs(driver: Driver) -> None:
    await driver.submit_some(2)
    assert len(await driver.claim()) == 1
    await driver.submit_some(2, queue="free", attempt_ms=1_000)
    wants = (
        *an_ask("free", limit=9).wants,
        *an_ask("q", limit=9, bounds=(total(1),)).wants,
    )
    claimed = await driver.store.claim([Ask("w", 9, wants, LEASE_MS)], now=driver.now)
    assert {task.queue for task in claimed} == {"free"}
    assert (await driver.usage(total(1))).used == 1


@pytest.mark.contract("L-3")
async def test_a_bound_holds_over_its_queues_and_types(driver: Driver) -> None:
    for queue, type_ in (("q", "a"), ("r", "b"), ("mixed", "a"), ("mixed", "c")):
        await driver.submit_some(2, queue=queue, type=type_)
    bounds = (total(3, "q", "r", types=("a",)),)
    assert len(await driver.claim("q", limit=1, bounds=bounds)) == 1
    assert len(await driver.claim("r", limit=1, bounds=bounds)) == 1
    claimed = await driver.claim("mixed", limit=5, bounds=bounds)
    assert sorted(task.type for task in claimed) == ["a", "c", "c"]
    for queue in ("q", "r", "mixed"):
        assert await driver.claim(queue, limit=5, bounds=bounds) == []
    assert (await driver.usage(bounds[0])).used == 3


@pytest.mark.contract("L-3")
@pytest.mark.parametrize("partition", ["", "p"])
async def test_a_type_at_its_bound_lets_others_of_its_queue_pass(
    driver: Driver, partition: str
) -> None:
    await driver.submit_some(40, type="a", partition=partition)
    others = await driver.submit_some(3, type="c", partition=partition)
    for bound in (total(1, "x", types=("a",)), each(1, "x", types=("a",))):
        claimed = await driver.claim_all(limit=2, bounds=(bound,))
        assert [task.type for task in claimed].count("a") == 1
        assert [task.id for task in claimed if task.type == "c"] == ids(others)
        for task in claimed:
            await driver.settle(task, Succeeded("1"))
        others = await driver.submit_some(2, type="c", partition=partition)


@pytest.mark.contract("L-3")
async def test_each_partition_has_its_own_bound(driver: Driver) -> None:
    for name in ("a", "b", ""):
        await driver.submit_some(4, partition=name)
    bounds = (each(2),)
    claimed = await driver.claim_all(limit=5, bounds=bounds)
    assert sorted(task.partition for task in claimed) == ["", "", "a", "a", "b", "b"]
    assert [(await driver.usage(bounds[0], name)).used for name in ("a", "", "z")] == [2, 2, 0]
    held = next(task for task in claimed if task.partition == "b")
    await driver.settle(held, Succeeded("1"))
    (more,) = await driver.claim(limit=5, bounds=bounds)
    assert more.partition == "b"


@pytest.mark.contract("L-3")
async def test_tasks_without_a_partition_at_their_bound_keep_no_other_waiting(
    driver: Driver,
) -> None:
    await driver.submit_some(3)
    await driver.submit(partition="a")
    assert len(await driver.claim_all(bounds=(each(1),))) == 2
    await driver.submit_some(2, partition="b")
    (claimed,) = await driver.claim(bounds=(each(1),))
    assert claimed.partition == "b"
    assert await driver.claim(bounds=(each(1),)) == []


@pytest.mark.contract("L-3")
async def test_both_bounds_hold_together(driver: Driver) -> None:
    for name in "abc":
        await driver.submit_some(4, partition=name)
    claimed = await driver.claim_all(limit=10, bounds=(total(5), each(2)))
    assert len(claimed) == 5
    assert max([task.partition for task in claimed].count(name) for name in "abc") == 2


@pytest.mark.contract("L-3")
async def test_a_bound_of_each_partition_holds_over_queues(driver: Driver) -> None:
    bounds = (each(1, "q", "r"),)
    await driver.submit_some(2, queue="q", partition="a")
    second = await driver.submit_some(2, queue="r", partition="a")
    (held,) = await driver.claim("q", limit=5, bounds=bounds)
    assert await driver.claim("r", limit=5, bounds=bounds) == []
    await driver.settle(held, Succeeded("1"))
    assert ids(await driver.claim("r", limit=5, bounds=bounds)) == ids(second[:1])
    assert await driver.claim("q", limit=5, bounds=bounds) == []


@pytest.mark.contract("L-3")
@pytest.mark.parametrize("way", ["settle", "release", "lapse", "cancel", "park", "retry", "lost"])
async def test_a_slot_is_free_again(driver: Driver, way: str) -> None:
    await driver.submit_some(2, partition="a", overrides=IN_5_S)
    bounds = (total(1), each(1))
    (held,) = await driver.claim(limit=5, bounds=bounds)
    assert await driver.claim(limit=5, bounds=bounds) == []
    profile = PROFILES["console"]
    match way:
        case "settle":
            await driver.settle(held, Succeeded("1"))
        case "release":
            await driver.settle(held, Released())
        case "lapse":
            driver.now += LEASE_MS
            (due,) = await driver.store.due(now=driver.now, limit=10)
            await driver.apply(machine.on_due(due, driver.now, profile))
        case "cancel":
            await driver.intervene(await driver.task(held.id), machine.cancel)
            assert await driver.claim(limit=5, bounds=bounds) == [], "it is only asked to stop"
            driver.now += CANCEL_GRACE_MS
            await driver.apply(machine.on_due(await driver.task(held.id), driver.now, profile))
        case "park":
            await driver.settle(held, Parked(seen=0, journal="{}", waiting_for="event"))
        case "retry":
            await driver.settle(held, FAILED)
        case _:
            await driver.settle(held, Lost())
    assert [(await driver.usage(bound, "a")).used for bound in bounds] == [0, 0]
    assert len(await driver.claim(limit=5, bounds=bounds)) == 1


@pytest.mark.contract("L-3")
async def test_a_partition_at_its_bound_does_not_keep_others_waiting(driver: Driver) -> None:
    bounds = (each(1),)
    for name in range(30):
        await driver.submit_some(2, partition=f"full{name}")
    assert len(await driver.claim_all(limit=7, bounds=bounds)) == 30
    late = await driver.submit_some(2, partition="free")
    assert ids(await driver.claim(limit=5, bounds=bounds)) == ids(late[:1])


@pytest.mark.contract("L-5")
async def test_a_bound_that_changes_holds_at_once(driver: Driver) -> None:
    for name in "ab":
        await driver.submit_some(5, partition=name)
    assert len(await driver.claim_all(limit=9, bounds=(each(1),))) == 2
    assert len(await driver.claim_all(limit=9, bounds=(each(2), total(3)))) == 1
    assert await driver.claim_all(limit=9, bounds=(each(1), total(3))) == []
    assert len(await driver.claim_all(limit=9, bounds=(each(2),))) == 1
    assert len(await driver.claim_all(limit=9)) == 6


@pytest.mark.contract("L-3")
async def test_bounds_hold_in_every_priority_and_lane(driver: Driver) -> None:
    again = await driver.running(partition="a", overrides=AT_ONCE)
    await driver.settle(again, FAILED)
    for priority in Priority:
        await driver.submit_some(2, partition="a", priority=priority)
    claimed = await driver.claim_all(limit=4, bounds=(each(3),))
    assert [task.lane for task in claimed] == [Lane.PRIMARY] * 3
    assert await driver.claim_all(limit=4, bounds=(each(3),)) == []
    await driver.settle(claimed[0], Succeeded("1"))
    assert len(await driver.claim(limit=4, bounds=(each(3),))) == 1


@pytest.mark.contract("L-3")
async def test_a_new_task_never_passes_a_bound_into_a_free_slot(driver: Driver) -> None:
    ask = an_ask(limit=5, bounds=(total(1),))
    new = [submission(a_task(created_at=driver.now)) for _ in range(3)]
    inserted = await driver.insert(*new, asks=(ask,))
    assert [receipt.running for receipt in inserted.receipts] == [False] * 3
    assert list(inserted.claimed) == []
    inserted = await driver.insert(submission(a_task(created_at=driver.now)), asks=(ask,))
    assert ids(inserted.claimed) == [new[0].task.id]
    (held,) = inserted.claimed
    moved = await driver.apply(driver.decide(held, Succeeded("1")), asks=(ask,))
    assert moved.claimed == (), "asks are filled before the moves are made"
    parent = await driver.running(queue="parents")
    move = driver.decide(
        parent,
        Parked(seen=0, journal="{}", waiting_for="children"),
        *(a_task(parent=parent.id) for _ in range(2)),
    )
    moved = await driver.apply(move, asks=(ask,))
    assert ids(moved.claimed) == [new[1].task.id]


@pytest.mark.contract("L-3")
async def test_a_bad_neighbour_changes_no_count(driver: Driver) -> None:
    """A move that is refused, and a batch that fails as a whole, leave what is used as it was."""
    await driver.submit_some(3, partition="a")
    bounds = (each(2),)
    held, other = await driver.claim(limit=5, bounds=bounds)
    done = driver.decide(held, Succeeded("1"))
    moved = await driver.apply(done, done)
    assert list(moved.verdicts) == [Verdict.APPLIED, Verdict.MOVED]
    assert (await driver.usage(bounds[0], "a")).used == 1
    assert await driver.settle(held, Succeeded("1")) is Verdict.MOVED
    assert (await driver.usage(bounds[0], "a")).used == 1
    assert len(await driver.claim(limit=5, bounds=bounds)) == 1
    assert await driver.settle(other, Released()) is Verdict.APPLIED
    assert (await driver.usage(bounds[0], "a")).used == 1


@pytest.mark.contract("L-3")
async def test_adopted_tasks_count(driver: Driver) -> None:
    await driver.insert(machine.adopted(a_task(created_at=driver.now, queue="q"), "celery"))
    await driver.submit_some(2)
    assert (await driver.usage(total(1))).used == 1
    assert await driver.claim(limit=5, bounds=(total(1),)) == []
    assert len(await driver.claim(limit=5, bounds=(total(2),))) == 1


# One at a time, in strict order.


@pytest.mark.contract("L-3")
async def test_in_strict_order_a_retry_holds_its_partition(driver: Driver) -> None:
    fields = {"partition": "a", "strict": True, "overrides": IN_5_S}
    tasks = await driver.submit_some(3, **fields)
    (other,) = await driver.submit_some(1, partition="b", strict=True)
    bounds = (each(1),)
    claimed = await driver.claim(limit=5, bounds=bounds)
    assert set(ids(claimed)) == {tasks[0].id, other.id}
    held = next(task for task in claimed if task.id == tasks[0].id)
    await driver.settle(held, FAILED)
    waits = await driver.task(held.id)
    assert (waits.state, waits.lane, waits.occupies) == (State.SCHEDULED, Lane.PRIMARY, True)
    assert (await driver.usage(bounds[0], "a")).used == 1
    assert await driver.claim(limit=5, bounds=bounds) == []
    driver.now = waits.due_at or 0
    await driver.apply(machine.on_due(waits, driver.now, PROFILES["console"]))
    (again,) = await driver.claim(limit=5, bounds=bounds)
    assert again.id == tasks[0].id, "before those behind it"
    await driver.settle(again, Succeeded("1"))
    assert ids(await driver.claim(limit=5, bounds=bounds)) == [tasks[1].id]


@pytest.mark.contract("L-3")
async def test_in_strict_order_a_retry_at_once_comes_first(driver: Driver) -> None:
    tasks = await driver.submit_some(2, partition="a", strict=True, overrides=AT_ONCE)
    (held,) = await driver.claim(limit=5, bounds=(each(1),))
    await driver.settle(held, FAILED)
    assert ids(await driver.claim(limit=5, bounds=(each(1),))) == [tasks[0].id]


@pytest.mark.contract("L-3")
async def test_a_canceled_retry_frees_its_partition(driver: Driver) -> None:
    tasks = await driver.submit_some(2, partition="a", strict=True, overrides=IN_5_S)
    (held,) = await driver.claim(limit=5, bounds=(each(1),))
    await driver.settle(held, FAILED)
    assert await driver.claim(limit=5, bounds=(each(1),)) == []
    await driver.intervene(await driver.task(held.id), machine.cancel)
    assert (await driver.usage(each(1), "a")).used == 0
    assert ids(await driver.claim(limit=5, bounds=(each(1),))) == [tasks[1].id]


@pytest.mark.contract("L-3")
async def test_a_strict_task_that_was_never_started_occupies_nothing(driver: Driver) -> None:
    later = await driver.submit(partition="a", strict=True, run_at=driver.now + 1_000)
    assert not later.occupies
    (next_,) = await driver.submit_some(1, partition="a", strict=True)
    assert (await driver.usage(each(1), "a")).used == 0
    assert ids(await driver.claim(limit=5, bounds=(each(1),))) == [next_.id]


# By time.


@pytest.mark.contract("L-4")
async def test_a_rate_spaces_starts(driver: Driver) -> None:
    tasks = await driver.submit_some(6)
    bounds = (rated(10, 1_000),)
    assert ids(await driver.claim(limit=5, bounds=bounds)) == ids(tasks[:2]), "one, and the burst"
    assert await driver.start_at("q", bounds=bounds) == {"q": NOW + 100}
    assert (await driver.usage(bounds[0])).start_at == NOW + 100
    driver.now = NOW + 99
    assert await driver.claim(limit=5, bounds=bounds) == []
    driver.now = NOW + 100
    assert ids(await driver.claim(limit=5, bounds=bounds)) == [tasks[2].id]
    assert await driver.start_at("q", bounds=bounds) == {"q": NOW + 200}
    driver.now = NOW + 10_000
    assert ids(await driver.claim(limit=5, bounds=bounds)) == ids(tasks[3:5])


@pytest.mark.contract("L-4")
async def test_no_window_holds_more_than_count_and_burst(driver: Driver) -> None:
    await driver.submit_some(60)
    bounds = (rated(5, 100, burst=3),)
    started: list[int] = []
    for _ in range(300):
        started += [driver.now] * len(await driver.claim(limit=9, bounds=bounds))
        driver.now += 1
    for at in started:
        assert sum(at <= other < at + 100 for other in started) <= 8
    assert len(started) == 4 + 14, "and none of it is given away"


@pytest.mark.contract("L-4")
async def test_a_start_may_cost_more(driver: Driver) -> None:
    tasks = await driver.submit_some(1, costs='{"rate":4,"other":9}')
    tasks += await driver.submit_some(1, costs='{"rate":3}')
    bounds = (rated(10, 1_000, burst=5),)
    assert ids(await driver.claim(limit=5, bounds=bounds)) == [tasks[0].id]
    # Paid off in 400 ms; a cost of 3 may be made when at most 3 are left to pay.
    found = await driver.start_at("q", bounds=bounds)
    assert found["q"] == NOW + 100
    driver.now = NOW + 99
    assert await driver.claim(limit=5, bounds=bounds) == []
    driver.now = NOW + 100
    assert ids(await driver.claim(limit=5, bounds=bounds)) == [tasks[1].id]


@pytest.mark.contract("L-4")
async def test_a_start_above_the_burst_waits_until_more_is_paid(driver: Driver) -> None:
    tasks = await driver.submit_some(1)
    tasks += await driver.submit_some(1, costs='{"rate":5}')
    bounds = (rated(10, 1_000),)
    assert ids(await driver.claim(limit=5, bounds=bounds)) == [tasks[0].id]
    driver.now = NOW + 399
    assert await driver.claim(limit=5, bounds=bounds) == []
    assert await driver.start_at("q", bounds=bounds) == {"q": NOW + 400}
    driver.now = NOW + 400
    assert ids(await driver.claim(limit=5, bounds=bounds)) == [tasks[1].id]


@pytest.mark.contract("L-4")
async def test_a_rate_of_each_partition(driver: Driver) -> None:
    for name in ("a", "b", ""):
        await driver.submit_some(4, partition=name)
    bounds = (rated(1, 1_000, each=True),)
    claimed = await driver.claim_all(limit=4, bounds=bounds)
    assert sorted(task.partition for task in claimed) == ["", "", "a", "a", "b", "b"]
    assert await driver.start_at("q", bounds=bounds) == {"q": NOW + 1_000}
    assert (await driver.usage(bounds[0], "a")).start_at == NOW + 1_000
    (late,) = await driver.submit_some(1, partition="c")
    assert ids(await driver.claim(limit=4, bounds=bounds)) == [late.id]
    driver.now = NOW + 999
    assert await driver.claim(limit=4, bounds=bounds) == []
    driver.now = NOW + 1_000
    assert len(await driver.claim_all(limit=4, bounds=bounds)) == 3


@pytest.mark.contract("L-4")
async def test_an_attempt_that_fails_has_cost_its_start(driver: Driver) -> None:
    await driver.submit_some(1, overrides=AT_ONCE)
    bounds = (rated(1, 1_000, burst=0),)
    (held,) = await driver.claim(limit=5, bounds=bounds)
    await driver.settle(held, FAILED)
    assert await driver.claim(limit=5, bounds=bounds) == []
    assert await driver.start_at("q", bounds=bounds) == {"q": NOW + 1_000}
    driver.now += 1_000
    assert len(await driver.claim(limit=5, bounds=bounds)) == 1


@pytest.mark.contract("L-6")
async def test_what_waits_for_no_rate_has_no_instant(driver: Driver) -> None:
    bounds = (rated(1, 1_000, burst=0, queues=("q", "r")), total(1, "r"))
    assert await driver.start_at("q", "r", bounds=bounds) == {}
    await driver.submit_some(1, queue="free")
    await driver.submit_some(2, queue="r")
    assert "free" not in await driver.start_at("free", bounds=())
    assert len(await driver.claim("r", limit=5, bounds=bounds)) == 1
    driver.now += 5_000
    assert await driver.start_at("q", "r", bounds=bounds) == {}, "it waits for another's end"
    unused = rated(1, 1_000)
    assert (await driver.usage(total(1))).start_at is None
    assert ((await driver.usage(unused)).start_at or 0) <= driver.now


@pytest.mark.contract("L-6")
async def test_the_first_partition_that_may_start_is_waited_for(driver: Driver) -> None:
    bounds = (rated(1, 1_000, burst=0, each=True),)
    await driver.submit_some(2, partition="a")
    await driver.claim(limit=5, bounds=bounds)
    driver.now += 300
    await driver.submit_some(2, partition="b")
    await driver.claim(limit=5, bounds=bounds)
    assert await driver.start_at("q", bounds=bounds) == {"q": NOW + 1_000}
    driver.now = NOW + 1_000
    (claimed,) = await driver.claim(limit=5, bounds=bounds)
    assert claimed.partition == "a"
    assert await driver.start_at("q", bounds=bounds) == {"q": NOW + 1_300}


# Over servers, and over an end.


@pytest.mark.contract("L-3", "L-4", "S0-6")
@pytest.mark.parametrize("ledger", LASTING)
async def test_what_is_used_survives_the_ledgers_end(ledger: str, tmp_path: Path) -> None:
    url = LASTING[ledger](tmp_path)
    bounds = (total(4), each(2), rated(1, 60_000, burst=2))
    backend = open_backend(url)
    driver = Driver(backend)
    await driver.submit_some(4, partition="a")
    await driver.submit_some(4, partition="b", strict=True, overrides=IN_5_S)
    claimed = await driver.claim_all(limit=9, bounds=bounds)
    assert len(claimed) == 3, "one, and the burst"
    strict = next(task for task in claimed if task.strict)
    await driver.settle(strict, FAILED)
    await backend.close()
    backend = open_backend(url)
    driver = Driver(backend)
    assert [(await driver.usage(bound, "b")).used for bound in bounds[:2]] == [
        3,
        sum(task.partition == "b" for task in claimed),
    ]
    assert await driver.claim(limit=9, bounds=bounds) == []
    assert await driver.start_at("q", bounds=bounds) == {"q": NOW + 60_000}
    driver.now += 60_000
    assert len(await driver.claim(limit=9, bounds=bounds)) == 1
    assert (await driver.usage(bounds[0])).used == 4
    driver.now += 60_000
    assert await driver.claim(limit=9, bounds=bounds) == []
    await backend.close()


@pytest.mark.contract("L-3")
@pytest.mark.parametrize("ledger", SHARED)
async def test_two_servers_together_keep_the_bounds(ledger: str, tmp_path: Path) -> None:
    url = LASTING[ledger](tmp_path)
    drivers = [Driver(open_backend(url)) for _ in range(2)]
    for name in "abcdef":
        await drivers[0].submit_some(6, partition=name)
    bounds = (total(7), each(2), rated(30, 1_000, burst=29))
    running: list[Claimed] = []
    starts = 0
    for turn in range(12):
        for driver in drivers:
            driver.now = NOW + turn
        found = await asyncio.gather(
            *(
                driver.claim(limit=4, worker=f"w{at}", bounds=bounds)
                for at, driver in enumerate(drivers * 3)
            )
        )
        new = [task for claimed in found for task in claimed]
        running += new
        starts += len(new)
        assert len(running) <= 7
        assert max([task.partition for task in running].count(name) for name in "abcdef") <= 2
        assert starts <= 59
        done, running = running[:3], running[3:]
        settled = await asyncio.gather(
            *(drivers[at % 2].settle(task, Succeeded("1")) for at, task in enumerate(done))
        )
        assert set(settled) <= {Verdict.APPLIED}
    left = await drivers[1].claim_all(limit=9, bounds=bounds[:1])
    assert len(running) + len(left) <= 7
    assert starts >= 20, "and they do not stand in each other's way"
    for driver in drivers:
        await driver.backend.close()


@pytest.mark.contract("L-3")
@pytest.mark.parametrize("ledger", SHARED)
async def test_one_server_frees_what_another_holds_up(ledger: str, tmp_path: Path) -> None:
    url = LASTING[ledger](tmp_path)
    one, two = (Driver(open_backend(url)) for _ in range(2))
    bounds = (each(1, "q", "r"),)
    await one.submit_some(1, queue="q", partition="a")
    await one.submit_some(1, queue="r", partition="a")
    for _ in range(5):
        (held,) = await one.claim("q", bounds=bounds)
        assert await two.claim("r", bounds=bounds) == []
        await asyncio.gather(one.settle(held, Released()), two.claim("x", bounds=bounds))
        (other,) = await two.claim("r", bounds=bounds)
        assert await one.claim("q", bounds=bounds) == []
        await two.settle(other, Released())
    for driver in (one, two):
        await driver.backend.close()


@pytest.mark.contract("L-4")
async def test_what_is_paid_off_long_since_is_forgotten(driver: Driver) -> None:
    bounds = (rated(1, 1_000, burst=0, each=True),)
    for name in range(5):
        await driver.submit_some(2, partition=f"{name}")
    assert len(await driver.claim_all(limit=9, bounds=bounds)) == 5
    await driver.backend.maintain()
    assert await driver.claim(limit=9, bounds=bounds) == []
    driver.now += 1_000
    await driver.backend.maintain()
    assert len(await driver.claim_all(limit=9, bounds=bounds)) == 5


@pytest.mark.contract("L-4")
@pytest.mark.parametrize("ledger", ["sqlite-file", "postgres18"])
async def test_a_ledger_in_sql_keeps_no_instant_longer_than_it_counts(
    ledger: str, tmp_path: Path
) -> None:
    backend = open_backend(LASTING[ledger](tmp_path))
    driver = Driver(backend)

    async def kept() -> int:
        database: Any = backend.database  # type: ignore[attr-defined]
        return len(await database.read(Step("rates")))

    bounds = (rated(2, 1_000, burst=0, each=True),)
    for name in range(5):
        await driver.submit_some(3, partition=f"{name}")
    assert len(await driver.claim_all(limit=9, bounds=bounds)) == 5
    await backend.maintain()
    assert await kept() == 5
    driver.now += 2_000
    assert len(await driver.claim(limit=1, bounds=bounds)) == 1
    await backend.maintain()
    assert await kept() == 1
    await backend.close()
