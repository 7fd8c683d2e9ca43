"""Callers who wait: each gets one ending, and one that goes away leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from onward.core.errors import TooBusy
from onward.core.task import Ending, State
from onward.core.waiters import Waiters, outcome_within
from tests.support import NOW

ENDING = Ending("t", State.SUCCEEDED, "1", None, NOW)


async def test_everybody_who_waits_for_a_task_is_told() -> None:
    waiters = Waiters()
    with waiters.expect("t") as one, waiters.expect("t") as two, waiters.expect("u") as other:
        assert len(waiters) == 3
        assert sorted(waiters.waited_for()) == ["t", "u"]
        waiters.end(ENDING)
        waiters.end(ENDING)
        assert await outcome_within(one, 1_000) == ENDING
        assert await outcome_within(two, 0) == ENDING, "an ending that is there needs no time"
        assert not other.done()
    assert (len(waiters), waiters.waited_for()) == (0, [])


async def test_a_ring_is_believed_only_by_who_waited_before_the_task_was_born() -> None:
    waiters = Waiters()
    with waiters.expect("t", unborn=True) as first, waiters.expect("t") as later:
        assert waiters.of(["t", "u"]) == ["t"]
        waiters.end_unborn(ENDING)
        assert await outcome_within(first, 0) == ENDING
        assert not later.done(), "it may be about a life before a replay"
        assert waiters.of(["t"]) == ["t"], "so somebody must look"
        waiters.end(ENDING)
        assert waiters.of(["t"]) == []


async def test_an_ending_without_waiters_is_not_announced() -> None:
    Waiters().end(ENDING)


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
async def test_a_caller_who_goes_away_leaves_nothing_behind(error: type[BaseException]) -> None:
    waiters = Waiters()
    with waiters.expect("t") as staying:
        with pytest.raises(error), waiters.expect("t"):
            raise error
        assert len(waiters) == 1
        waiters.end(ENDING)
        assert staying.result() == ENDING


async def test_there_is_a_bound_to_how_many_may_wait() -> None:
    waiters = Waiters(most=2)
    with waiters.expect("t"), waiters.expect("u"):
        with pytest.raises(TooBusy, match="2 callers wait already"), waiters.expect("v"):
            pass
        assert len(waiters) == 2
    with waiters.expect("v"):
        pass


async def test_when_the_time_is_over_there_is_no_ending() -> None:
    waiters = Waiters()
    with waiters.expect("t") as future:
        assert await outcome_within(future, 1) is None
        waiters.end(ENDING)
        assert await outcome_within(future, 1_000) is None, "let go once"


async def test_an_ending_in_time_stops_the_clock() -> None:
    waiters = Waiters()
    with waiters.expect("t") as future:
        asyncio.get_running_loop().call_soon(waiters.end, ENDING)
        assert await outcome_within(future, 60_000) == ENDING
