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
from onward.core.task import FINAL_EVENTS, Lane, State
from onward.faults import Fault
from tests.contract.driver import Driver, submission
from tests.support import NOW, PROFILES, a_task, an_ask, ids, replay

BUSY = Failed(Fault(kind="ServiceUnavailable", message="try later"))
BAD = Failed(Fault(kind="InvalidInput", message="no"))
NO_DELAY = Overrides(backoff_ms=(0,)).encode()
PARKED = Parked(seen=0, journal='{"at":1}', waiting_for="children")


async def test_an_applied_move_changes_everything_it_says(driver: Driver) -> None:
    held = await driver.running()
    driver.now += 7
    assert await driver.settle(held, Succeeded('{"x":1}')) is Verdict.APPLIED
    task = await driver.task(held.id)
    assert (task.state, task.result, task.finished_at) == (State.SUCCEEDED, '{"x":1}', driver.now)
    assert (task.fence, task.rev) == (held.fence, held.rev + 1)
    assert task.due_at == driver.now + PROFILES["console"].retention_ms
    last = (await driver.events_of(held.id))[-1]
    assert (last.n, last.type, last.at, last.generation) == (3, "task.succeeded", driver.now, 1)


async def test_a_failure_is_kept_with_its_data(driver: Driver) -> None:
    held = await driver.running()
    await driver.settle(held, BAD)
    task = await driver.task(held.id)
    assert (task.state, task.failures, task.error) == (State.DEAD, 1, BAD.fault.encode())
    assert task.fingerprint is not None
    assert await driver.history(held.id) == [
        "task.created",
        "task.claimed",
        "task.failed",
        "task.dlq",
    ]


# Refusals.


async def test_a_move_for_a_task_that_is_not_there(driver: Driver) -> None:
    held = await driver.running()
    move = msgspec.structs.replace(driver.decide(held, Succeeded("1")), task="nobody")
    assert await driver.apply(move) == Moved([Verdict.GONE], frozenset())


async def test_a_stale_worker_cannot_settle(driver: Driver) -> None:
    stale = await driver.running()
    await driver.settle(stale, Lost())
    await driver.claim()
    before = await driver.task(stale.id)
    assert await driver.settle(stale, Succeeded("late")) is Verdict.STALE
    assert await driver.task(stale.id) == before
    assert "task.succeeded" not in await driver.history(stale.id)


async def test_a_decision_on_an_old_reading_is_refused(driver: Driver) -> None:
    held = await driver.running()
    await driver.intervene(await driver.task(held.id), machine.cancel)
    before = await driver.task(held.id)
    assert await driver.settle(held, Succeeded("1")) is Verdict.MOVED
    assert await driver.task(held.id) == before


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
    driver: Driver, guard: dict[str, Any], verdict: Verdict
) -> None:
    held = await driver.running()
    before = await driver.task(held.id)
    move = msgspec.structs.replace(driver.decide(held, Succeeded("1")), **guard)
    assert await driver.apply(move) == Moved([verdict], frozenset())
    assert await driver.task(held.id) == before
    assert await driver.history(held.id) == ["task.created", "task.claimed"]


async def test_a_settlement_after_the_end_is_refused(driver: Driver) -> None:
    held = await driver.running()
    await driver.settle(held, Succeeded("1"))
    assert await driver.settle(held, BAD) is Verdict.MOVED
    assert (await driver.task(held.id)).result == "1"


async def test_a_clock_that_a_heartbeat_overtook_is_refused(driver: Driver) -> None:
    held = await driver.running()
    driver.now = NOW + 30_000
    (due,) = await driver.store.due(now=driver.now, limit=10)
    await driver.hold(held)
    before = await driver.task(held.id)
    assert await driver.intervene(due, machine.on_due) is Verdict.EARLY
    assert await driver.task(held.id) == before
    assert await driver.settle(held, Succeeded("1")) is Verdict.APPLIED


async def test_a_clock_that_really_struck_is_applied(driver: Driver) -> None:
    held = await driver.running()
    driver.now = NOW + 30_000
    (due,) = await driver.store.due(now=driver.now, limit=10)
    assert await driver.intervene(due, machine.on_due) is Verdict.APPLIED
    assert (await driver.history(held.id))[-1] == "task.reclaimed"
    assert await driver.intervene(due, machine.on_due) is Verdict.MOVED, "two sweepers, one move"


