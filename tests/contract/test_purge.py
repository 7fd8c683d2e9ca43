"""Forgetting: only what is over, and not before everybody has read of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from onward.core.clock import ManualClock
from onward.core.contract import Verdict
from onward.core.outcome import Failed, Succeeded
from onward.core.tail import Tail
from onward.core.task import Event, Fault, State
from tests.contract.desk import Desk
from tests.support import NOW

BAD = Failed(Fault(kind="InvalidInput", message="no"))


class Reader:
    name = "reader"

    async def project(self, events: Sequence[Event]) -> None:
        pass


async def test_a_finished_task_is_forgotten_with_its_events(desk: Desk) -> None:
    over = await desk.finished()
    kept = await desk.submit()
    assert await desk.store.purge([over.id, "nobody"], now=NOW) == 1
    assert await desk.store.get([over.id]) == [None]
    assert await desk.events_of(over.id) == []
    assert {event.task for event in await desk.log()} == {kept.id}
    assert await desk.store.counts() == await desk.recount()
    assert await desk.store.purge([over.id], now=NOW) == 0


async def test_live_work_is_never_forgotten(desk: Desk) -> None:
    live = [
        (await desk.running(queue="r")).id,
        (await desk.submit()).id,
        (await desk.submit(run_at=NOW + 5)).id,
        (await desk.submit(waiting_for="event")).id,
    ]
    before = await desk.store.get(live)
    assert await desk.store.purge(live, now=NOW + 10**12) == 0
    assert await desk.store.get(live) == before


async def test_every_kind_of_end_can_be_forgotten(desk: Desk) -> None:
    dead = await desk.running()
    await desk.settle(dead, BAD)
    failed = await desk.running(profile="sync")
    await desk.settle(failed, BAD)
    over = await desk.finished()
    assert await desk.store.purge([dead.id, failed.id, over.id], now=NOW) == 3
    assert await desk.store.counts() == {}


async def test_a_letter_to_a_forgotten_task_is_gone(desk: Desk) -> None:
    task = await desk.submit()
    await desk.post(task.id, "1")
    (held,) = await desk.claim()
    await desk.settle(held, Succeeded("1"))
    await desk.store.purge([held.id], now=NOW)
    assert (await desk.post(held.id, "2")).verdicts == [Verdict.GONE]


@pytest.mark.parametrize("readers", [1, 2])
async def test_nothing_is_forgotten_before_the_slowest_reader_has_read_it(
    desk: Desk, readers: int
) -> None:
    clock = ManualClock()
    reader, slow = Reader(), Reader()
    slow.name = "slow"
    first = await desk.finished()
    tails = [Tail(desk.backend, one, clock) for one in (reader, slow)[:readers]]
    for tail in tails:
        await tail.step()
    second = await desk.finished()
    assert await desk.store.purge([first.id, second.id], now=NOW) == 1
    assert await desk.store.get([first.id]) == [None]
    found = await desk.task(second.id)
    assert found.state is State.SUCCEEDED
    assert found.due_at is not None
    assert found.due_at > NOW, "tried again later, not at every sweep"
    for tail in tails:
        assert await desk.store.purge([second.id], now=NOW) == 0
        await tail.step()
    assert await desk.store.purge([second.id], now=NOW) == 1
