"""A child's end and what its parent does about it, in one move; and children in free hands."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from onward.core.contract import Verdict
from onward.core.outcome import Parked, Succeeded
from onward.core.task import Claimed, Instant, Json, Letter, State
from tests.core.desk import BAD, Desk, before_applying, desk
from tests.support import a_task, ids

__all__ = ["desk"]

ON = Parked(seen=0, journal='"on"', waiting_for="children")


class Family:
    """A parent that waits for its children, who run, and a reader for it."""

    def __init__(self, desk: Desk, parent: Claimed, children: list[Claimed]) -> None:
        self.desk = desk
        self.parent = msgspec.structs.replace(parent, rev=parent.rev + 1)
        self.children = children
        self.heard: list[str] = []
        self.outcome: Parked | Succeeded = ON
        desk.reader = self.hear

    def hear(
        self, letter: Letter, result: Json, now: Instant
    ) -> tuple[Claimed, Parked | Succeeded]:
        assert (letter.to, now) == (self.parent.id, self.desk.clock.now())
        self.heard.append(result)
        return self.parent, self.outcome


@pytest.fixture
async def family(desk: Desk) -> Family:
    parent = await desk.running()
    seat = desk.sit(2, queues="c", worker="c")
    await desk.idle()
    spawn = [a_task(queue="c", parent=parent.id) for _ in range(2)]
    parked = Parked(seen=0, journal='"first"', waiting_for="children", spawn=spawn)
    await desk.settle(parent, parked)
    assert ids(desk.inbox[-2:]) == ids(spawn), "born into free asks, with nobody asked for more"
    desk.slots.remove(seat)
    return Family(desk, parent, desk.inbox[-2:])


async def test_a_parent_goes_on_in_its_childs_last_move(desk: Desk, family: Family) -> None:
    assert await desk.settle(family.children[0], Succeeded("1")) is Verdict.APPLIED
    parent = await desk.task(family.parent.id)
    assert (parent.state, parent.journal, family.heard) == (State.WAITING, '"on"', ["1"])
    assert (await desk.history(parent.id))[-2:] == ["task.claimed", "task.parked"]
    assert desk.tally["task.parked"] == 1, "it still waits for its children"


async def test_whoever_waits_for_a_parent_is_told_of_its_end(desk: Desk, family: Family) -> None:
    family.outcome = Succeeded('"all"')
    waiting = asyncio.ensure_future(desk.wait(family.parent.id, timeout_ms=60_000))
    await asyncio.sleep(0)
    await desk.settle(family.children[0], Succeeded("1"))
    ending = await waiting
    assert ending is not None
    assert (ending.state, ending.result) == (State.SUCCEEDED, '"all"')
    parent = await desk.task(family.parent.id)
    assert (parent.attempt, parent.worker) == (family.parent.attempt, family.parent.worker)


async def test_children_that_end_together_are_heard_by_letter(desk: Desk, family: Family) -> None:
    await asyncio.gather(*(desk.settle(child, Succeeded("1")) for child in family.children))
    assert family.heard == []
    assert (await desk.task(family.parent.id)).state is State.QUEUED


async def test_a_failure_is_heard_by_letter(desk: Desk, family: Family) -> None:
    await desk.settle(family.children[0], BAD)
    assert family.heard == []
    assert (await desk.task(family.parent.id)).state is State.QUEUED


async def test_a_parent_that_has_changed_meanwhile_is_woken(desk: Desk, family: Family) -> None:
    before_applying(desk, lambda: desk.signal(family.parent.id, "hello", "1"))
    assert await desk.settle(family.children[0], Succeeded("1")) is Verdict.APPLIED
    parent = await desk.task(family.parent.id)
    assert (parent.state, parent.journal) == (State.QUEUED, '"first"')
    assert desk.tally["task.parked"] == 1, "what was refused is not counted"


async def test_a_child_that_is_late_has_no_answer(desk: Desk, family: Family) -> None:
    child = family.children[0]
    before_applying(desk, lambda: desk.cancel(child.id))
    assert await desk.settle(child, Succeeded("1")) is Verdict.APPLIED
    assert (await desk.task(child.id)).state is State.CANCELED
    parent = await desk.task(family.parent.id)
    assert (parent.state, parent.journal) == (State.QUEUED, '"first"')


async def test_a_child_waits_its_turn_with_no_hand_free(desk: Desk) -> None:
    parent = await desk.running()
    child = a_task(queue="c", parent=parent.id)
    parked = Parked(seen=0, journal="{}", waiting_for="children", spawn=(child,))
    await desk.settle(parent, parked)
    assert (await desk.task(child.id)).state is State.QUEUED
    desk.sit(queues="c", worker="c")
    await desk.idle()
    assert desk.inbox[-1].id == child.id
