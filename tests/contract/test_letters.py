"""The inbox: who is woken by a letter, and who only finds it later."""

from __future__ import annotations

import asyncio

import msgspec

from onward.core import machine
from onward.core.contract import MAX_LETTER_BYTES, MAX_LETTERS, Moved, Verdict
from onward.core.outcome import Parked, Released, Succeeded
from onward.core.task import Letter, State
from tests.contract.driver import Driver
from tests.support import NOW, ids

PARKED = Parked(seen=0, journal="{}", waiting_for="event")


async def test_a_letter_wakes_a_waiting_task(driver: Driver) -> None:
    task = await driver.submit(waiting_for="event")
    driver.now += 5
    moved = await driver.post(task.id, '"yes"')
    assert moved == Moved([Verdict.APPLIED], frozenset({"q"}))
    found = await driver.task(task.id)
    assert (found.state, found.waiting_for, found.queued_at) == (State.QUEUED, None, NOW + 5)
    assert found.rev == task.rev + 1
    assert (await driver.history(task.id))[-1] == "task.woken"
    (held,) = await driver.claim()
    assert [letter.body for letter in held.letters] == ['"yes"']


async def test_a_woken_task_joins_the_end_of_its_queue(driver: Driver) -> None:
    waiting = await driver.submit(waiting_for="event")
    (queued,) = await driver.submit_some(1)
    await driver.post(waiting.id, "1")
    assert ids(await driver.claim(limit=2)) == [queued.id, waiting.id]


async def test_a_second_letter_wakes_nobody_twice(driver: Driver) -> None:
    task = await driver.submit(waiting_for="event")
    moved = await driver.post(task.id, "1", "2")
    assert moved.verdicts == [Verdict.APPLIED] * 2
    assert (await driver.history(task.id)).count("task.woken") == 1
    (held,) = await driver.claim()
    assert [letter.body for letter in held.letters] == ["1", "2"]


async def test_a_letter_to_work_that_is_not_parked_lies_there(driver: Driver) -> None:
    queued = await driver.submit()
    running = await driver.running(queue="r")
    scheduled = await driver.submit(run_at=NOW + 10)
    for id in (queued.id, running.id, scheduled.id):
        before = await driver.task(id)
        assert await driver.post(id, "1") == Moved([Verdict.APPLIED], frozenset())
        assert await driver.task(id) == before
    await driver.settle(running, Released())
    (again,) = await driver.claim("r")
    assert len(again.letters) == 1


async def test_a_letter_to_no_task_or_to_a_finished_one_is_gone(driver: Driver) -> None:
    over = await driver.finished()
    letters = [Letter(to=to, name="signal", body="1") for to in ("nobody", over.id)]
    moved = await driver.store.post(letters, now=NOW)
    assert moved == Moved([Verdict.GONE] * 2, frozenset())
    assert await driver.task(over.id) == over


async def test_a_wake_makes_older_readings_old(driver: Driver) -> None:
    task = await driver.submit(waiting_for="event")
    await driver.post(task.id, "1")
    assert await driver.intervene(task, machine.cancel) is Verdict.MOVED


async def test_no_letter_is_lost_between_parking_and_posting(driver: Driver) -> None:
    for round_ in range(10):
        held = await driver.running(queue=f"q{round_}")
        calls = [driver.settle(held, PARKED), driver.post(held.id, "1")]
        await asyncio.gather(*(calls if round_ % 2 else calls[::-1]))
        (again,) = await driver.claim(held.queue)
        assert len(again.letters) == 1


async def test_no_more_letters_lie_unread_with_a_task_than_are_allowed(driver: Driver) -> None:
    full, other = await driver.running(queue="a"), await driver.running(queue="b")
    await driver.post(full.id, *["1"] * (MAX_LETTERS - 1))
    letters = [Letter(to=to, name="s", body="1") for to in (full.id, full.id, other.id)]
    moved = await driver.store.post(letters, now=NOW)
    assert moved.verdicts == [Verdict.APPLIED, Verdict.REFUSED, Verdict.APPLIED]
    assert await driver.settle(full, Parked(seen=0, journal="{}", waiting_for="event")) == "applied"
    (again,) = await driver.claim("a")
    assert len(again.letters) == MAX_LETTERS
    await driver.settle(again, Parked(seen=MAX_LETTERS, journal="{}", waiting_for="event"))
    assert (await driver.post(full.id, "1")).verdicts == [Verdict.APPLIED], "it has read them"


async def test_no_more_bytes_lie_unread_with_a_task_than_are_allowed(driver: Driver) -> None:
    task = await driver.running()
    body = f'"{"x" * (MAX_LETTER_BYTES // 4 - 100)}"'
    assert (await driver.post(task.id, body, body)).verdicts == [Verdict.APPLIED] * 2
    moved = await driver.post(task.id, body, body, body, "1")
    assert moved.verdicts[0] is Verdict.APPLIED
    assert moved.verdicts[2:] == [Verdict.REFUSED, Verdict.APPLIED]


async def test_how_a_child_ended_is_delivered_however_full_it_is(driver: Driver) -> None:
    parent = await driver.submit(id="parent", waiting_for="event", queue="p")
    await driver.post(parent.id, *["1"] * MAX_LETTERS)
    child = await driver.running(parent=parent.id, queue="c")
    move = driver.decide(child, Succeeded("1"))
    letter = Letter(to=parent.id, name="end", body="1")
    await driver.apply(msgspec.structs.replace(move, letters=(letter,)))
    (held,) = await driver.claim("p")
    assert len(held.letters) == MAX_LETTERS + 1
