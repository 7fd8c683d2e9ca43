"""Readings of many rows: shared, shown again for a while, and never stale to who changed them."""

from __future__ import annotations

import asyncio

import pytest

from onward.native import slow_reads
from onward.native.slow_reads import MANY, SlowReads
from tests.doors.test_dead_letters import PATH, a_worker, dead, died
from tests.running_app import App


class Reads:
    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.count = 0
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self) -> tuple[int, int]:
        self.count += 1
        now = self.count
        await self.go.wait()
        return now, self.rows


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_reads, "TIMES", 1e12)  # what is kept is kept for as long as we look


async def test_a_reading_of_many_rows_is_shown_again_and_one_of_few_is_not() -> None:
    many, few = Reads(MANY), Reads(MANY - 1)
    reads: SlowReads[int] = SlowReads()
    assert [await reads.get("many", many) for _ in range(3)] == [1, 1, 1]
    assert [await reads.get("few", few) for _ in range(3)] == [1, 2, 3]
    assert await reads.get("other", many) == 2, "by what was asked for"
    reads.forget()
    assert await reads.get("many", many) == 3


async def test_those_who_ask_meanwhile_share_one_reading_and_may_leave() -> None:
    reads: SlowReads[int] = SlowReads()
    read = Reads(MANY)
    read.go.clear()
    asking = [asyncio.ensure_future(reads.get("x", read)) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()
    await asyncio.sleep(0)
    read.go.set()
    assert await asyncio.gather(*asking[1:]) == [1, 1]
    assert (read.count, asking[0].cancelled()) == (1, True)


async def test_what_was_being_read_when_it_changed_is_not_kept() -> None:
    reads: SlowReads[int] = SlowReads()
    read = Reads(MANY)
    read.go.clear()
    asking = asyncio.ensure_future(reads.get("x", read))
    await asyncio.sleep(0)
    reads.forget()
    read.go.set()
    assert await asking == 1
    assert await reads.get("x", read) == 2


@pytest.mark.contract("N-5")
async def test_groups_of_many_dead_letters_are_not_read_anew_for_each_death(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_reads, "MANY", 2)
    worker = await a_worker(app)
    await died(app, worker)
    assert [group["count"] for group in await dead(app)] == [1]
    ids = [await died(app, worker)]
    assert [group["count"] for group in await dead(app)] == [2], "few are read anew"
    await died(app, worker)
    assert [group["count"] for group in await dead(app)] == [2]
    await worker.close()
    await app.post(f"{PATH}/replay", {"ids": ids})
    assert [group["count"] for group in await dead(app)] == [2], "who replays one sees it go"
    await app.post(f"{PATH}/abandon", {"filter": {}})
    assert await dead(app) == []
