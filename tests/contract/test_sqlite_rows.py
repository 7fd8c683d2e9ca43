"""One bad row or item in a SQLite ledger costs the others nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from onward.core.contract import Key, LeaseRenewal, Query
from onward.core.errors import LedgerUnavailable
from onward.core.outcome import Succeeded
from onward.core.task import Lane, Letter, State
from onward.ledgers import open_backend
from onward.ledgers.sqlite import SqliteBackend
from tests.contract.driver import Driver, submission
from tests.support import LEASE_MS, NOW, a_task, an_ask, ids

SURROGATE = '"\ud800"'
REFUSALS = (apsw.ConstraintError, OverflowError, TypeError, UnicodeEncodeError)


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[Driver]:
    driver = Driver(open_backend(f"sqlite:///{tmp_path}/onward.db"))
    yield driver
    await driver.backend.close()


async def spoil(driver: Driver, change: str) -> None:
    """Something else has written to the file; a newer version, say."""
    backend = driver.backend
    assert isinstance(backend, SqliteBackend)
    execute(backend.database.path, f"UPDATE task SET {change}")  # noqa: S608


def execute(path: str, statement: str) -> list[Any]:
    connection = apsw.Connection(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


# Rows that this version cannot read.


@pytest.mark.parametrize(
    "change",
    [
        "state = 'dreaming' WHERE id = 'odd'",
        "lane = 'fast' WHERE id = 'odd'",
        "priority = 9 WHERE id = 'odd'",
    ],
)
async def test_a_row_that_cannot_be_read_is_left_out(
    driver: Driver, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for id in ("first", "odd", "last"):
        await driver.submit(id=id, due_at=NOW, expires_at=NOW)
    await spoil(driver, change)
    for _ in range(2):
        assert ids(await driver.all()) == ["first", "last"]
        found = await driver.store.get(["last", "odd", "first"])
        assert [task and task.id for task in found] == ["last", None, "first"]
    assert ids(await driver.store.due(now=NOW, limit=9)) == ["first", "last"]
    assert capsys.readouterr().out.count("cannot be read and is left out") == 1


async def test_rows_that_cannot_be_read_do_not_fill_every_sweep(driver: Driver) -> None:
    for at in range(5):
        await driver.submit(id=f"odd{at}", expires_at=NOW)
    await spoil(driver, "state = 'dreaming'")
    await driver.submit(id="good", expires_at=NOW + 1)
    assert await driver.store.due(now=NOW + 1, limit=5) == []
    assert ids(await driver.store.due(now=NOW + 1, limit=5)) == ["good"]
    assert ids(await driver.store.due(now=NOW + 120_000, limit=9)) == ["good"], (
        "it is no task again"
    )


async def test_a_page_may_begin_or_end_with_a_row_that_cannot_be_read(driver: Driver) -> None:
    for at in range(6):
        await driver.submit(id=f"t{at}")
    await spoil(driver, "state = 'dreaming' WHERE id IN ('t0', 't2', 't3', 't5')")
    found: list[str] = []
    after: str | None = None
    while True:
        page = await driver.store.find(Query(after=after, limit=2))
        found += ids(page.items)
        after = page.next
        if after is None:
            break
    assert found == ["t4", "t1"]


async def test_a_state_of_a_newer_version_is_not_counted(driver: Driver) -> None:
    backend = driver.backend
    assert isinstance(backend, SqliteBackend)
    await driver.submit(id="odd", session="s")
    await driver.submit(session="s")
    await spoil(driver, "state = 'dreaming' WHERE id = 'odd'")
    backend.counters.tally["q", "dreaming", "", 0] = 1
    assert set(await driver.store.counts()) == {("q", Lane.PRIMARY, State.QUEUED)}
    tally = await backend.sessions.get("s")
    assert tally is not None
    assert tally.states == {State.QUEUED: 1}


async def test_a_cursor_that_cannot_be_read_keeps_everything(driver: Driver) -> None:
    backend = driver.backend
    task = await driver.finished()
    await backend.documents.put("cursor", "reader", "no JSON", now=NOW)
    assert await driver.store.purge([task.id], now=NOW) == 0
    await backend.documents.delete("cursor", "reader")
    assert await driver.store.purge([task.id], now=NOW) == 1


# Items that the ledger cannot take.

Send = Callable[[Driver, Sequence[Any]], Awaitable[Any]]


async def insert(driver: Driver, values: Sequence[Any]) -> Any:
    tasks = [
        a_task(expires_at=NOW + 0.5) if value is None else a_task(payload=value) for value in values
    ]
    ask = an_ask("waiting", limit=1)
    return await driver.insert(
        *[submission(task, key=Key("s", f"k{at}", "b")) for at, task in enumerate(tasks)],
        asks=(ask,),
    )


def until(value: Any) -> Any:
    return NOW + LEASE_MS + (0.5 if value is None else 0)


async def extend(driver: Driver, values: Sequence[Any]) -> Any:
    holds = [
        LeaseRenewal(f"r{at}", 1, until(value), value, (("task.chunk", value),))
        for at, value in enumerate(values)
    ]
    return await driver.store.extend(holds, now=NOW)


async def apply(driver: Driver, values: Sequence[Any]) -> Any:
    moves = [
        driver.decide(
            await driver.task(f"r{at}"), Succeeded(value), a_task(id=f"c{at}-{len(values)}")
        )
        for at, value in enumerate(values)
    ]
    moves = [
        msgspec.structs.replace(move, due_at=0.5) if value is None else move
        for move, value in zip(moves, values, strict=True)
    ]
    return await driver.apply(*moves, asks=(an_ask("waiting", limit=1),))


async def post(driver: Driver, values: Sequence[Any]) -> Any:
    return await driver.store.post(
        [Letter(to="parked", name="n", body=value) for value in values], now=NOW
    )


@pytest.mark.parametrize("send", [insert, extend, apply, post])
@pytest.mark.parametrize(
    "bad", [SURROGATE, 1 << 70, ["list"], None], ids=["surrogate", "large", "list", "half"]
)
async def test_a_batch_with_an_item_that_cannot_be_kept_leaves_nothing_behind(
    driver: Driver, send: Send, bad: Any
) -> None:
    for at in range(3):
        await driver.running(id=f"r{at}")
    await driver.submit(id="parked", waiting_for="event")
    await driver.submit(id="head", queue="waiting")

    async def books() -> Any:
        return await driver.all(), await driver.log(), await driver.store.counts()

    before = await books()
    with pytest.raises(REFUSALS):  # and not as unavailable: so the others are tried alone
        await send(driver, ["1", bad, "3"])
    assert await books() == before
    assert await driver.store.counts() == await driver.recount()

    await send(driver, ["1"])  # its neighbour alone, as if nothing had been
    assert await driver.store.counts() == await driver.recount()
    log = await driver.log()
    assert len({(event.task, event.n) for event in log}) == len(log) > len(before[1])


# Counts.


async def test_counts_that_are_zero_are_not_kept(driver: Driver) -> None:
    backend = driver.backend
    assert isinstance(backend, SqliteBackend)
    for at in range(20):
        task = await driver.finished(queue=f"customer-{at}")
        await driver.store.purge([task.id], now=NOW)
    await driver.submit(queue="alive")
    rows = execute(backend.database.path, "SELECT queue, state, count FROM tally")
    assert rows == [("alive", "queued", 1)]
    assert backend.counters.tally == {("alive", "queued", "primary", 1): 1}
    assert await driver.store.counts() == {("alive", Lane.PRIMARY, State.QUEUED): 1}


async def test_counts_of_zero_from_before_go_when_the_ledger_is_opened(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/onward.db"
    await open_backend(url).close()
    path = f"{tmp_path}/onward.db"
    execute(path, "INSERT INTO tally VALUES ('old', 'queued', 'primary', 1, 0)")
    await open_backend(url).close()
    assert execute(path, "SELECT * FROM tally") == []


async def test_a_file_without_a_newer_field_gets_its_column(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/onward.db", f"{tmp_path}/onward.db"
    driver = Driver(open_backend(url))
    await driver.submit(id="old")
    await driver.backend.close()
    execute(path, "ALTER TABLE task DROP COLUMN overdue")
    execute(path, "ALTER TABLE task DROP COLUMN progress")
    driver = Driver(open_backend(url))
    assert (await driver.task("old")).overdue is False
    assert (await driver.submit(id="new", progress="1")).progress == "1"
    await driver.backend.close()


# A file that is damaged.


async def test_a_damaged_file_is_unavailable_and_not_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "onward.db"
    driver = Driver(open_backend(f"sqlite:///{path}"))
    await driver.submit_some(200, payload=f'"{"x" * 2_000}"')
    await driver.backend.close()
    damage(path)
    driver = Driver(open_backend(f"sqlite:///{path}"))
    with pytest.raises(LedgerUnavailable, match="damaged") as refused:
        await driver.all()
    assert "onward doctor" in (refused.value.hint or "")
    with pytest.raises(LedgerUnavailable, match="damaged"):
        await driver.store.get([f"t{at}" for at in range(300)])
    await driver.backend.close()


def damage(path: Path) -> None:
    """Every page but the first few."""
    raw = bytearray(path.read_bytes())
    raw[40 * 4096 :] = b"\xa5" * (len(raw) - 40 * 4096)
    path.write_bytes(raw)
