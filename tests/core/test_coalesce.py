"""Group commit: who rides with whom, and who hears what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.core.coalesce import Coalescer
from onward.core.errors import LedgerUnavailable, QueueFull
from tests.support import wait_until


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


async def _wait(reply: asyncio.Future[str]) -> str:
    return await reply


async def ride(coalescer: Coalescer[int, str], *items: int) -> list[asyncio.Task[str]]:
    tasks = [asyncio.create_task(_wait(coalescer.one(item))) for item in items]
    await asyncio.wait(tasks, timeout=0)
    return tasks


async def test_a_caller_alone_does_not_wait() -> None:
    gate = Gate()
    assert await Coalescer(gate.flush).one(7) == "reply 7"
    assert gate.batches == [[7]]


async def test_callers_of_one_turn_share_a_flush() -> None:
    gate = Gate()
    coalescer = Coalescer(gate.flush)
    replies = await asyncio.gather(*(coalescer.one(n) for n in range(5)))
    assert replies == [f"reply {n}" for n in range(5)]
    assert gate.batches == [[0, 1, 2, 3, 4]]


async def test_a_caller_during_a_flush_joins_the_next() -> None:
    gate = Gate()
    gate.open.clear()
    coalescer = Coalescer(gate.flush)
    first = asyncio.create_task(_wait(coalescer.one(1)))
    await wait_until(lambda: gate.batches)
    rest = await ride(coalescer, 2, 3)
    gate.open.set()
    assert await asyncio.gather(first, *rest) == ["reply 1", "reply 2", "reply 3"]
    assert gate.batches == [[1], [2, 3]]


async def test_an_exception_reaches_the_callers_of_its_flush_alone() -> None:
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


async def test_a_caller_who_goes_away_harms_no_other() -> None:
    gate = Gate()
    gate.open.clear()
    coalescer = Coalescer(gate.flush)
    staying, leaving = await ride(coalescer, 1, 2)
    waiting, left = await ride(coalescer, 3, 4)
    await wait_until(lambda: gate.batches)
    leaving.cancel()
    left.cancel()
    gate.open.set()
    assert (await staying, await waiting) == ("reply 1", "reply 3")
    assert leaving.cancelled()
    assert left.cancelled()
    assert sorted(item for batch in gate.batches for item in batch) == [1, 2, 3, 4]


async def test_a_long_list_is_cut_and_answered_whole() -> None:
    gate = Gate()
    coalescer = Coalescer(gate.flush, most=4)
    parts: list[list[int]] = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11], []]
    replies = await asyncio.gather(*(coalescer.many(part) for part in parts))
    assert [len(part) for part in replies] == [3, 2, 6, 0]
    assert gate.batches == [[1, 2, 3], [4, 5], [6, 7, 8, 9], [10, 11]]


async def test_a_call_is_bounded_in_bytes_and_what_is_larger_goes_alone() -> None:
    gate = Gate()
    coalescer = Coalescer(gate.flush, size=lambda megabytes: megabytes << 20)
    await coalescer.many([1, 2, 1, 3, 9, 1, 2])
    assert gate.batches == [[1, 2, 1], [3], [9], [1, 2]]


class Picky(Gate):
    """Refuses a whole batch for the odd numbers in it."""

    async def flush(self, batch: Sequence[int]) -> Sequence[str]:
        self.batches.append(list(batch))
        odd = [item for item in batch if item % 2]
        if odd:
            raise ValueError(f"odd: {odd}")
        return [f"reply {item}" for item in batch]


@given(items=st.lists(st.integers(0, 20), max_size=40))
def test_a_bad_item_costs_its_neighbours_nothing(items: list[int]) -> None:
    async def run() -> None:
        coalescer = Coalescer(Picky().flush)
        replies = await asyncio.gather(*map(coalescer.one, items), return_exceptions=True)
        for item, reply in zip(items, replies, strict=True):
            assert str(reply) == (f"odd: [{item}]" if item % 2 else f"reply {item}")

    asyncio.run(run())


async def test_a_ledger_that_goes_away_half_way_is_told_to_those_who_were_not_done() -> None:
    class Leaving(Picky):
        async def flush(self, batch: Sequence[int]) -> Sequence[str]:
            if len(self.batches) == 2:
                raise LedgerUnavailable("gone")
            return await super().flush(batch)

    coalescer = Coalescer(Leaving().flush)
    replies = await asyncio.gather(*map(coalescer.one, [0, 2, 4, 5]), return_exceptions=True)
    assert [str(reply) for reply in replies] == ["reply 0", "reply 2", "gone", "gone"]


async def test_what_must_not_be_done_twice_is_not_tried_in_halves() -> None:
    picky = Picky()
    coalescer = Coalescer(picky.flush, whole=True)
    replies = await asyncio.gather(*map(coalescer.one, [0, 1]), return_exceptions=True)
    assert [str(reply) for reply in replies] == ["odd: [1]"] * 2
    assert picky.batches == [[0, 1]]


async def test_a_reply_that_comes_later_is_waited_for_by_its_own_caller_alone() -> None:
    later: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def flush(batch: Sequence[int]) -> Sequence[str | asyncio.Future[str]]:
        return [later if item == 1 else f"reply {item}" for item in batch]

    coalescer: Coalescer[int, str] = Coalescer(flush)
    first, second = coalescer.one(0), coalescer.one(1)
    assert await first == "reply 0"
    assert await coalescer.one(2) == "reply 2", "the next flush does not wait either"
    later.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await second


@given(parts=st.lists(st.lists(st.integers(), max_size=7), max_size=20), most=st.integers(1, 10))
def test_order_is_kept_and_batches_stay_within_bounds(parts: list[list[int]], most: int) -> None:
    async def run() -> None:
        gate = Gate()
        coalescer = Coalescer(gate.flush, most=most)
        replies = await asyncio.gather(*(coalescer.many(part) for part in parts))
        assert replies == [[f"reply {item}" for item in part] for part in parts]
        assert [n for batch in gate.batches for n in batch] == [n for part in parts for n in part]
        assert all(len(batch) <= most for batch in gate.batches)

    asyncio.run(run())


async def test_a_flush_that_is_cancelled_tells_its_callers_and_the_next_one_works() -> None:
    gate = Gate()
    gate.open.clear()
    coalescer = Coalescer(gate.flush)
    (rider,) = await ride(coalescer, 1)
    await wait_until(lambda: gate.batches)
    assert coalescer._drain is not None
    coalescer._drain.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rider
    gate.open.set()
    assert await coalescer.one(2) == "reply 2"
