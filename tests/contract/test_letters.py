"""The inbox: who is woken by a letter, and who only finds it later."""

from __future__ import annotations

import asyncio

from onward.core import machine
from onward.core.contract import Moved, Verdict
from onward.core.outcome import Parked, Released
from onward.core.task import Letter, State
from tests.contract.desk import Desk
from tests.support import NOW, ids

PARKED = Parked(seen=0, journal="{}", waiting_for="event")


async def test_a_letter_wakes_a_waiting_task(desk: Desk) -> None:
    task = await desk.submit(waiting_for="event")
    desk.now += 5
    moved = await desk.post(task.id, '"yes"')
    assert moved == Moved([Verdict.APPLIED], frozenset({"q"}))
    found = await desk.task(task.id)
    assert (found.state, found.waiting_for, found.queued_at) == (State.QUEUED, None, NOW + 5)
    assert found.rev == task.rev + 1
    assert (await desk.history(task.id))[-1] == "task.woken"
    (held,) = await desk.claim()
    assert [letter.body for letter in held.letters] == ['"yes"']


async def test_a_woken_task_joins_the_end_of_its_queue(desk: Desk) -> None:
    waiting = await desk.submit(waiting_for="event")
    (queued,) = await desk.submit_some(1)
    await desk.post(waiting.id, "1")
    assert ids(await desk.claim(limit=2)) == [queued.id, waiting.id]


async def test_a_second_letter_wakes_nobody_twice(desk: Desk) -> None:
    task = await desk.submit(waiting_for="event")
    moved = await desk.post(task.id, "1", "2")
    assert moved.verdicts == [Verdict.APPLIED] * 2
    assert (await desk.history(task.id)).count("task.woken") == 1
    (held,) = await desk.claim()
    assert [letter.body for letter in held.letters] == ["1", "2"]


async def test_a_letter_to_work_that_is_not_parked_lies_there(desk: Desk) -> None:
    queued = await desk.submit()
    running = await desk.running(queue="r")
    scheduled = await desk.submit(run_at=NOW + 10)
    for id in (queued.id, running.id, scheduled.id):
        before = await desk.task(id)
        assert await desk.post(id, "1") == Moved([Verdict.APPLIED], frozenset())
        assert await desk.task(id) == before
    await desk.settle(running, Released())
    (again,) = await desk.claim("r")
    assert len(again.letters) == 1


async def test_a_letter_to_nobody_or_to_what_is_over_is_gone(desk: Desk) -> None:
    over = await desk.finished()
    letters = [Letter(to=to, name="signal", body="1") for to in ("nobody", over.id)]
    moved = await desk.store.post(letters, now=NOW)
    assert moved == Moved([Verdict.GONE] * 2, frozenset())
    assert await desk.task(over.id) == over


async def test_a_wake_makes_older_readings_old(desk: Desk) -> None:
    task = await desk.submit(waiting_for="event")
    await desk.post(task.id, "1")
    assert await desk.intervene(task, machine.cancel) is Verdict.MOVED


async def test_no_letter_is_lost_between_parking_and_posting(desk: Desk) -> None:
    for round_ in range(10):
        held = await desk.running(queue=f"q{round_}")
        calls = [desk.settle(held, PARKED), desk.post(held.id, "1")]
        await asyncio.gather(*(calls if round_ % 2 else calls[::-1]))
        (again,) = await desk.claim(held.queue)
        assert len(again.letters) == 1
