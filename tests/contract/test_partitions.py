"""Whose turn it is among the partitions of a lane: over every ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from onward.core import machine
from onward.core.contract import Ask, Fate, Query, Submission, Want
from onward.core.outcome import Failed, Parked, Released, Succeeded
from onward.core.policy import Overrides
from onward.core.task import Claimed, Lane, Priority, State, Task
from onward.faults import Fault
from onward.ledgers import open_backend
from tests.contract.driver import Driver, submission
from tests.contract.ledgers import LASTING
from tests.support import LEASE_MS, PROFILES, a_task, an_ask, ids

AT_ONCE = Overrides(backoff_ms=(0,)).encode()
FAILED = Failed(Fault(kind="ServiceUnavailable", message=""))


async def queued(driver: Driver, count: int, partition: str, **fields: object) -> list[Task]:
    tasks = [a_task(created_at=driver.now, partition=partition, **fields) for _ in range(count)]
    inserted = await driver.insert(*map(submission, tasks))
    assert {receipt.fate for receipt in inserted.receipts} == {Fate.FRESH}
    return tasks


def partitions(claimed: list[Claimed]) -> Counter[str]:
    return Counter(task.partition for task in claimed)


@pytest.mark.contract("L-1")
async def test_a_task_keeps_its_partition(driver: Driver) -> None:
    (task,) = await queued(driver, 1, "acme")
    (claimed,) = await driver.claim()
    assert (claimed.id, claimed.partition) == (task.id, "acme")
    assert (await driver.task(task.id)).partition == "acme"
    await driver.settle(claimed, Succeeded("1"))
    assert (await driver.task(task.id)).partition == "acme"


@pytest.mark.contract("L-2")
@pytest.mark.parametrize("limit", [1, 3, 8])
async def test_a_long_partition_delays_another_by_one_turn_each(driver: Driver, limit: int) -> None:
    await queued(driver, 300, "long")
    few = await queued(driver, 10, "short")
    found: list[Claimed] = []
    while len(found) < 21:
        found += await driver.claim(limit=limit)
    # Of as many as were claimed when the last of the ten came, hardly more than half were others'.
    last = max(at for at, task in enumerate(found) if task.partition == "short")
    assert {task.id for task in found if task.partition == "short"} == {task.id for task in few}
    assert last <= 20


@pytest.mark.contract("L-2")
async def test_one_claim_takes_as_much_of_each_partition(driver: Driver) -> None:
    for name in ("a", "b", "", "c"):
        await queued(driver, 40, name)
    assert partitions(await driver.claim(limit=20)) == dict.fromkeys(("a", "b", "", "c"), 5)
    assert partitions(await driver.claim(limit=2)).most_common(1)[0][1] == 1


@pytest.mark.contract("L-2")
async def test_what_one_partition_lacks_the_others_get(driver: Driver) -> None:
    for name, count in {"a": 1, "b": 50, "c": 2}.items():
        await queued(driver, count, name)
    assert partitions(await driver.claim(limit=20)) == {"a": 1, "b": 17, "c": 2}
    assert partitions(await driver.claim(limit=100)) == {"b": 33}
    assert await driver.claim(limit=5) == []


@pytest.mark.contract("L-2")
async def test_many_partitions_of_one_task_each_are_all_claimed(driver: Driver) -> None:
    tasks = [a_task(created_at=driver.now, partition=f"p{n}") for n in range(150)]
    await driver.insert(*map(submission, tasks))
    found = await driver.claim_all(limit=40)
    assert sorted(ids(found)) == sorted(ids(tasks))


@pytest.mark.contract("L-2")
async def test_within_a_partition_it_is_first_in_first_out(driver: Driver) -> None:
    a, b = await queued(driver, 9, "a"), await queued(driver, 9, "b")
    found = await driver.claim_all(limit=4)
    assert [task.id for task in found if task.partition == "a"] == ids(a)
    assert [task.id for task in found if task.partition == "b"] == ids(b)


@pytest.mark.contract("L-2")
async def test_no_partition_is_a_partition_among_others(driver: Driver) -> None:
    plain = await queued(driver, 30, "")
    named = await queued(driver, 3, "a")
    found = [*await driver.claim(), *await driver.claim(limit=3), *await driver.claim(limit=2)]
    assert partitions(found) == {"": 3, "a": 3}
    assert {task.id for task in found} == {*ids(plain[:3]), *ids(named)}


@pytest.mark.contract("L-2")
async def test_no_partition_gets_its_turn_one_by_one(driver: Driver) -> None:
    for name in ("a", "", "b"):
        await queued(driver, 9, name)
    found = [task for _ in range(9) for task in await driver.claim()]
    assert partitions(found) == {"a": 3, "": 3, "b": 3}


@pytest.mark.contract("L-2")
async def test_a_partition_that_comes_later_waits_for_no_backlog(driver: Driver) -> None:
    await queued(driver, 50, "a")
    await queued(driver, 50, "b")
    await driver.claim(limit=7)
    (late,) = await queued(driver, 1, "c")
    assert late.id in ids(await driver.claim(limit=3))


@pytest.mark.contract("L-2")
async def test_priority_and_lane_come_before_the_turn(driver: Driver) -> None:
    again = [await driver.running(overrides=AT_ONCE, partition=name) for name in "ab"]
    normal = [*await queued(driver, 2, "a"), *await queued(driver, 2, "b")]
    high = [*await queued(driver, 3, "a", priority=Priority.HIGH)]
    for held in again:
        await driver.settle(held, FAILED)
    assert ids(await driver.claim(limit=3)) == ids(high)
    assert set(ids(await driver.claim(limit=4))) == set(ids(normal))
    assert set(ids(await driver.claim(limit=2))) == set(ids(again))


@pytest.mark.contract("L-2")
async def test_each_lane_is_a_ring_of_its_own(driver: Driver) -> None:
    await queued(driver, 10, "a")
    await queued(driver, 10, "b", priority=Priority.LOW)
    await queued(driver, 10, "c", queue="other")
    wants = (
        Want("q", Priority.LOW, Lane.PRIMARY, 1),
        Want("other", Priority.NORMAL, Lane.PRIMARY, 2),
        Want("q", Priority.NORMAL, Lane.PRIMARY, 10),
    )
    claimed = list(await driver.store.claim([Ask("w", 6, wants, LEASE_MS)], now=driver.now))
    assert partitions(claimed) == {"b": 1, "c": 2, "a": 3}


@pytest.mark.contract("L-2")
async def test_a_released_task_is_first_in_its_partition_again(driver: Driver) -> None:
    a = await queued(driver, 3, "a")
    await queued(driver, 3, "b")
    first = [*await driver.claim(limit=2)]
    held = next(task for task in first if task.partition == "a")
    await driver.settle(held, Released())
    found = [task for task in await driver.claim_all(limit=2) if task.partition == "a"]
    assert ids(found) == ids(a)


@pytest.mark.contract("L-2")
async def test_what_is_woken_or_due_joins_the_ring(driver: Driver) -> None:
    later = await driver.submit(partition="later", run_at=driver.now + 1_000)
    parked = await driver.running(partition="parked")
    child = a_task(partition="child", parent=parked.id)
    await driver.settle(parked, Parked(seen=0, journal="{}", waiting_for="event"), child)
    assert ids(await driver.claim(limit=5)) == [child.id]
    moved = await driver.post(parked.id, "1")
    assert moved.awake == {"q"}
    assert ids(await driver.claim(limit=5)) == [parked.id]
    driver.now += 1_000
    await driver.apply(machine.on_due(later, driver.now, PROFILES["console"]))
    assert ids(await driver.claim(limit=5)) == [later.id]


@pytest.mark.contract("L-2")
async def test_a_partition_whose_tasks_are_canceled_is_in_nobodys_way(driver: Driver) -> None:
    gone, kept = await queued(driver, 5, "a"), await queued(driver, 5, "b")
    for task in gone:
        await driver.intervene(task, machine.cancel)
    assert ids(await driver.claim(limit=3)) == ids(kept[:3])
    (again,) = await queued(driver, 1, "a")
    assert set(ids(await driver.claim(limit=5))) == {again.id, *ids(kept[3:])}


@pytest.mark.contract("L-2")
async def test_a_place_is_counted_within_the_partition(driver: Driver) -> None:
    a, b = await queued(driver, 3, "a"), await queued(driver, 2, "b")
    plain = await queued(driver, 2, "")
    assert [await driver.store.position(task.id) for task in (*a, *b, *plain)] == [
        1, 2, 3, 1, 2, 1, 2,
    ]  # fmt: skip
    await driver.claim(limit=3)
    assert [await driver.store.position(task.id) for task in a] == [None, 1, 2]


@pytest.mark.contract("L-2")
async def test_a_new_task_with_a_partition_takes_no_free_slot_itself(driver: Driver) -> None:
    new = submission(a_task(partition="a", created_at=driver.now))
    inserted = await driver.insert(new, asks=(an_ask(),))
    assert (inserted.receipts[0].running, list(inserted.claimed)) == (False, [])
    plain = submission(a_task(created_at=driver.now))
    inserted = await driver.insert(plain, asks=(an_ask(),))
    assert ids(inserted.claimed) == [new.task.id], "what is queued goes first"
    assert inserted.receipts[0].running is False


@pytest.mark.contract("L-2")
async def test_plain_queues_beside_rings_are_as_before(driver: Driver) -> None:
    await queued(driver, 5, "a")
    plain = await queued(driver, 5, "", queue="plain")
    born = submission(a_task(queue="idle", created_at=driver.now))
    inserted = await driver.insert(born, asks=(an_ask("idle"),))
    assert ids(inserted.claimed) == [born.task.id]
    assert ids(await driver.claim("plain", limit=3)) == ids(plain[:3])
    assert ids(await driver.claim("q", "plain", limit=2)) != ids(plain[3:])


@pytest.mark.contract("L-2")
async def test_what_has_waited_longest_is_found_in_any_partition(driver: Driver) -> None:
    since = driver.now
    await queued(driver, 2, "z")
    driver.now += 10
    await queued(driver, 2, "a")
    await queued(driver, 2, "")
    assert await driver.store.oldest(["q"]) == {"q": since}
    await driver.claim(limit=3)
    assert await driver.store.oldest(["q"]) == {"q": since}
    counts = await driver.store.counts()
    assert counts == await driver.recount()


@pytest.mark.contract("L-2")
async def test_no_task_is_claimed_twice_in_a_ring(driver: Driver) -> None:
    tasks = [task for name in "abcde" for task in await queued(driver, 6, name)]
    claims = await asyncio.gather(*(driver.claim(limit=3, worker=f"w{n}") for n in range(15)))
    found = [task for claimed in claims for task in claimed] + await driver.claim_all(limit=5)
    assert sorted(ids(found)) == sorted(ids(tasks))


@pytest.mark.contract("L-2", "S0-6")
@pytest.mark.parametrize("ledger", LASTING)
async def test_the_ring_is_there_when_the_ledger_is_opened_again(
    ledger: str, tmp_path: Path
) -> None:
    url = LASTING[ledger](tmp_path)
    backend = open_backend(url)
    driver = Driver(backend)
    tasks = [task for name in ("a", "b", "") for task in await queued(driver, 4, name)]
    found = await driver.claim(limit=3)
    await backend.close()
    backend = open_backend(url)
    driver = Driver(backend)
    assert partitions(await driver.claim(limit=3)) == dict.fromkeys(("a", "b", ""), 1)
    found = [*found, *await driver.claim_all(limit=2)]
    assert len(found) + 3 == len(tasks)
    await backend.close()


@pytest.mark.contract("L-2")
async def test_tasks_without_a_partition_take_no_turn_of_one_that_has_none_left(
    driver: Driver,
) -> None:
    await driver.submit_some(2, partition="z")
    await driver.submit_some(6)
    for _ in range(3):
        await driver.claim()
    await driver.submit(partition="y")
    claimed = [*await driver.claim(), *await driver.claim()]
    assert "y" in [task.partition for task in claimed]


@pytest.mark.contract("L-1")
async def test_tasks_are_found_by_partition_batch_and_tags(driver: Driver) -> None:
    one = a_task(partition="a", batch="b1", tags='["red","slow"]')
    two = a_task(partition="a", tags='["red","slower"]')
    three = a_task(batch="b1", tags='["re\\"d"]')
    await driver.insert(*(submission(task) for task in (one, two, three)))

    async def found(**fields: object) -> list[str]:
        return ids((await driver.store.find(Query(**fields))).items)[::-1]  # type: ignore[arg-type]

    assert await found(partition="a") == [one.id, two.id]
    assert await found(partition="") == [three.id]
    assert await found(batch="b1") == [one.id, three.id]
    assert await found(tags=frozenset({"red"})) == [one.id, two.id]
    assert await found(tags=frozenset({"red", "slow"})) == [one.id]
    assert await found(tags=frozenset({'re"d'})) == [three.id]
    assert await found(tags=frozenset({"re"})) == []
    assert await found(partition="a", tags=frozenset({"slower"})) == [two.id]


@pytest.mark.contract("L-2")
async def test_children_of_one_transaction_join_their_partitions(driver: Driver) -> None:
    parent = await driver.running(queue="parents")
    children = [a_task(parent=parent.id, partition=name) for name in "abab"]
    await driver.settle(parent, Parked(seen=0, journal="{}", waiting_for="children"), *children)
    assert partitions(await driver.claim(limit=2)) == {"a": 1, "b": 1}
    assert partitions(await driver.claim(limit=3)) == {"a": 1, "b": 1}


@pytest.mark.contract("L-2")
async def test_a_task_adopted_while_offered_is_in_no_ring(driver: Driver) -> None:
    adopted = machine.adopted(a_task(partition="a", created_at=driver.now), "celery")
    assert isinstance(adopted, Submission)
    await driver.insert(adopted)
    assert (await driver.task(adopted.task.id)).state is State.RUNNING
    assert await driver.claim(limit=3) == []
    (mine,) = await queued(driver, 1, "a")
    assert ids(await driver.claim(limit=3)) == [mine.id]