async def test_a_refusal_spares_the_rest_of_its_batch(driver: Driver) -> None:
    await driver.submit_some(70)
    held = await driver.claim(limit=70)
    await driver.settle(held[10], Released())
    moves = [driver.decide(one, Succeeded("1")) for one in held]
    moves[20] = msgspec.structs.replace(moves[20], task="nobody")
    verdicts = (await driver.apply(*moves)).verdicts
    assert {at: v for at, v in enumerate(verdicts) if v is not Verdict.APPLIED} == {
        10: Verdict.MOVED,
        20: Verdict.GONE,
    }
    counts = await driver.store.counts()
    assert counts["q", Lane.PRIMARY, State.SUCCEEDED] == 68


@pytest.mark.contract("S1-3")
async def test_of_two_moves_for_one_task_in_one_batch_the_first_wins(driver: Driver) -> None:
    held = await driver.running()
    other = await driver.running(queue="other")
    moves = [
        driver.decide(held, Succeeded("first")),
        driver.decide(other, Succeeded("other")),
        driver.decide(held, Succeeded("second")),
        driver.decide(held, BAD),
    ]
    moved = await driver.apply(*moves)
    assert moved.verdicts == [Verdict.APPLIED, Verdict.APPLIED, Verdict.MOVED, Verdict.MOVED]
    assert (await driver.task(held.id)).result == "first"
    final = [type_ for type_ in await driver.history(held.id) if type_ in FINAL_EVENTS]
    assert final == ["task.succeeded"]


@pytest.mark.contract("S1-3")
async def test_one_final_event_a_generation_is_the_ledgers_own_law(driver: Driver) -> None:
    over = await driver.finished()
    second = machine.event_only(over, "task.succeeded", None)
    assert (await driver.apply(second)).verdicts == [Verdict.REFUSED]
    dead = await driver.running()
    await driver.settle(dead, Failed(Fault(kind="Boom", message="no", retryable=False)))
    await driver.apply(replay(await driver.task(dead.id), NOW))
    (again,) = await driver.claim("q")
    await driver.settle(again, Succeeded("1"))
    assert (await driver.history(dead.id)).count("task.succeeded") == 1
    second = machine.event_only(await driver.task(dead.id), "task.failed", None)
    assert (await driver.apply(second)).verdicts == [Verdict.REFUSED]


async def test_of_racing_settlements_one_wins(driver: Driver) -> None:
    held = await driver.running()
    outcomes = [Succeeded(f"{n}") for n in range(10)]
    verdicts = await asyncio.gather(*(driver.settle(held, outcome) for outcome in outcomes))
    assert sorted(verdicts) == [Verdict.APPLIED] + [Verdict.MOVED] * 9
    history = await driver.history(held.id)
    assert len([type_ for type_ in history if type_ in FINAL_EVENTS]) == 1


# Places in the queue.


async def test_released_work_has_its_place_back(driver: Driver) -> None:
    tasks = await driver.submit_some(4)
    first, second = await driver.claim(limit=2)
    moved = await driver.apply(driver.decide(second, Released()), driver.decide(first, Lost()))
    assert moved.awake == {"q"}
    assert [await driver.store.position(id) for id in ids(tasks)] == [1, 2, 3, 4]
    assert ids(await driver.claim(limit=4)) == ids(tasks)


async def test_released_work_that_was_born_running_has_a_place_too(driver: Driver) -> None:
    inserted = await driver.insert(*(submission(a_task()) for _ in range(3)), asks=(an_ask(),))
    await driver.settle(inserted.claimed[0], Released())
    claimed = await driver.claim(limit=3)
    assert ids(claimed) == [receipt.task for receipt in inserted.receipts]


async def test_a_retry_goes_to_the_end_of_the_retry_lane(driver: Driver) -> None:
    for _ in range(3):
        await driver.submit(overrides=NO_DELAY)
    one, two, three = await driver.claim(limit=3)
    for held in (two, three, one):
        assert (await driver.apply(driver.decide(held, BUSY))).awake == {"q"}
    claimed = await driver.claim(limit=3)
    assert ids(claimed) == ids([two, three, one])
    assert {task.lane for task in claimed} == {Lane.RETRY}


