"""Group commit: who rides with whom, and who hears what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.core.coalesce import Coalescer
from onward.core.errors import LedgerUnavailable, QueueFull


class Gate:
    """A flush that keeps its batches, and waits at a gate while it is shut."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None

    async def flush(self, batch: Sequence[int]) -> Sequence[str]:
        self.batches.append(list(batch))
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return [f"reply {item}" for item in batch]


async def ride(coalescer: Coalescer[int, str], *items: int) -> list[asyncio.Task[str]]:
    tasks = [asyncio.create_task(coalescer.one(item)) for item in items]
    await asyncio.wait(tasks, timeout=0)
    return tasks


async def test_a_caller_alone_waits_for_nobody() -> None:
    gate = Gate()
    assert await Coalescer(gate.flush).one(7) == "reply 7"
    assert gate.batches == [[7]]


async def test_callers_of_one_turn_share_a_flush() -> None:
    gate = Gate()
    coalescer = Coalescer(gate.flush)
    replies = await asyncio.gather(*(coalescer.one(n) for n in range(5)))
    assert replies == [f"reply {n}" for n in range(5)]
    assert gate.batches == [[0, 1, 2, 3, 4]]


async def test_whoever_comes_during_a_flush_rides_the_next() -> None:
    gate = Gate()
    gate.open.clear()
    coalescer = Coalescer(gate.flush)
    first = asyncio.create_task(coalescer.one(1))
    while not gate.batches:
        await asyncio.wait([first], timeout=0)
    rest = await ride(coalescer, 2, 3)
    gate.open.set()
    assert await asyncio.gather(first, *rest) == ["reply 1", "reply 2", "reply 3"]
    assert gate.batches == [[1], [2, 3]]


async def test_an_exception_reaches_every_caller_of_its_flush_and_nobody_else() -> None:
    gate = Gate()
    gate.error = LedgerUnavailable("the disk is full", hint="free the disk")
    coalescer = Coalescer(gate.flush)
    errors = await asyncio.gather(*(coalescer.one(n) for n in range(3)), return_exceptions=True)
    assert [str(error) for error in errors] == ["the disk is full"] * 3
    assert [error.hint for error in errors if isinstance(error, LedgerUnavailable)] == [
        "free the disk"
    ] * 3
    assert len({id(error) for error in errors}) == 3, "each caller adds its own traceback"
    gate.error = None
    assert await coalescer.one(9) == "reply 9"


async def test_an_exception_that_cannot_be_made_twice_is_raised_as_it_is() -> None:
    gate = Gate()
    gate.error = QueueFull("q", 3)
    coalescer = Coalescer(gate.flush)
    errors = await asyncio.gather(coalescer.one(1), coalescer.one(2), return_exceptions=True)
    assert [type(error) for error in errors] == [QueueFull, QueueFull]


async def test_a_caller_who_goes_away_harms_nobody() -> None:
    gate = Gate()
    gate.open.clear()
    coalescer = Coalescer(gate.flush)
    staying, leaving = await ride(coalescer, 1, 2)
    waiting, left = await ride(coalescer, 3, 4)
    while not gate.batches:
        await asyncio.wait([staying], timeout=0)
    leaving.cancel()
    left.cancel()
    gate.open.set()
    assert (await staying, await waiting) == ("reply 1", "reply 3")
    assert leaving.cancelled()
    assert left.cancelled()
    assert sorted(item for batch in gate.batches for item in batch) == [1, 2, 3, 4]


async def test_a_list_travels_whole() -> None:
    gate = Gate()
    coalescer = Coalescer(gate.flush, most=4)
    futures = [coalescer.many(part) for part in ([1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11], [])]
    replies = await asyncio.gather(*futures)
    assert [len(part) for part in replies] == [3, 2, 6, 0]
    assert [part for part in gate.batches if part] == [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11]]


@given(
    parts=st.lists(st.lists(st.integers(), max_size=7), max_size=20),
    most=st.integers(1, 10),
)
def test_order_is_kept_and_batches_stay_within_bounds(parts: list[list[int]], most: int) -> None:
    async def run() -> None:
        gate = Gate()
        coalescer = Coalescer(gate.flush, most=most)
        replies = await asyncio.gather(*(coalescer.many(part) for part in parts))
        assert replies == [[f"reply {item}" for item in part] for part in parts]
        assert [n for batch in gate.batches for n in batch] == [n for part in parts for n in part]
        longest = max((len(part) for part in parts), default=0)
        assert all(len(batch) <= max(most, longest) for batch in gate.batches)

    asyncio.run(run())


async def test_a_flush_that_is_cancelled_tells_its_callers_and_the_next_one_works() -> None:
    gate = Gate()
    gate.open.clear()
    coalescer = Coalescer(gate.flush)
    (rider,) = await ride(coalescer, 1)
    while not gate.batches:
        await asyncio.wait([rider], timeout=0)
    assert coalescer._drain is not None
    coalescer._drain.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rider
    gate.open.set()
    assert await coalescer.one(2) == "reply 2"
