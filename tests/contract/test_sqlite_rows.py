"""One bad row or item in a SQLite ledger costs nobody else anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from onward.backends import open_backend
from onward.backends.sqlite import SqliteBackend
from onward.core.task import Lane, State
from tests.contract.desk import Desk
from tests.support import NOW


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(open_backend(f"sqlite:///{tmp_path}/onward.db"))
    yield desk
    await desk.backend.close()


# Counts.


async def test_counts_that_are_zero_are_not_kept(desk: Desk) -> None:
    backend = desk.backend
    assert isinstance(backend, SqliteBackend)
    for at in range(20):
        task = await desk.finished(queue=f"customer-{at}")
        await desk.store.purge([task.id], now=NOW)
    await desk.submit(queue="alive")
    rows = backend.database.read("SELECT queue, state, count FROM tally")
    assert rows == [("alive", "queued", 1)]
    assert list(backend.tasks._books.tally()) == [(("alive", "queued", "primary", 1), 1)]
    assert await desk.store.counts() == {("alive", Lane.PRIMARY, State.QUEUED): 1}


async def test_counts_of_zero_from_before_go_when_the_ledger_is_opened(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/onward.db"
    await open_backend(url).close()
    connection = apsw.Connection(f"{tmp_path}/onward.db")
    connection.execute("INSERT INTO tally VALUES ('old', 'queued', 'primary', 1, 0)")
    connection.close()
    backend = open_backend(url)
    assert isinstance(backend, SqliteBackend)
    assert backend.database.read("SELECT * FROM tally") == []
    await backend.close()
