"""Being held: heartbeats, what they bring along, and what comes back."""

from __future__ import annotations

import pytest

from onward.core import machine
from onward.core.contract import LeaseRenewal, LeaseStatus
from onward.core.outcome import Released, Succeeded
from onward.core.policy import CANCEL_GRACE_MS
from tests.contract.desk import Desk
from tests.support import LEASE_MS, NOW


@pytest.mark.contract("S1-5")
async def test_a_heartbeat_renews_the_lease_and_writes_no_event(desk: Desk) -> None:
    held = await desk.running()
    before = await desk.task(held.id)
    desk.now += 20_000
    assert await desk.hold(held) is LeaseStatus.HELD
    after = await desk.task(held.id)
    assert after.lease_until == after.due_at == desk.now + LEASE_MS
    assert (after.rev, after.fence, after.events) == (before.rev, before.fence, before.events)
    assert await desk.settle(held, Succeeded("1")) == "applied", "a beat makes no reading old"


async def test_a_heartbeat_cannot_outlast_the_other_clocks(desk: Desk) -> None:
    for fields, due_at in (
        ({"attempt_ms": 40_000}, NOW + 40_000),
        ({"expires_at": NOW + 35_000}, NOW + 35_000),
        ({}, NOW + 20_000 + LEASE_MS),
    ):
        desk.now = NOW
        held = await desk.running(**fields)
        desk.now += 20_000
        await desk.hold(held)
        found = await desk.task(held.id)
        assert (found.due_at, found.lease_until) == (due_at, NOW + 20_000 + LEASE_MS)


@pytest.mark.contract("S1-5")
async def test_who_does_not_own_it_is_told_so(desk: Desk) -> None:
    held = await desk.running()
    await desk.settle(held, Released())
    assert await desk.hold(held) is LeaseStatus.LOST
    (again,) = await desk.claim()
    before = await desk.task(held.id)
    desk.now += 5
    assert await desk.hold(held, ("task.progress", "1"), progress="0.1") is LeaseStatus.LOST
    assert await desk.task(held.id) == before
    assert await desk.hold(again) is LeaseStatus.HELD
    await desk.settle(again, Succeeded("1"))
    assert await desk.hold(again) is LeaseStatus.LOST
    nobody = LeaseRenewal("no such task", 1, NOW)
    assert await desk.store.extend([nobody], now=NOW) == [LeaseStatus.LOST]


async def test_a_stale_and_a_true_owner_may_beat_in_the_same_batch(desk: Desk) -> None:
    stale = await desk.running()
    await desk.settle(stale, Released())
    (held,) = await desk.claim()
    for order in ((stale, held), (held, stale)):
        holds = [
            LeaseRenewal(one.id, one.fence, NOW + 99, f'"{one.fence}"', (("task.progress", None),))
            for one in order
        ]
        statuses = await desk.store.extend(holds, now=NOW)
        assert [p for _, p in sorted(zip((o.fence for o in order), statuses, strict=True))] == [
            LeaseStatus.LOST,
            LeaseStatus.HELD,
        ]
    events = await desk.events_of(held.id)
    assert [event.n for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events].count("task.progress") == 2
    assert (await desk.task(held.id)).progress == '"2"'


async def test_who_is_asked_to_stop_hears_of_it(desk: Desk) -> None:
    held = await desk.running()
    await desk.intervene(await desk.task(held.id), machine.cancel)
    desk.now += 1
    assert await desk.hold(held) is LeaseStatus.CANCEL
    found = await desk.task(held.id)
    assert found.due_at == NOW + CANCEL_GRACE_MS, "a beat does not put off the end of the grace"


async def test_progress_is_kept_and_notes_become_events(desk: Desk) -> None:
    held = await desk.running()
    desk.now += 3
    chunks = (("task.progress", '{"value":0.5}'), ("task.chunk", '"a"'))
    assert await desk.hold(held, *chunks, progress='{"value":0.5}') is LeaseStatus.HELD
    assert await desk.hold(held, ("task.chunk", '"b"')) is LeaseStatus.HELD
    found = await desk.task(held.id)
    assert (found.progress, found.events) == ('{"value":0.5}', 5)
    events = (await desk.events_of(held.id))[2:]
    assert [(e.n, e.type, e.data, e.at) for e in events] == [
        (3, "task.progress", '{"value":0.5}', desk.now),
        (4, "task.chunk", '"a"', desk.now),
        (5, "task.chunk", '"b"', desk.now),
    ]


async def test_two_holds_of_one_task_in_one_batch_are_both_heard(desk: Desk) -> None:
    held = await desk.running()
    holds = [
        LeaseRenewal(
            held.id, held.fence, NOW + 90_000, "1", (("task.chunk", "1"), ("task.chunk", "2"))
        ),
        LeaseRenewal(held.id, held.fence, NOW + 80_000, None, (("task.chunk", "3"),)),
    ]
    assert await desk.store.extend(holds, now=NOW) == [LeaseStatus.HELD, LeaseStatus.HELD]
    found = await desk.task(held.id)
    assert (found.progress, found.lease_until) == ("1", NOW + 90_000)
    assert [event.data for event in (await desk.events_of(held.id))[2:]] == ["1", "2", "3"]


async def test_many_tasks_are_held_in_one_trip(desk: Desk) -> None:
    await desk.submit_some(100)
    held = await desk.claim(limit=100)
    await desk.settle(held[50], Succeeded("1"))
    holds = [LeaseRenewal(one.id, one.fence, NOW + 77_000) for one in held]
    statuses = await desk.store.extend(holds, now=NOW)
    assert [at for at, status in enumerate(statuses) if status is not LeaseStatus.HELD] == [50]
