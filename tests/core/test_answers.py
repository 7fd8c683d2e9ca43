"""A child's end and what its parent does about it, in one move; and children in free hands."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from onward.core.contract import Verdict
from onward.core.outcome import Parked, Succeeded
from onward.core.task import Claimed, Instant, Json, Letter, State
from tests.core.dispatcher import BAD, Observed, before_applying, dispatcher
from tests.support import a_task, ids

__all__ = ["dispatcher"]

ON = Parked(seen=0, journal='"on"', waiting_for="children")


class Family:
    """A parent that waits for its children, who run, and a reader for it."""

    def __init__(self, dispatcher: Observed, parent: Claimed, children: list[Claimed]) -> None:
        self.dispatcher = dispatcher
        self.parent = msgspec.structs.replace(parent, rev=parent.rev + 1)
        self.children = children
        self.heard: list[str] = []
        self.outcome: Parked | Succeeded = ON
        dispatcher.reader = self.hear

    def hear(
        self, letter: Letter, result: Json, now: Instant
    ) -> tuple[Claimed, Parked | Succeeded]:
        assert (letter.to, now) == (self.parent.id, self.dispatcher.clock.now())
        self.heard.append(result)
        return self.parent, self.outcome


@pytest.fixture
async def family(dispatcher: Observed) -> Family:
    parent = await dispatcher.running()
    worker_slots = dispatcher.add_worker(2, queues="c", worker="c")
    await dispatcher.idle()
    spawn = [a_task(queue="c", parent=parent.id) for _ in range(2)]
    parked = Parked(seen=0, journal='"first"', waiting_for="children", spawn=spawn)
    await dispatcher.settle(parent, parked)
    assert ids(dispatcher.inbox[-2:]) == ids(spawn), "born into free slots, without a claim"
    dispatcher.slots.remove(worker_slots)
    return Family(dispatcher, parent, dispatcher.inbox[-2:])


async def test_a_parent_goes_on_in_its_childs_last_move(
    dispatcher: Observed, family: Family
) -> None:
    assert await dispatcher.settle(family.children[0], Succeeded("1")) is Verdict.APPLIED
    parent = await dispatcher.task(family.parent.id)
    assert (parent.state, parent.journal, family.heard) == (State.WAITING, '"on"', ["1"])
    assert (await dispatcher.history(parent.id))[-2:] == ["task.claimed", "task.parked"]
    assert dispatcher.tally["task.parked"] == 1, "it still waits for its children"


async def test_a_caller_that_waits_for_a_parent_gets_its_end(
    dispatcher: Observed, family: Family
) -> None:
    family.outcome = Succeeded('"all"')
    waiting = asyncio.ensure_future(dispatcher.wait(family.parent.id, timeout_ms=60_000))
    await asyncio.sleep(0)
    await dispatcher.settle(family.children[0], Succeeded("1"))
    ending = await waiting
    assert ending is not None
    assert (ending.state, ending.result) == (State.SUCCEEDED, '"all"')
    parent = await dispatcher.task(family.parent.id)
    assert (parent.attempt, parent.worker) == (family.parent.attempt, family.parent.worker)


async def test_children_that_end_together_are_heard_by_letter(
    dispatcher: Observed, family: Family
) -> None:
    await asyncio.gather(*(dispatcher.settle(child, Succeeded("1")) for child in family.children))
    assert family.heard == []
    assert (await dispatcher.task(family.parent.id)).state is State.QUEUED


async def test_a_failure_is_heard_by_letter(dispatcher: Observed, family: Family) -> None:
    await dispatcher.settle(family.children[0], BAD)
    assert family.heard == []
    assert (await dispatcher.task(family.parent.id)).state is State.QUEUED


async def test_a_parent_that_has_changed_meanwhile_is_woken(
    dispatcher: Observed, family: Family
) -> None:
    before_applying(dispatcher, lambda: dispatcher.signal(family.parent.id, "hello", "1"))
    assert await dispatcher.settle(family.children[0], Succeeded("1")) is Verdict.APPLIED
    parent = await dispatcher.task(family.parent.id)
    assert (parent.state, parent.journal) == (State.QUEUED, '"first"')
    assert dispatcher.tally["task.parked"] == 1, "what was refused is not counted"


async def test_a_child_that_is_late_has_no_answer(dispatcher: Observed, family: Family) -> None:
    child = family.children[0]
    before_applying(dispatcher, lambda: dispatcher.cancel(child.id))
    assert await dispatcher.settle(child, Succeeded("1")) is Verdict.APPLIED
    assert (await dispatcher.task(child.id)).state is State.CANCELED
    parent = await dispatcher.task(family.parent.id)
    assert (parent.state, parent.journal) == (State.QUEUED, '"first"')


async def test_a_child_waits_its_turn_with_no_hand_free(dispatcher: Observed) -> None:
    parent = await dispatcher.running()
    child = a_task(queue="c", parent=parent.id)
    parked = Parked(seen=0, journal="{}", waiting_for="children", spawn=(child,))
    await dispatcher.settle(parent, parked)
    assert (await dispatcher.task(child.id)).state is State.QUEUED
    dispatcher.add_worker(queues="c", worker="c")
    await dispatcher.idle()
    assert dispatcher.inbox[-1].id == child.id
