"""Moving on: a move is applied whole, or refused on its guard and changes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from onward.core import machine, moves
from onward.core.contract import Key, Moved, Verdict
from onward.core.outcome import Failed, Lost, Parked, Released, Succeeded
from onward.core.policy import Overrides
from onward.core.task import FINAL_EVENTS, Fault, Lane, State
from tests.contract.desk import Desk, submission
from tests.support import NOW, PROFILES, a_task, an_ask, ids, replay

BUSY = Failed(Fault(kind="ServiceUnavailable", message="try later"))
BAD = Failed(Fault(kind="InvalidInput", message="no"))
NO_DELAY = Overrides(backoff_ms=(0,)).encode()
PARKED = Parked(seen=0, journal='{"at":1}', waiting_for="children")


async def test_an_applied_move_changes_everything_it_says(desk: Desk) -> None:
    held = await desk.running()
    desk.now += 7
    assert await desk.settle(held, Succeeded('{"x":1}')) is Verdict.APPLIED
    task = await desk.task(held.id)
    assert (task.state, task.result, task.finished_at) == (State.SUCCEEDED, '{"x":1}', desk.now)
    assert (task.fence, task.rev) == (held.fence, held.rev + 1)
    assert task.due_at == desk.now + PROFILES["console"].retention_ms
    last = (await desk.events_of(held.id))[-1]
    assert (last.n, last.type, last.at, last.generation) == (3, "task.succeeded", desk.now, 1)


async def test_a_failure_is_kept_with_its_data(desk: Desk) -> None:
    held = await desk.running()
    await desk.settle(held, BAD)
    task = await desk.task(held.id)
    assert (task.state, task.failures, task.error) == (State.DEAD, 1, BAD.fault.encode())
    assert task.fingerprint is not None
    assert await desk.history(held.id) == [
        "task.created",
        "task.claimed",
        "task.failed",
        "task.dlq",
    ]


# Refusals.


async def test_a_move_for_a_task_that_is_not_there(desk: Desk) -> None:
    held = await desk.running()
    move = msgspec.structs.replace(desk.decide(held, Succeeded("1")), task="nobody")
    assert await desk.apply(move) == Moved([Verdict.GONE], frozenset())


async def test_a_stale_worker_cannot_settle(desk: Desk) -> None:
    stale = await desk.running()
    await desk.settle(stale, Lost())
    await desk.claim()
    before = await desk.task(stale.id)
    assert await desk.settle(stale, Succeeded("late")) is Verdict.STALE
    assert await desk.task(stale.id) == before
    assert "task.succeeded" not in await desk.history(stale.id)


async def test_a_decision_on_an_old_reading_is_refused(desk: Desk) -> None:
    held = await desk.running()
    await desk.intervene(await desk.task(held.id), machine.cancel)
    before = await desk.task(held.id)
    assert await desk.settle(held, Succeeded("1")) is Verdict.MOVED
    assert await desk.task(held.id) == before


@pytest.mark.parametrize(
    ("guard", "verdict"),
    [
        ({"expect": State.QUEUED}, Verdict.MOVED),
        ({"fence": 0}, Verdict.STALE),
        ({"fence": 2}, Verdict.STALE),
        ({"rev": 0}, Verdict.MOVED),
        ({"rev": 2}, Verdict.MOVED),
        ({"due_by": NOW}, Verdict.EARLY),
    ],
)
async def test_each_guard_holds_by_itself(
    desk: Desk, guard: dict[str, Any], verdict: Verdict
) -> None:
    held = await desk.running()
    before = await desk.task(held.id)
    move = msgspec.structs.replace(desk.decide(held, Succeeded("1")), **guard)
    assert await desk.apply(move) == Moved([verdict], frozenset())
    assert await desk.task(held.id) == before
    assert await desk.history(held.id) == ["task.created", "task.claimed"]


async def test_a_settlement_after_the_end_is_refused(desk: Desk) -> None:
    held = await desk.running()
    await desk.settle(held, Succeeded("1"))
    assert await desk.settle(held, BAD) is Verdict.MOVED
    assert (await desk.task(held.id)).result == "1"


async def test_a_clock_that_a_heartbeat_overtook_is_refused(desk: Desk) -> None:
    held = await desk.running()
    desk.now = NOW + 30_000
    (due,) = await desk.store.due(now=desk.now, limit=10)
    await desk.hold(held)
    before = await desk.task(held.id)
    assert await desk.intervene(due, machine.on_due) is Verdict.EARLY
    assert await desk.task(held.id) == before
    assert await desk.settle(held, Succeeded("1")) is Verdict.APPLIED


async def test_a_clock_that_really_struck_is_applied(desk: Desk) -> None:
    held = await desk.running()
    desk.now = NOW + 30_000
    (due,) = await desk.store.due(now=desk.now, limit=10)
    assert await desk.intervene(due, machine.on_due) is Verdict.APPLIED
    assert (await desk.history(held.id))[-1] == "task.reclaimed"
    assert await desk.intervene(due, machine.on_due) is Verdict.MOVED, "two sweepers, one move"


async def test_a_refusal_spares_the_rest_of_its_batch(desk: Desk) -> None:
    await desk.submit_some(70)
    held = await desk.claim(limit=70)
    await desk.settle(held[10], Released())
    moves = [desk.decide(one, Succeeded("1")) for one in held]
    moves[20] = msgspec.structs.replace(moves[20], task="nobody")
    verdicts = (await desk.apply(*moves)).verdicts
    assert {at: v for at, v in enumerate(verdicts) if v is not Verdict.APPLIED} == {
        10: Verdict.MOVED,
        20: Verdict.GONE,
    }
    counts = await desk.store.counts()
    assert counts["q", Lane.PRIMARY, State.SUCCEEDED] == 68


@pytest.mark.contract("S1-3")
async def test_of_two_moves_for_one_task_in_one_batch_the_first_wins(desk: Desk) -> None:
    held = await desk.running()
    other = await desk.running(queue="other")
    moves = [
        desk.decide(held, Succeeded("first")),
        desk.decide(other, Succeeded("other")),
        desk.decide(held, Succeeded("second")),
        desk.decide(held, BAD),
    ]
    moved = await desk.apply(*moves)
    assert moved.verdicts == [Verdict.APPLIED, Verdict.APPLIED, Verdict.MOVED, Verdict.MOVED]
    assert (await desk.task(held.id)).result == "first"
    final = [type_ for type_ in await desk.history(held.id) if type_ in FINAL_EVENTS]
    assert final == ["task.succeeded"]


@pytest.mark.contract("S1-3")
async def test_one_final_event_a_generation_is_the_ledgers_own_law(desk: Desk) -> None:
    over = await desk.finished()
    second = machine.event_only(over, "task.succeeded", None)
    assert (await desk.apply(second)).verdicts == [Verdict.REFUSED]
    dead = await desk.running()
    await desk.settle(dead, Failed(Fault(kind="Boom", message="no", retryable=False)))
    await desk.apply(replay(await desk.task(dead.id), NOW))
    (again,) = await desk.claim("q")
    await desk.settle(again, Succeeded("1"))
    assert (await desk.history(dead.id)).count("task.succeeded") == 1
    second = machine.event_only(await desk.task(dead.id), "task.failed", None)
    assert (await desk.apply(second)).verdicts == [Verdict.REFUSED]


async def test_of_racing_settlements_one_wins(desk: Desk) -> None:
    held = await desk.running()
    outcomes = [Succeeded(f"{n}") for n in range(10)]
    verdicts = await asyncio.gather(*(desk.settle(held, outcome) for outcome in outcomes))
    assert sorted(verdicts) == [Verdict.APPLIED] + [Verdict.MOVED] * 9
    history = await desk.history(held.id)
    assert len([type_ for type_ in history if type_ in FINAL_EVENTS]) == 1


# Places in the queue.


async def test_released_work_has_its_place_back(desk: Desk) -> None:
    tasks = await desk.submit_some(4)
    first, second = await desk.claim(limit=2)
    moved = await desk.apply(desk.decide(second, Released()), desk.decide(first, Lost()))
    assert moved.awake == {"q"}
    assert [await desk.store.position(id) for id in ids(tasks)] == [1, 2, 3, 4]
    assert ids(await desk.claim(limit=4)) == ids(tasks)


async def test_released_work_that_was_born_running_has_a_place_too(desk: Desk) -> None:
    inserted = await desk.insert(*(submission(a_task()) for _ in range(3)), asks=(an_ask(),))
    await desk.settle(inserted.claimed[0], Released())
    claimed = await desk.claim(limit=3)
    assert ids(claimed) == [receipt.task for receipt in inserted.receipts]


async def test_a_retry_goes_to_the_end_of_the_retry_lane(desk: Desk) -> None:
    for _ in range(3):
        await desk.submit(overrides=NO_DELAY)
    one, two, three = await desk.claim(limit=3)
    for held in (two, three, one):
        assert (await desk.apply(desk.decide(held, BUSY))).awake == {"q"}
    claimed = await desk.claim(limit=3)
    assert ids(claimed) == ids([two, three, one])
    assert {task.lane for task in claimed} == {Lane.RETRY}


async def test_a_scheduled_task_joins_the_end_of_the_queue(desk: Desk) -> None:
    later = await desk.submit(run_at=NOW + 10)
    (now,) = await desk.submit_some(1)
    desk.now += 10
    assert await desk.intervene(later, machine.on_due) is Verdict.APPLIED
    assert ids(await desk.claim(limit=2)) == [now.id, later.id]


async def test_a_remark_on_a_queued_task_leaves_it_in_its_place(desk: Desk) -> None:
    tasks = await desk.submit_some(2)
    move = machine.event_only(tasks[0], "task.late_result", "{}")
    assert (await desk.apply(move)).verdicts == [Verdict.APPLIED]
    assert ids(await desk.claim(limit=2)) == ids(tasks)
    assert (await desk.history(tasks[0].id))[1] == "task.late_result"


async def test_only_queues_with_new_work_are_awake(desk: Desk) -> None:
    a, b = await desk.running(queue="a"), await desk.running(queue="b")
    moved = await desk.apply(desk.decide(a, Succeeded("1")), desk.decide(b, Released()))
    assert moved.awake == {"b"}


# Replay and abandon.


@pytest.mark.contract("S1-3", "S1-10")
async def test_each_generation_ends_once(desk: Desk) -> None:
    held = await desk.running()
    await desk.settle(held, BAD)
    for generation in (2, 3):
        move = replay(await desk.task(held.id), desk.now)
        moved = await desk.apply(move)
        assert moved == Moved([Verdict.APPLIED], frozenset({"q"}))
        (held,) = await desk.claim()
        assert (held.generation, held.attempt, held.lane) == (generation, 1, Lane.RETRY)
        await desk.settle(held, BAD)
    finals = [e for e in await desk.events_of(held.id) if e.type in FINAL_EVENTS]
    assert [event.generation for event in finals] == [1, 2, 3]


async def test_an_abandoned_letter_is_over_without_a_second_end(desk: Desk) -> None:
    held = await desk.running()
    await desk.settle(held, BAD)
    assert await desk.intervene(await desk.task(held.id), machine.abandon) is Verdict.APPLIED
    task = await desk.task(held.id)
    assert task.state is State.FAILED
    assert [t for t in await desk.history(held.id) if t in FINAL_EVENTS] == ["task.failed"]


async def test_a_stale_worker_of_an_earlier_generation_cannot_settle(desk: Desk) -> None:
    stale = await desk.running()
    await desk.settle(stale, BAD)
    await desk.apply(replay(await desk.task(stale.id), desk.now))
    assert await desk.settle(stale, Succeeded("1")) is Verdict.MOVED
    await desk.claim()
    assert await desk.settle(stale, Succeeded("1")) is Verdict.STALE


# Children and letters.


async def test_children_are_born_with_their_parents_move(desk: Desk) -> None:
    held = await desk.running()
    children = [a_task(queue="c", parent=held.id) for _ in range(3)]
    later = a_task(queue="d", parent=held.id, run_at=NOW + 5)
    moved = await desk.apply(desk.decide(held, PARKED, *children, later))
    assert moved.awake == {"c"}
    parent = await desk.task(held.id)
    assert (parent.state, parent.journal) == (State.WAITING, PARKED.journal)
    assert (parent.waiting_for, parent.attempt) == ("children", 0)
    assert ids(await desk.claim("c", limit=5)) == ids(children)
    found = await desk.task(later.id)
    assert (found.state, found.parent) == (State.SCHEDULED, held.id)
    assert await desk.history(later.id) == ["task.created"]


async def test_a_refused_move_bears_no_children_and_posts_no_letters(desk: Desk) -> None:
    parent = await desk.submit(waiting_for="event")
    stale = await desk.running(queue="c", parent=parent.id)
    await desk.settle(stale, Lost())
    child = a_task()
    moves = [desk.decide(stale, PARKED, child), desk.decide(stale, Succeeded("1"))]
    moved = await desk.apply(*moves)
    assert moved == Moved([Verdict.MOVED] * 2, frozenset())
    assert await desk.store.get([child.id]) == [None]
    assert (await desk.task(parent.id)).state is State.WAITING


async def test_a_child_with_a_known_key_is_not_born_again(desk: Desk) -> None:
    held = await desk.running()
    key = Key("children", f"{held.id}:0", "body")
    first, second = (submission(a_task(queue="c"), key=key) for _ in range(2))
    await desk.insert(first)
    move = msgspec.structs.replace(desk.decide(held, PARKED), spawn=(second,))
    assert (await desk.apply(move)).verdicts == [Verdict.APPLIED]
    assert ids(await desk.claim("c", limit=5)) == [first.task.id]


async def test_a_childs_end_wakes_its_parent(desk: Desk) -> None:
    held = await desk.running()
    child = a_task(queue="c", parent=held.id)
    await desk.settle(held, PARKED, child)
    (running,) = await desk.claim("c")
    moved = await desk.apply(desk.decide(running, Succeeded('"result"')))
    assert moved.awake == {"q"}
    (parent,) = await desk.claim()
    assert (parent.id, parent.attempt, parent.journal) == (held.id, 1, PARKED.journal)
    (letter,) = parent.letters
    body = {"child": child.id, "ok": True, "state": "succeeded", "size": 8}
    assert (letter.name, msgspec.json.decode(letter.body)) == ("child", body)


@pytest.mark.parametrize("child_first", [False, True])
async def test_parent_and_child_may_move_in_the_same_batch(desk: Desk, child_first: bool) -> None:
    parent = await desk.running()
    child = await desk.running(queue="c", parent=parent.id)
    moves = [desk.decide(parent, PARKED), desk.decide(child, Succeeded("1"))]
    moved = await desk.apply(*(moves[::-1] if child_first else moves))
    assert moved == Moved([Verdict.APPLIED] * 2, frozenset({"q"}))
    (again,) = await desk.claim()
    assert len(again.letters) == 1
    told = [(e.n, e.type) for e in await desk.log() if e.task == parent.id]
    assert told == list(
        enumerate(
            ["task.created", "task.claimed", "task.parked", "task.woken", "task.claimed"], start=1
        )
    ), "the log tells one task's events in their order"
    assert await desk.store.counts() == await desk.recount()


async def test_letters_seen_are_gone_and_letters_unseen_are_kept(desk: Desk) -> None:
    task = await desk.submit()
    await desk.post(task.id, "1", "2")
    (held,) = await desk.claim()
    await desk.settle(held, msgspec.structs.replace(PARKED, seen=2))
    assert (await desk.task(task.id)).state is State.WAITING
    await desk.post(task.id, "3")
    (held,) = await desk.claim()
    assert [letter.body for letter in held.letters] == ["3"]


async def test_a_letter_that_came_while_it_ran_is_not_slept_through(desk: Desk) -> None:
    """Compare-and-park: the letter came after the claim and before the park."""
    task = await desk.submit()
    await desk.post(task.id, "1")
    (held,) = await desk.claim()
    await desk.post(task.id, "2")
    moved = await desk.apply(desk.decide(held, msgspec.structs.replace(PARKED, seen=1)))
    assert moved == Moved([Verdict.APPLIED], frozenset({"q"}))
    assert (await desk.task(task.id)).state is State.QUEUED
    assert (await desk.history(task.id))[-2:] == ["task.parked", "task.woken"]
    (held,) = await desk.claim()
    assert [letter.body for letter in held.letters] == ["2"]


async def test_a_timer_wakes_a_parked_task(desk: Desk) -> None:
    held = await desk.running()
    await desk.settle(held, msgspec.structs.replace(PARKED, until=NOW + 50))
    assert await desk.store.due(now=NOW + 49, limit=10) == []
    (due,) = await desk.store.due(now=NOW + 50, limit=10)
    desk.now += 50
    assert await desk.intervene(due, machine.on_due) is Verdict.APPLIED
    assert (await desk.claim())[0].journal == PARKED.journal


async def test_a_promoted_task_goes_before_everybody_in_its_lane(desk: Desk) -> None:
    tasks = await desk.submit_some(4)
    for id in (tasks[2].id, tasks[3].id):
        found = await desk.task(id)
        ahead = msgspec.structs.replace(moves.unchanged(found, None), ahead=True)
        assert (await desk.apply(ahead)).verdicts == [Verdict.APPLIED]
    assert await desk.store.position(tasks[2].id) == 1
    order = [tasks[2].id, tasks[3].id, tasks[0].id, tasks[1].id]
    (first,) = await desk.claim()
    assert first.id == order[0]
    assert await desk.settle(first, Released()) is Verdict.APPLIED, "back to where it stood"
    assert ids(await desk.claim(limit=9)) == order
    assert (await desk.store.counts()) == {("q", Lane.PRIMARY, State.RUNNING): 4}
