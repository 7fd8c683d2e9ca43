"""Who has tasks in the ledger: newest first, counted by an index."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.core.clock import ManualClock
from onward.core.contract import COUNTED, SessionTally
from onward.core.task import State
from tests.contract.driver import Driver, submission
from tests.contract.test_archive import ArchivedDriver
from tests.support import NOW, a_task


async def everybody(driver: Driver, limit: int = 100) -> list[SessionTally]:
    found: list[SessionTally] = []
    after: str | None = None
    for _ in range(100):
        page = await driver.backend.sessions.find(after=after, limit=limit)
        found += page.items
        after = page.next
        if after is None:
            return found
    raise AssertionError("the pages do not end")


def names(tallies: list[SessionTally]) -> list[str]:
    return [tally.session for tally in tallies]


async def test_a_ledger_without_sessions_has_none(driver: Driver) -> None:
    await driver.submit()
    assert await everybody(driver) == []
    assert await driver.backend.sessions.get("ann") is None


async def test_the_session_that_submitted_last_comes_first(driver: Driver) -> None:
    for session in ("ann", "bob", "cyd", "ann"):
        await driver.submit(session=session)
    assert names(await everybody(driver)) == ["ann", "cyd", "bob"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_pages_hold_each_session_once(driver: Driver, limit: int) -> None:
    for number in (5, 3, 1, 4, 2, 0, 6, 3):
        await driver.submit(session=f"s{number}")
    assert names(await everybody(driver, limit)) == ["s3", "s6", "s0", "s2", "s4", "s1", "s5"]


async def test_a_sessions_tasks_are_counted_by_state(driver: Driver) -> None:
    await driver.submit(session="ann")
    await driver.submit(session="bob")
    await driver.running(session="ann", queue="a")
    driver.now += 5_000
    await driver.finished(session="ann", queue="b")
    tally = await driver.backend.sessions.get("ann")
    assert tally is not None
    assert tally.tasks == 3
    assert tally.states == {State.QUEUED: 1, State.RUNNING: 1, State.SUCCEEDED: 1}
    assert tally.last_at == driver.now == NOW + 5_000
    assert tally in await everybody(driver)


async def test_beyond_a_thousand_only_the_newest_are_told_apart(driver: Driver) -> None:
    for part in range(0, COUNTED + 100, 100):
        tasks = [a_task(id=f"t{part + at}", session="ann") for at in range(100)]
        await driver.insert(*map(submission, tasks))
    tally = await driver.backend.sessions.get("ann")
    assert tally is not None
    assert tally.tasks == COUNTED + 100
    assert tally.states == {State.QUEUED: COUNTED}


async def test_a_session_is_gone_with_its_last_task(driver: Driver) -> None:
    first = await driver.finished(session="ann", queue="a")
    second = await driver.finished(session="ann", queue="b")
    await driver.store.purge([second.id], now=driver.now)
    assert names(await everybody(driver)) == ["ann"]
    await driver.store.purge([first.id], now=driver.now)
    assert await everybody(driver) == []


async def test_what_has_left_the_ledger_is_counted_on(tmp_path: Path) -> None:
    archived = ArchivedDriver(tmp_path, ManualClock())
    await archived.archiver.prepare()
    try:
        await archived.gone(session="old", queue="a")
        await archived.gone(session="ann", queue="b")
        both = await archived.finished(session="ann", queue="c")
        await archived.file_all()
        await archived.submit(session="ann")
        await archived.submit(session="new")
        assert names(await everybody(archived)) == ["new", "ann", "old"]
        assert names(await everybody(archived, 1)) == ["new", "ann", "old"]
        tally = await archived.backend.sessions.get("ann")
        assert tally is not None
        assert tally.tasks == 3, both
        assert tally.states == {State.QUEUED: 1, State.SUCCEEDED: 2}
    finally:
        await archived.backend.close()
