"""Being held: heartbeats, what they bring along, and what comes back."""

from __future__ import annotations

import pytest

from onward.core import machine
from onward.core.contract import LeaseRenewal, LeaseStatus
from onward.core.outcome import Released, Succeeded
from onward.core.policy import CANCEL_GRACE_MS
from tests.contract.driver import Driver
from tests.support import LEASE_MS, NOW


@pytest.mark.contract("S1-5")
async def test_a_heartbeat_renews_the_lease_and_writes_no_event(driver: Driver) -> None:
    held = await driver.running()
    before = await driver.task(held.id)
    driver.now += 20_000
    assert await driver.hold(held) is LeaseStatus.HELD
    after = await driver.task(held.id)
    assert after.lease_until == after.due_at == driver.now + LEASE_MS
    assert (after.rev, after.fence, after.events) == (before.rev, before.fence, before.events)
    assert await driver.settle(held, Succeeded("1")) == "applied", "a beat makes no reading old"


async def test_a_heartbeat_cannot_outlast_the_other_clocks(driver: Driver) -> None:
    for fields, due_at in (
        ({"attempt_ms": 40_000}, NOW + 40_000),
        ({"expires_at": NOW + 35_000}, NOW + 35_000),
        ({}, NOW + 20_000 + LEASE_MS),
    ):
        driver.now = NOW
        held = await driver.running(**fields)
        driver.now += 20_000
        await driver.hold(held)
        found = await driver.task(held.id)
        assert (found.due_at, found.lease_until) == (due_at, NOW + 20_000 + LEASE_MS)


@pytest.mark.contract("S1-5")
async def test_who_does_not_own_it_is_told_so(driver: Driver) -> None:
    held = await driver.running()
    await driver.settle(held, Released())
    assert await driver.hold(held) is LeaseStatus.LOST
    (again,) = await driver.claim()
    before = await driver.task(held.id)
    driver.now += 5
    assert await driver.hold(held, ("task.progress", "1"), progress="0.1") is LeaseStatus.LOST
    assert await driver.task(held.id) == before
    assert await driver.hold(again) is LeaseStatus.HELD
    await driver.settle(again, Succeeded("1"))
    assert await driver.hold(again) is LeaseStatus.LOST
    nobody = LeaseRenewal("no such task", 1, NOW)
    assert await driver.store.extend([nobody], now=NOW) == [LeaseStatus.LOST]


async def test_a_stale_and_a_true_owner_may_beat_in_the_same_batch(driver: Driver) -> None:
    stale = await driver.running()
    await driver.settle(stale, Released())
    (held,) = await driver.claim()
    for order in ((stale, held), (held, stale)):
        renewals = [
            LeaseRenewal(one.id, one.fence, NOW + 99, f'"{one.fence}"', (("task.progress", None),))
            for one in order
        ]
        statuses = await driver.store.extend(renewals, now=NOW)
        assert [p for _, p in sorted(zip((o.fence for o in order), statuses, strict=True))] == [
            LeaseStatus.LOST,
            LeaseStatus.HELD,
        ]
    events = await driver.events_of(held.id)
    assert [event.n for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events].count("task.progress") == 2
    assert (await driver.task(held.id)).progress == '"2"'


async def test_who_is_asked_to_stop_hears_of_it(driver: Driver) -> None:
    held = await driver.running()
    await driver.intervene(await driver.task(held.id), machine.cancel)
    driver.now += 1
    assert await driver.hold(held) is LeaseStatus.CANCEL
    found = await driver.task(held.id)
    assert found.due_at == NOW + CANCEL_GRACE_MS, "a beat does not put off the end of the grace"


async def test_progress_is_kept_and_notes_become_events(driver: Driver) -> None:
    held = await driver.running()
    driver.now += 3
    chunks = (("task.progress", '{"value":0.5}'), ("task.chunk", '"a"'))
    assert await driver.hold(held, *chunks, progress='{"value":0.5}') is LeaseStatus.HELD
    assert await driver.hold(held, ("task.chunk", '"b"')) is LeaseStatus.HELD
    found = await driver.task(held.id)
    assert (found.progress, found.events) == ('{"value":0.5}', 5)
    events = (await driver.events_of(held.id))[2:]
    assert [(e.n, e.type, e.data, e.at) for e in events] == [
        (3, "task.progress", '{"value":0.5}', driver.now),
        (4, "task.chunk", '"a"', driver.now),
        (5, "task.chunk", '"b"', driver.now),
    ]


async def test_two_holds_of_one_task_in_one_batch_are_both_heard(driver: Driver) -> None:
    held = await driver.running()
    renewals = [
        LeaseRenewal(
            held.id, held.fence, NOW + 90_000, "1", (("task.chunk", "1"), ("task.chunk", "2"))
        ),
        LeaseRenewal(held.id, held.fence, NOW + 80_000, None, (("task.chunk", "3"),)),
    ]
    assert await driver.store.extend(renewals, now=NOW) == [LeaseStatus.HELD, LeaseStatus.HELD]
    found = await driver.task(held.id)
    assert (found.progress, found.lease_until) == ("1", NOW + 90_000)
    assert [event.data for event in (await driver.events_of(held.id))[2:]] == ["1", "2", "3"]


async def test_many_tasks_are_held_in_one_trip(driver: Driver) -> None:
    await driver.submit_some(100)
    held = await driver.claim(limit=100)
    await driver.settle(held[50], Succeeded("1"))
    renewals = [LeaseRenewal(one.id, one.fence, NOW + 77_000) for one in held]
    statuses = await driver.store.extend(renewals, now=NOW)
    assert [at for at, status in enumerate(statuses) if status is not LeaseStatus.HELD] == [50]
