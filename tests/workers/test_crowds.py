"""Thousands of workers that come or go at once: what it costs, counted and not timed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from onward.core.clock import ManualClock
from onward.core.contract import Backend
from onward.workers.roster import Roster
from onward.workers.socket.sessions import DEPARTURES
from onward.workers.socket.turnstile import Turnstile
from tests.running_app import App, running_app
from tests.support import wait_until


class Queues(tuple[str, ...]):
    """Counts how often the queues of any member are looked through."""

    looks = 0

    def __iter__(self) -> Iterator[str]:
        Queues.looks += 1
        return super().__iter__()

    def __contains__(self, queue: object) -> bool:
        Queues.looks += 1
        return super().__contains__(queue)


async def cost(backend: Backend, size: int) -> tuple[int, int]:
    """Looks at members, and calls of those who watch, for a crowd that comes and goes at once."""
    roster = Roster(backend, ManualClock())
    plain = [roster.member(f"w{n}", "socket", ["g"], 1) for n in range(size)]
    members = [msgspec.structs.replace(member, queues=Queues(["g"])) for member in plain]
    calls = 0

    def watch() -> None:
        nonlocal calls
        calls += 1
        roster.served_by_others("g")

    roster.watch(watch)
    Queues.looks = 0
    await asyncio.gather(*[roster.join(member) for member in members])
    assert roster.served_by_others("g")
    await asyncio.gather(*[roster.leave(member) for member in members])
    await asyncio.sleep(0)
    assert not roster.served_by_others("g")
    assert not await roster.serves("g")
    return Queues.looks, calls


async def test_a_crowd_costs_as_much_as_its_members_one_by_one(backend: Backend) -> None:
    few, many = await cost(backend, 50), await cost(backend, 500)
    assert many[0] <= 10 * few[0] * 1.2, "looks at members grow faster than their number"
    assert many[1] <= few[1] + 2, "those who watch are called once a turn, not once a member"


@pytest.mark.parametrize("changes", ["drain", "rejoin"])
async def test_who_serves_a_queue_is_counted_right(backend: Backend, changes: str) -> None:
    roster = Roster(backend, ManualClock())
    stand_in = roster.member("local", "local", ["g"], 1, stand_in=True)
    worker = roster.member("w", "socket", ["g", "h"], 1)

    async def obey(_: bool) -> None:
        pass

    await roster.join(stand_in)
    await roster.join(worker, obey)
    for _ in range(3):
        assert roster.served_by_others("g")
        if changes == "drain":
            await roster.drain(worker)
            assert not roster.served_by_others("g")
            await roster.refresh()
            assert await roster.serves("g"), "by the one who stands in"
            assert not await roster.serves("h")
            await roster.drain(worker, draining=False)
        else:
            newer = roster.member("w", "socket", ["g"], 1)
            await roster.join(newer, obey)
            await roster.leave(worker)  # the older connection notices late
            assert roster.served_by_others("g")
            assert not await roster.serves("h")
            worker = roster.member("w", "socket", ["g", "h"], 1)
            await roster.join(worker, obey)
        await roster.refresh()
    await roster.leave(worker)
    assert not roster.served_by_others("g")
    assert roster._serving == {"g": 1}


async def test_so_many_pass_in_one_turn(backend: Backend) -> None:
    turnstile, passed = Turnstile(10), 0

    async def one() -> None:
        nonlocal passed
        await turnstile.enter()
        passed += 1

    tasks = [asyncio.ensure_future(one()) for _ in range(95)]
    tasks[50].cancel()
    before = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        assert passed - before <= 10
        before = passed
    assert passed == 94
    await asyncio.wait_for(turnstile.enter(), 30)


async def test_sockets_that_are_lost_at_once_are_cleared_away_in_turns() -> None:
    async with running_app() as app:
        workers = await joined(app, 4 * DEPARTURES)
        roster = app.onward.roster
        closing = [asyncio.ensure_future(worker.close()) for worker in workers]
        before, left = len(roster.members()), 0
        while (now := len(roster.members())) or not all(task.done() for task in closing):
            assert before - now <= DEPARTURES
            left += before - now
            before = now
            await asyncio.sleep(0)
        assert left == len(workers)


async def joined(app: App, count: int) -> list[Any]:
    workers = [await app.worker(services=["report"], group=None) for _ in range(count)]
    await wait_until(lambda: len(app.onward.roster.members()) == count)
    return workers
