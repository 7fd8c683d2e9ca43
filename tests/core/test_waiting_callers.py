"""Callers that wait for the end of a task, on a ledger in memory."""

from __future__ import annotations

import asyncio

import pytest

from onward.core.clock import ManualClock
from onward.core.contract import Key, Verdict
from onward.core.dispatch import Dispatcher
from onward.core.errors import NotFound, TooBusy
from onward.core.outcome import Succeeded
from onward.core.task import State
from onward.core.waiters import Waiters
from tests.core.dispatcher import BAD, Observed, dispatcher
from tests.support import NOW, PROFILES, a_task, wait_until

__all__ = ["dispatcher"]


@pytest.mark.contract("S0-1")
async def test_a_caller_may_wait_for_the_result(dispatcher: Observed) -> None:
    dispatcher.add_worker()
    waiting = asyncio.create_task(dispatcher.submit_and_wait(a_task(), timeout_ms=60_000))
    await wait_until(lambda: dispatcher.inbox)
    await dispatcher.settle(dispatcher.inbox[0], Succeeded('{"answer":42}'))
    receipt, ending = await waiting
    assert ending is not None
    assert (ending.id, ending.state, ending.result) == (
        receipt.task,
        State.SUCCEEDED,
        '{"answer":42}',
    )
    assert len(dispatcher.waiters) == 0


async def test_a_caller_learns_of_failure_and_of_cancelling_too(dispatcher: Observed) -> None:
    for outcome, state in ((BAD, State.DEAD), (Succeeded("1"), State.SUCCEEDED)):
        held = await dispatcher.running()
        waiting = asyncio.create_task(dispatcher.wait(held.id, timeout_ms=60_000))
        await wait_until(lambda: len(dispatcher.waiters) == 1)
        await dispatcher.settle(held, outcome)
        ending = await waiting
        assert ending is not None
        assert ending.state is state
    receipt = await dispatcher.submit(a_task())
    waiting = asyncio.create_task(dispatcher.wait(receipt.task, timeout_ms=60_000))
    await wait_until(lambda: len(dispatcher.waiters) == 1)
    await dispatcher.cancel(receipt.task)
    ending = await waiting
    assert ending is not None
    assert ending.state is State.CANCELED


async def test_who_waits_too_short_gets_nothing_and_the_task_lives_on(dispatcher: Observed) -> None:
    receipt, ending = await dispatcher.submit_and_wait(a_task(), timeout_ms=1)
    assert ending is None
    assert (await dispatcher.task(receipt.task)).state is State.QUEUED


async def test_who_asks_after_the_end_is_answered_at_once(dispatcher: Observed) -> None:
    held = await dispatcher.running(key="k")
    await dispatcher.settle(held, Succeeded("1"))
    ending = await dispatcher.wait(held.id, timeout_ms=0)
    assert ending is not None
    assert (ending.result, ending.at) == ("1", NOW)
    with pytest.raises(NotFound):
        await dispatcher.wait("nobody", timeout_ms=0)


async def test_a_known_key_waits_for_the_first_ones_result(dispatcher: Observed) -> None:
    key = Key("s", "k", "body")
    dispatcher.add_worker()
    first = asyncio.create_task(dispatcher.submit_and_wait(a_task(), timeout_ms=60_000, key=key))
    await wait_until(lambda: dispatcher.inbox)
    second = asyncio.create_task(dispatcher.submit_and_wait(a_task(), timeout_ms=60_000, key=key))
    await wait_until(lambda: len(dispatcher.waiters) == 2)
    await dispatcher.settle(dispatcher.inbox[0], Succeeded("1"))
    endings = [ending for _, ending in await asyncio.gather(first, second)]
    assert endings[0] == endings[1] is not None


async def test_an_ending_elsewhere_is_found_by_looking_again(
    dispatcher: Observed, clock: ManualClock
) -> None:
    held = await dispatcher.running()
    waiting = asyncio.create_task(dispatcher.wait(held.id, timeout_ms=60_000))
    await wait_until(lambda: len(dispatcher.waiters) == 1)
    await Dispatcher(dispatcher.backend, PROFILES, clock).settle(held, Succeeded("1"))
    await dispatcher.reread()
    ending = await waiting
    assert ending is not None
    assert ending.result == "1"


async def test_a_caller_who_hangs_up_changes_nothing(dispatcher: Observed) -> None:
    dispatcher.add_worker()
    waiting = asyncio.create_task(dispatcher.submit_and_wait(a_task(), timeout_ms=60_000))
    await wait_until(lambda: dispatcher.inbox)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert len(dispatcher.waiters) == 0
    assert await dispatcher.settle(dispatcher.inbox[0], Succeeded("1")) is Verdict.APPLIED


async def test_too_many_callers_are_refused_before_anything_is_submitted(
    dispatcher: Observed,
) -> None:
    dispatcher.waiters = Waiters(most=0)
    with pytest.raises(TooBusy):
        await dispatcher.submit_and_wait(a_task(id="t"), timeout_ms=1)
    assert await dispatcher.backend.tasks.get(["t"]) == [None]
