"""Coming in: caps, free slots, idempotency keys and order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from onward.core.contract import Fate, Key, Receipt
from onward.core.outcome import Released, Succeeded
from onward.core.task import Priority, State
from tests.contract.driver import Driver, submission
from tests.support import LEASE_MS, NOW, a_task, an_ask, ids


def fates(receipts: Sequence[Receipt]) -> list[Fate]:
    return [receipt.fate for receipt in receipts]


async def test_a_task_is_kept_as_it_was_submitted(driver: Driver) -> None:
    given = submission(
        a_task(
            payload='{"ünïcode":[],"big":9007199254740993}',
            priority=Priority.LOW,
            session="s",
            parent="p",
            key="k",
            overrides='{"max_retries":1}',
            expires_at=NOW + 5,
            attempt_ms=7,
        )
    )
    inserted = await driver.insert(given)
    assert inserted.receipts == [Receipt(Fate.FRESH, given.task.id)]
    assert inserted.claimed == []
    assert await driver.task(given.task.id) == given.task
    assert await driver.history(given.task.id) == ["task.created"]


async def test_every_first_state_is_kept(driver: Driver) -> None:
    queued = await driver.submit()
    scheduled = await driver.submit(run_at=NOW + 1_000)
    waiting = await driver.submit(waiting_for="approval")
    states = [task.state for task in (queued, scheduled, waiting)]
    assert states == [State.QUEUED, State.SCHEDULED, State.WAITING]
    assert ids(await driver.claim(limit=10)) == [queued.id]
    assert await driver.history(waiting.id) == ["task.created", "approval.requested"]


async def test_nothing_submitted_is_nothing_done(driver: Driver) -> None:
    inserted = await driver.insert()
    assert (list(inserted.receipts), list(inserted.claimed)) == ([], [])


@pytest.mark.contract("S0-10")
async def test_work_leaves_in_the_order_in_which_it_came(driver: Driver) -> None:
    batch = [submission(a_task()) for _ in range(100)]
    await driver.insert(*batch[:60])
    await driver.insert(*batch[60:])
    claimed = await driver.claim(limit=70) + await driver.claim(limit=70)
    assert ids(claimed) == [item.task.id for item in batch]


# Caps.


@pytest.mark.contract("S0-6")
async def test_the_cap_is_exact_in_one_batch(driver: Driver) -> None:
    batch = [submission(a_task(), cap=3) for _ in range(5)]
    receipts = (await driver.insert(*batch)).receipts
    assert fates(receipts) == [Fate.FRESH] * 3 + [Fate.FULL] * 2
    assert await driver.store.get([batch[4].task.id]) == [None]
    assert await driver.log() == [
        e for item in batch[:3] for e in await driver.events_of(item.task.id)
    ]


@pytest.mark.contract("S0-6")
async def test_one_dequeue_frees_one_place(driver: Driver) -> None:
    await driver.insert(*(submission(a_task(), cap=3) for _ in range(3)))
    (held,) = await driver.claim()
    again = await driver.insert(submission(a_task(), cap=3), submission(a_task(), cap=3))
    assert fates(again.receipts) == [Fate.FRESH, Fate.FULL]
    # What was handed back stands in the queue again, over the cap or not: nobody loses it.
    await driver.settle(held, Released())
    assert fates((await driver.insert(submission(a_task(), cap=4))).receipts) == [Fate.FULL]


@pytest.mark.contract("S0-6")
async def test_the_cap_counts_every_lane_and_priority_of_its_queue_only(driver: Driver) -> None:
    await driver.submit(priority=Priority.HIGH)
    await driver.submit(priority=Priority.LOW)
    await driver.submit(queue="other")
    receipts = (
        await driver.insert(submission(a_task(), cap=2), submission(a_task(), cap=3))
    ).receipts
    assert fates(receipts) == [Fate.FULL, Fate.FRESH]


@pytest.mark.contract("S0-6")
async def test_the_cap_is_checked_on_what_is_left_after_the_hands_are_filled(
    driver: Driver,
) -> None:
    batch = [submission(a_task(), cap=2) for _ in range(6)]
    inserted = await driver.insert(*batch, asks=(an_ask(limit=2), an_ask(worker="v")))
    assert fates(inserted.receipts) == [Fate.FRESH] * 5 + [Fate.FULL]
    assert [r.running for r in inserted.receipts] == [True] * 3 + [False] * 3
    assert ids(inserted.claimed) == [item.task.id for item in batch[:3]]


@pytest.mark.contract("S0-6")
async def test_a_cap_of_nothing_still_feeds_an_idle_hand(driver: Driver) -> None:
    batch = [submission(a_task(), cap=0) for _ in range(2)]
    inserted = await driver.insert(*batch, asks=(an_ask(),))
    assert fates(inserted.receipts) == [Fate.FRESH, Fate.FULL]


@pytest.mark.contract("S0-6")
async def test_the_cap_holds_whatever_the_concurrency(driver: Driver) -> None:
    calls = [driver.insert(*(submission(a_task(), cap=10) for _ in range(3))) for _ in range(20)]
    fresh = sum(
        receipt.fate is Fate.FRESH
        for inserted in await asyncio.gather(*calls)
        for receipt in inserted.receipts
    )
    assert fresh == 10
    assert len(await driver.all()) == 10


# Slots.


@pytest.mark.contract("S0-10")
async def test_a_task_may_be_born_into_a_free_hand(driver: Driver) -> None:
    given = submission(a_task(attempt_ms=500, key="k"))
    inserted = await driver.insert(given, asks=(an_ask(worker="w1"),))
    (claimed,) = inserted.claimed
    task = await driver.task(given.task.id)
    assert (task.state, task.worker, task.started_at) == (State.RUNNING, "w1", NOW)
    assert (task.fence, task.rev, task.attempt) == (1, 1, 1)
    assert (task.lease_until, task.attempt_by, task.due_at) == (
        NOW + LEASE_MS,
        NOW + 500,
        NOW + 500,
    )
    for name in ("id", "fence", "rev", "type", "payload", "attempt", "attempt_by", "key", "worker"):
        assert getattr(claimed, name) == getattr(task, name)
    assert await driver.history(task.id) == ["task.created", "task.claimed"]


@pytest.mark.contract("S0-10")
async def test_who_stood_in_the_queue_before_goes_first(driver: Driver) -> None:
    (old,) = await driver.submit_some(1)
    given = [submission(a_task()) for _ in range(2)]
    inserted = await driver.insert(*given, asks=(an_ask(limit=2),))
    assert ids(inserted.claimed) == [old.id, given[0].task.id]
    assert [receipt.running for receipt in inserted.receipts] == [True, False]


async def test_hands_take_only_what_they_serve(driver: Driver) -> None:
    given = submission(a_task(queue="a"))
    inserted = await driver.insert(given, asks=(an_ask("b"),))
    assert (inserted.claimed, inserted.receipts[0].running) == ([], False)


async def test_work_for_later_is_not_born_running(driver: Driver) -> None:
    later = submission(a_task(run_at=NOW + 1))
    waiting = submission(a_task(waiting_for="approval"))
    inserted = await driver.insert(later, waiting, asks=(an_ask(limit=5),))
    assert inserted.claimed == []


async def test_one_hand_over_two_queues_takes_one_task(driver: Driver) -> None:
    given = [submission(a_task(queue=queue)) for queue in "ab"]
    inserted = await driver.insert(*given, asks=(an_ask("a", "b"),))
    assert ids(inserted.claimed) == [given[0].task.id]


async def test_a_hand_without_a_lease_never_loses_its_task_to_the_clock(driver: Driver) -> None:
    inserted = await driver.insert(submission(a_task()), asks=(an_ask(lease_ms=None),))
    assert len(inserted.claimed) == 1
    assert await driver.store.due(now=NOW + 10**12, limit=10) == []


# Idempotency keys.


@pytest.mark.contract("S1-8")
async def test_a_key_makes_one_task_of_many_submissions(driver: Driver) -> None:
    key = Key("scope", "k", "body")
    first, second, third = (submission(a_task(), key=key) for _ in range(3))
    receipts = [
        *(await driver.insert(first, second)).receipts,
        *(await driver.insert(third)).receipts,
    ]
    assert fates(receipts) == [Fate.FRESH, Fate.KNOWN, Fate.KNOWN]
    assert {receipt.task for receipt in receipts} == {first.task.id}
    assert len(await driver.all()) == 1


@pytest.mark.contract("S1-8")
async def test_a_key_with_another_body_is_refused(driver: Driver) -> None:
    await driver.insert(submission(a_task(), key=Key("scope", "k", "one")))
    again = await driver.insert(submission(a_task(), key=Key("scope", "k", "two")))
    assert fates(again.receipts) == [Fate.REUSED]


@pytest.mark.contract("S1-8")
async def test_a_key_holds_in_its_scope_only(driver: Driver) -> None:
    receipts = (
        await driver.insert(
            submission(a_task(), key=Key("a", "k", "one")),
            submission(a_task(), key=Key("b", "k", "two")),
        )
    ).receipts
    assert fates(receipts) == [Fate.FRESH, Fate.FRESH]


@pytest.mark.contract("S1-8")
async def test_a_refused_submission_leaves_no_key_behind(driver: Driver) -> None:
    key = Key("scope", "k", "body")
    full = await driver.insert(submission(a_task(), cap=0, key=key))
    assert fates(full.receipts) == [Fate.FULL]
    assert fates((await driver.insert(submission(a_task(), key=key))).receipts) == [Fate.FRESH]


@pytest.mark.contract("S1-8")
async def test_a_known_key_is_answered_at_a_full_queue_too(driver: Driver) -> None:
    key = Key("scope", "k", "body")
    await driver.insert(submission(a_task(), cap=1, key=key))
    again = await driver.insert(submission(a_task(), cap=1, key=key))
    assert fates(again.receipts) == [Fate.KNOWN]


@pytest.mark.contract("S1-8")
async def test_a_key_outlives_its_task_by_a_day(driver: Driver) -> None:
    key = Key("scope", "k", "body")
    first = submission(a_task(), key=key)
    await driver.insert(first)
    (held,) = await driver.claim()
    await driver.settle(held, Succeeded("1"))
    assert await driver.store.purge([held.id], now=driver.now) == 1
    driver.now += 24 * 3_600_000 - 1
    await driver.store.purge([], now=driver.now)
    again = (await driver.insert(submission(a_task(), key=key))).receipts
    assert list(again) == [Receipt(Fate.KNOWN, first.task.id)]
    driver.now += 1
    await driver.store.purge([], now=driver.now)
    assert fates((await driver.insert(submission(a_task(), key=key))).receipts) == [Fate.FRESH]


@pytest.mark.contract("S1-8")
async def test_a_key_holds_as_long_as_its_task(driver: Driver) -> None:
    key = Key("scope", "k", "body")
    await driver.insert(submission(a_task(), key=key))
    driver.now += 400 * 24 * 3_600_000
    await driver.store.purge([], now=driver.now)
    again = await driver.insert(submission(a_task(), key=key))
    assert fates(again.receipts) == [Fate.KNOWN]


@pytest.mark.contract("S1-8")
async def test_of_callers_racing_with_one_key_one_wins(driver: Driver) -> None:
    key = Key("scope", "k", "body")
    calls = [driver.insert(submission(a_task(), key=key)) for _ in range(20)]
    receipts = [inserted.receipts[0] for inserted in await asyncio.gather(*calls)]
    assert sorted(fates(receipts)) == [Fate.FRESH] + [Fate.KNOWN] * 19
    assert len({receipt.task for receipt in receipts}) == 1