async def test_a_scheduled_task_joins_the_end_of_the_queue(driver: Driver) -> None:
    later = await driver.submit(run_at=NOW + 10)
    (now,) = await driver.submit_some(1)
    driver.now += 10
    assert await driver.intervene(later, machine.on_due) is Verdict.APPLIED
    assert ids(await driver.claim(limit=2)) == [now.id, later.id]


async def test_a_remark_on_a_queued_task_leaves_it_in_its_place(driver: Driver) -> None:
    tasks = await driver.submit_some(2)
    move = machine.event_only(tasks[0], "task.late_result", "{}")
    assert (await driver.apply(move)).verdicts == [Verdict.APPLIED]
    assert ids(await driver.claim(limit=2)) == ids(tasks)
    assert (await driver.history(tasks[0].id))[1] == "task.late_result"


async def test_only_queues_with_new_work_are_awake(driver: Driver) -> None:
    a, b = await driver.running(queue="a"), await driver.running(queue="b")
    moved = await driver.apply(driver.decide(a, Succeeded("1")), driver.decide(b, Released()))
    assert moved.awake == {"b"}


# Replay and abandon.


@pytest.mark.contract("S1-3", "S1-10")
async def test_each_generation_ends_once(driver: Driver) -> None:
    held = await driver.running()
    await driver.settle(held, BAD)
    for generation in (2, 3):
        move = replay(await driver.task(held.id), driver.now)
        moved = await driver.apply(move)
        assert moved == Moved([Verdict.APPLIED], frozenset({"q"}))
        (held,) = await driver.claim()
        assert (held.generation, held.attempt, held.lane) == (generation, 1, Lane.RETRY)
        await driver.settle(held, BAD)
    finals = [e for e in await driver.events_of(held.id) if e.type in FINAL_EVENTS]
    assert [event.generation for event in finals] == [1, 2, 3]


async def test_an_abandoned_letter_is_over_without_a_second_end(driver: Driver) -> None:
    held = await driver.running()
    await driver.settle(held, BAD)
    assert await driver.intervene(await driver.task(held.id), machine.abandon) is Verdict.APPLIED
    task = await driver.task(held.id)
    assert task.state is State.FAILED
    assert [t for t in await driver.history(held.id) if t in FINAL_EVENTS] == ["task.failed"]


async def test_a_stale_worker_of_an_earlier_generation_cannot_settle(driver: Driver) -> None:
    stale = await driver.running()
    await driver.settle(stale, BAD)
    await driver.apply(replay(await driver.task(stale.id), driver.now))
    assert await driver.settle(stale, Succeeded("1")) is Verdict.MOVED
    await driver.claim()
    assert await driver.settle(stale, Succeeded("1")) is Verdict.STALE


# Children and letters.


async def test_children_are_born_with_their_parents_move(driver: Driver) -> None:
    held = await driver.running()
    children = [a_task(queue="c", parent=held.id) for _ in range(3)]
    later = a_task(queue="d", parent=held.id, run_at=NOW + 5)
    moved = await driver.apply(driver.decide(held, PARKED, *children, later))
    assert moved.awake == {"c"}
    parent = await driver.task(held.id)
    assert (parent.state, parent.journal) == (State.WAITING, PARKED.journal)
    assert (parent.waiting_for, parent.attempt) == ("children", 0)
    assert ids(await driver.claim("c", limit=5)) == ids(children)
    found = await driver.task(later.id)
    assert (found.state, found.parent) == (State.SCHEDULED, held.id)
    assert await driver.history(later.id) == ["task.created"]


async def test_a_refused_move_bears_no_children_and_posts_no_letters(driver: Driver) -> None:
    parent = await driver.submit(waiting_for="event")
    stale = await driver.running(queue="c", parent=parent.id)
    await driver.settle(stale, Lost())
    child = a_task()
    moves = [driver.decide(stale, PARKED, child), driver.decide(stale, Succeeded("1"))]
    moved = await driver.apply(*moves)
    assert moved == Moved([Verdict.MOVED] * 2, frozenset())
    assert await driver.store.get([child.id]) == [None]
    assert (await driver.task(parent.id)).state is State.WAITING


async def test_a_child_with_a_known_key_is_not_born_again(driver: Driver) -> None:
    held = await driver.running()
    key = Key("children", f"{held.id}:0", "body")
    first, second = (submission(a_task(queue="c"), key=key) for _ in range(2))
    await driver.insert(first)
    move = msgspec.structs.replace(driver.decide(held, PARKED), spawn=(second,))
    assert (await driver.apply(move)).verdicts == [Verdict.APPLIED]
    assert ids(await driver.claim("c", limit=5)) == [first.task.id]


