"""Unique and debounced submissions through the Dispatcher: one counts, whoever comes at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.core.alarm import Alarm
from onward.core.contended import PREDECESSOR, STATES, UniqueRule
from onward.core.contract import Fate, Receipt
from onward.core.errors import Conflict
from onward.core.intake import NewTask
from onward.core.outcome import Succeeded
from onward.core.policy import CANCEL_GRACE_MS
from onward.core.task import State
from tests.core.dispatcher import Observed, dispatcher
from tests.support import NOW, a_task

__all__ = ["dispatcher"]


def rule(then: Any, while_: str = "live") -> UniqueRule:
    return UniqueRule(STATES[while_], then)


async def submit(dispatcher: Observed, then: Any, key: str = "u", **fields: Any) -> Receipt:
    return await dispatcher.submit(a_task(unique_key=key, **fields), unique=rule(then))


async def debounce(dispatcher: Observed, ms: int = 100, **fields: Any) -> Receipt:
    now = dispatcher.clock.now()
    by = fields.pop("by", None)
    task = a_task(
        debounce_key="d", created_at=now, run_at=now + ms, debounce_by=by and now + by, **fields
    )
    return await dispatcher.submit(task)


@pytest.mark.contract("L-8")
async def test_the_one_that_lives_is_the_answer_or_the_refusal(dispatcher: Observed) -> None:
    first = await submit(dispatcher, "return")
    assert await submit(dispatcher, "return") == Receipt(Fate.KNOWN, first.task)
    with pytest.raises(Conflict, match=first.task):
        await submit(dispatcher, "refuse")


@pytest.mark.contract("L-8")
async def test_of_many_at_once_one_is_taken(dispatcher: Observed) -> None:
    receipts = await asyncio.gather(*[submit(dispatcher, "return") for _ in range(600)])
    assert sum(receipt.fate is Fate.FRESH for receipt in receipts) == 1
    assert len({receipt.task for receipt in receipts}) == 1


@pytest.mark.contract("L-8")
async def test_one_that_has_not_started_is_canceled_and_replaced_at_once(
    dispatcher: Observed,
) -> None:
    first = await submit(dispatcher, "return")
    second = await submit(dispatcher, "replace")
    assert second.fate is Fate.FRESH
    assert (await dispatcher.task(first.task)).state is State.CANCELED
    assert (await dispatcher.task(second.task)).state is State.QUEUED


@pytest.mark.contract("L-8")
async def test_the_new_one_starts_when_the_old_one_is_over(dispatcher: Observed) -> None:
    held = await dispatcher.running(unique_key="u")
    second = await submit(dispatcher, "replace")
    waiting = await dispatcher.task(second.task)
    assert (waiting.state, waiting.waiting_for) == (State.WAITING, PREDECESSOR)
    assert waiting.predecessor == held.id
    assert dispatcher.stopped == [(held.id, False)]
    await dispatcher.settle(held, Succeeded("1"))
    assert (await dispatcher.task(held.id)).state is State.CANCELED
    assert (await dispatcher.task(second.task)).state is State.QUEUED


@pytest.mark.contract("L-8")
async def test_of_several_that_wait_for_the_same_end_the_newest_starts(
    dispatcher: Observed,
) -> None:
    held = await dispatcher.running(unique_key="u")
    second = await submit(dispatcher, "replace")
    third = await submit(dispatcher, "replace")
    assert (await dispatcher.task(second.task)).state is State.CANCELED
    waiting = await dispatcher.task(third.task)
    assert (waiting.state, waiting.predecessor) == (State.WAITING, held.id)
    await dispatcher.settle(held, Succeeded("1"))
    assert (await dispatcher.task(third.task)).state is State.QUEUED


@pytest.mark.contract("L-8")
async def test_should_the_old_one_never_answer_the_alarm_starts_the_new_one(
    dispatcher: Observed,
) -> None:
    held = await dispatcher.running(unique_key="u")
    second = await submit(dispatcher, "replace")
    alarm = Alarm(dispatcher)
    dispatcher.clock.advance(CANCEL_GRACE_MS)  # type: ignore[attr-defined]
    await alarm.sweep()
    assert (await dispatcher.task(held.id)).state is State.CANCELED
    assert (await dispatcher.task(second.task)).state is State.QUEUED


@pytest.mark.contract("L-8")
async def test_many_replacements_at_once_leave_one_that_lives(dispatcher: Observed) -> None:
    held = await dispatcher.running(unique_key="u")
    receipts = await asyncio.gather(*[submit(dispatcher, "replace") for _ in range(20)])
    tasks = [await dispatcher.task(receipt.task) for receipt in receipts]
    (last,) = [task for task in tasks if task.state is State.WAITING]
    assert sum(task.state is State.CANCELED for task in tasks) == 19
    await dispatcher.settle(held, Succeeded("1"))
    assert (await dispatcher.task(last.id)).state is State.QUEUED


@pytest.mark.contract("L-8")
async def test_only_what_counts_is_in_the_way(dispatcher: Observed) -> None:
    held = await dispatcher.running(unique_key="u")
    queued = await dispatcher.submit(a_task(unique_key="u"), unique=rule("return", "queued"))
    assert queued.fate is Fate.FRESH
    again = await dispatcher.submit(a_task(unique_key="u"), unique=rule("return", "running"))
    assert again == Receipt(Fate.KNOWN, held.id)


@pytest.mark.contract("L-7")
async def test_the_newest_takes_the_place_of_the_one_that_waits(dispatcher: Observed) -> None:
    first = await debounce(dispatcher, payload="1")
    dispatcher.clock.advance(60)  # type: ignore[attr-defined]
    second = await debounce(dispatcher, payload="2")
    assert second == Receipt(Fate.KNOWN, first.task)
    task = await dispatcher.task(first.task)
    assert (task.state, task.payload, task.run_at) == (State.SCHEDULED, "2", NOW + 160)
    assert await dispatcher.history(first.task) == ["task.created", "task.superseded"]


@pytest.mark.contract("L-7")
async def test_it_is_put_off_no_longer_than_was_said_at_first(dispatcher: Observed) -> None:
    first = await debounce(dispatcher, by=250)
    for _ in range(4):
        dispatcher.clock.advance(60)  # type: ignore[attr-defined]
        await debounce(dispatcher, by=250)
    assert (await dispatcher.task(first.task)).run_at == NOW + 250


@pytest.mark.contract("L-7")
async def test_many_at_once_become_one_task(dispatcher: Observed) -> None:
    receipts = await asyncio.gather(*[debounce(dispatcher, payload=f"{n}") for n in range(40)])
    (id,) = {receipt.task for receipt in receipts}
    assert (await dispatcher.history(id)).count("task.superseded") == 39
    assert (await dispatcher.task(id)).payload == "39"


@pytest.mark.contract("L-7")
async def test_once_it_has_started_the_next_one_waits_by_itself(dispatcher: Observed) -> None:
    first = await debounce(dispatcher)
    dispatcher.clock.advance(100)  # type: ignore[attr-defined]
    await Alarm(dispatcher).sweep()
    second = await debounce(dispatcher)
    assert second.task != first.task


@pytest.mark.contract("B-1", "L-8")
async def test_of_many_in_one_call_each_has_its_own_answer(dispatcher: Observed) -> None:
    items = [
        NewTask(a_task()),
        NewTask(a_task(unique_key="u"), None, rule("return")),
        NewTask(a_task(unique_key="u"), None, rule("refuse")),
        NewTask(a_task(payload=7)),
        *[NewTask(a_task()) for _ in range(300)],
    ]
    answers = await dispatcher.submit_each(items)
    assert isinstance(answers[2], Conflict)
    assert isinstance(answers[3], Exception)
    fine = [each for at, each in enumerate(answers) if at not in (2, 3)]
    assert all(isinstance(each, Receipt) and each.fate is Fate.FRESH for each in fine)
