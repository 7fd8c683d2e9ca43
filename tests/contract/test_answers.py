"""What a parent does about its child's end, in one move with it; and children in free hands."""

from __future__ import annotations

import msgspec
import pytest

from onward.core import machine
from onward.core.contract import Move, Moved, Verdict
from onward.core.outcome import Lost, Parked, Released, Succeeded
from onward.core.task import Claimed, State, Task
from tests.contract.driver import Driver, submission
from tests.support import LEASE_MS, NOW, PROFILES, a_task, an_ask, ids

PARKED = Parked(seen=0, journal='{"at":1}', waiting_for="children")
ON = Parked(seen=0, journal='{"at":2}', waiting_for="children", notes=(("node.finished", "{}"),))


async def parked_with_child(driver: Driver, **fields: str) -> tuple[Task, Claimed]:
    """A parent that waits, and its child, which runs."""
    parent = await driver.running(**fields)
    child = a_task(queue="c", parent=parent.id)
    await driver.settle(parent, PARKED, child)
    (running,) = await driver.claim("c")
    return await driver.task(parent.id), running


def ended(
    driver: Driver, child: Claimed, parent: Task, heard: Parked | Succeeded, *spawn: Task
) -> Move:
    children = tuple(submission(task) for task in spawn)
    answer = machine.answer(parent, heard, driver.now, PROFILES[parent.profile], children)
    return msgspec.structs.replace(driver.decide(child, Succeeded("1")), answer=answer)


async def test_an_answer_is_applied_in_the_letters_place(driver: Driver) -> None:
    parent, child = await parked_with_child(driver)
    following = a_task(queue="c", parent=parent.id)
    moved = await driver.apply(ended(driver, child, parent, ON, following))
    assert moved == Moved([Verdict.APPLIED], frozenset({"c"}), (), frozenset({parent.id}))
    assert (await driver.task(child.id)).state is State.SUCCEEDED
    after = await driver.task(parent.id)
    assert (after.state, after.journal, after.waiting_for) == (
        State.WAITING,
        ON.journal,
        "children",
    )
    assert (after.fence, after.rev, after.attempt) == (parent.fence, parent.rev + 1, parent.attempt)
    assert (await driver.history(parent.id))[-3:] == [
        "task.claimed",
        "task.parked",
        "node.finished",
    ]
    assert ids(await driver.claim("c", limit=5)) == [following.id]
    await driver.post(parent.id, "signal")
    (woken,) = await driver.claim()
    assert [letter.body for letter in woken.letters] == ["signal"], "the child's was not posted"
    assert await driver.store.counts() == await driver.recount()


async def test_an_answer_may_be_the_end_and_the_next_parent_hears_of_it(driver: Driver) -> None:
    top = await driver.submit(queue="top", waiting_for="event")
    parent, child = await parked_with_child(driver, parent=top.id)
    moved = await driver.apply(ended(driver, child, parent, Succeeded('"all"', journal="{}")))
    assert (moved.awake, moved.answered) == (frozenset({"top"}), frozenset({parent.id}))
    after = await driver.task(parent.id)
    assert (after.state, after.result, after.journal) == (State.SUCCEEDED, '"all"', "{}")
    assert (after.waiting_for, after.finished_at) == (None, driver.now)
    assert (await driver.history(parent.id))[-1] == "task.succeeded"
    (woken,) = await driver.claim("top")
    assert [msgspec.json.decode(letter.body)["child"] for letter in woken.letters] == [parent.id]
    assert await driver.store.counts() == await driver.recount()


async def test_a_parent_that_has_changed_gets_the_letter_instead(driver: Driver) -> None:
    parent, child = await parked_with_child(driver)
    unborn = a_task(queue="c", parent=parent.id)
    move = ended(driver, child, parent, ON, unborn)
    await driver.post(parent.id, "signal")
    moved = await driver.apply(move)
    assert (moved.verdicts, moved.answered) == ([Verdict.APPLIED], frozenset())
    (woken,) = await driver.claim()
    assert (woken.journal, len(woken.letters)) == (PARKED.journal, 2)
    assert await driver.store.get([unborn.id]) == [None]


async def test_a_refused_child_has_no_answer(driver: Driver) -> None:
    parent, child = await parked_with_child(driver)
    move = ended(driver, child, parent, ON)
    await driver.settle(child, Lost())
    assert await driver.apply(move) == Moved([Verdict.MOVED], frozenset())
    assert await driver.task(parent.id) == parent


async def test_of_two_answers_for_one_parent_the_second_becomes_a_letter(driver: Driver) -> None:
    held = await driver.running()
    await driver.settle(held, PARKED, *(a_task(queue="c", parent=held.id) for _ in range(2)))
    one, two = await driver.claim("c", limit=2)
    parent = await driver.task(held.id)
    moved = await driver.apply(*(ended(driver, child, parent, ON) for child in (one, two)))
    assert moved == Moved([Verdict.APPLIED] * 2, frozenset({"q"}), (), frozenset({parent.id}))
    (woken,) = await driver.claim()
    assert (woken.journal, len(woken.letters)) == (ON.journal, 1)
    assert msgspec.json.decode(woken.letters[0].body)["child"] == two.id


# Free hands.


async def test_children_go_straight_into_free_hands(driver: Driver) -> None:
    held = await driver.running()
    children = [a_task(queue="c", parent=held.id) for _ in range(3)]
    asks = (an_ask("c", worker="v", limit=2),)
    moved = await driver.apply(driver.decide(held, PARKED, *children), asks=asks)
    assert (ids(moved.claimed), moved.awake) == (ids(children[:2]), frozenset({"c"}))
    task, claimed = await driver.task(children[0].id), moved.claimed[0]
    assert (task.state, task.worker, task.lease_until) == (State.RUNNING, "v", NOW + LEASE_MS)
    assert (claimed.fence, claimed.rev, claimed.attempt) == (task.fence, task.rev, task.attempt)
    assert await driver.history(task.id) == ["task.created", "task.claimed"]
    assert await driver.settle(claimed, Succeeded("1")) is Verdict.APPLIED
    assert await driver.store.counts() == await driver.recount()


async def test_an_answers_children_go_straight_into_free_hands(driver: Driver) -> None:
    parent, child = await parked_with_child(driver)
    following = a_task(queue="c", parent=parent.id, payload='"' + "x" * 100 + '"')
    move = ended(driver, child, parent, ON, following)
    moved = await driver.apply(move, asks=(an_ask("c"),))
    assert (ids(moved.claimed), moved.awake) == ([following.id], frozenset())
    assert moved.claimed[0].payload == following.payload


async def test_whoever_stood_in_the_queue_goes_before_the_children(driver: Driver) -> None:
    first = await driver.submit(queue="c")
    held = await driver.running()
    child = a_task(queue="c", parent=held.id)
    moved = await driver.apply(driver.decide(held, PARKED, child), asks=(an_ask("c"),))
    assert (ids(moved.claimed), moved.awake) == ([first.id], frozenset({"c"}))
    assert (await driver.task(child.id)).state is State.QUEUED


@pytest.mark.parametrize("outcome", [Released(), Lost()])
async def test_what_is_handed_back_is_not_handed_out_in_the_same_move(
    driver: Driver, outcome: Released | Lost
) -> None:
    held = await driver.running()
    moved = await driver.apply(driver.decide(held, outcome), asks=(an_ask(),))
    assert moved == Moved([Verdict.APPLIED], frozenset({"q"}))