async def test_a_childs_end_wakes_its_parent(driver: Driver) -> None:
    held = await driver.running()
    child = a_task(queue="c", parent=held.id)
    await driver.settle(held, PARKED, child)
    (running,) = await driver.claim("c")
    moved = await driver.apply(driver.decide(running, Succeeded('"result"')))
    assert moved.awake == {"q"}
    (parent,) = await driver.claim()
    assert (parent.id, parent.attempt, parent.journal) == (held.id, 1, PARKED.journal)
    (letter,) = parent.letters
    body = {"child": child.id, "ok": True, "state": "succeeded", "size": 8}
    assert (letter.name, msgspec.json.decode(letter.body)) == ("child", body)


@pytest.mark.parametrize("child_first", [False, True])
async def test_parent_and_child_may_move_in_the_same_batch(
    driver: Driver, child_first: bool
) -> None:
    parent = await driver.running()
    child = await driver.running(queue="c", parent=parent.id)
    moves = [driver.decide(parent, PARKED), driver.decide(child, Succeeded("1"))]
    moved = await driver.apply(*(moves[::-1] if child_first else moves))
    assert moved == Moved([Verdict.APPLIED] * 2, frozenset({"q"}))
    (again,) = await driver.claim()
    assert len(again.letters) == 1
    told = [(e.n, e.type) for e in await driver.log() if e.task == parent.id]
    assert told == list(
        enumerate(
            ["task.created", "task.claimed", "task.parked", "task.woken", "task.claimed"], start=1
        )
    ), "the log tells one task's events in their order"
    assert await driver.store.counts() == await driver.recount()


async def test_letters_seen_are_gone_and_letters_unseen_are_kept(driver: Driver) -> None:
    task = await driver.submit()
    await driver.post(task.id, "1", "2")
    (held,) = await driver.claim()
    await driver.settle(held, msgspec.structs.replace(PARKED, seen=2))
    assert (await driver.task(task.id)).state is State.WAITING
    await driver.post(task.id, "3")
    (held,) = await driver.claim()
    assert [letter.body for letter in held.letters] == ["3"]


async def test_a_letter_that_came_while_it_ran_is_not_slept_through(driver: Driver) -> None:
    """Compare-and-park: the letter came after the claim and before the park."""
    task = await driver.submit()
    await driver.post(task.id, "1")
    (held,) = await driver.claim()
    await driver.post(task.id, "2")
    moved = await driver.apply(driver.decide(held, msgspec.structs.replace(PARKED, seen=1)))
    assert moved == Moved([Verdict.APPLIED], frozenset({"q"}))
    assert (await driver.task(task.id)).state is State.QUEUED
    assert (await driver.history(task.id))[-2:] == ["task.parked", "task.woken"]
    (held,) = await driver.claim()
    assert [letter.body for letter in held.letters] == ["2"]


async def test_a_timer_wakes_a_parked_task(driver: Driver) -> None:
    held = await driver.running()
    await driver.settle(held, msgspec.structs.replace(PARKED, until=NOW + 50))
    assert await driver.store.due(now=NOW + 49, limit=10) == []
    (due,) = await driver.store.due(now=NOW + 50, limit=10)
    driver.now += 50
    assert await driver.intervene(due, machine.on_due) is Verdict.APPLIED
    assert (await driver.claim())[0].journal == PARKED.journal


async def test_a_promoted_task_goes_before_everybody_in_its_lane(driver: Driver) -> None:
    tasks = await driver.submit_some(4)
    for id in (tasks[2].id, tasks[3].id):
        found = await driver.task(id)
        ahead = msgspec.structs.replace(moves.of_task(found, None), ahead=True)
        assert (await driver.apply(ahead)).verdicts == [Verdict.APPLIED]
    assert await driver.store.position(tasks[2].id) == 1
    order = [tasks[2].id, tasks[3].id, tasks[0].id, tasks[1].id]
    (first,) = await driver.claim()
    assert first.id == order[0]
    assert await driver.settle(first, Released()) is Verdict.APPLIED, "back to where it stood"
    assert ids(await driver.claim(limit=9)) == order
    assert (await driver.store.counts()) == {("q", Lane.PRIMARY, State.RUNNING): 4}
