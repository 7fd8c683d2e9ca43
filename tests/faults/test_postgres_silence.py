"""A Postgres that gives no answer: its host is frozen, or the network drops the packets."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from onward.core.contract import Fate
from onward.core.errors import LedgerUnavailable
from onward.ledgers.postgres import PostgresBackend
from onward.ledgers.postgres.writer import TransactionWriter
from tests.contract.driver import Driver, submission
from tests.servers import PostgresServer
from tests.support import a_task, wait_until

pytestmark = pytest.mark.slow

DATABASE = "onward.ledgers.postgres.database"
WRITER = "onward.ledgers.postgres.writer"


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer("postgres18")
    yield server
    server.close()


@pytest.fixture
async def driver(postgres: PostgresServer) -> AsyncIterator[Driver]:
    driver = Driver(PostgresBackend(postgres.fresh_url()))
    await driver.submit(id="before")
    yield driver
    await driver.backend.close()


async def test_a_backend_that_is_silent_is_left_for_another(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await impatient(driver, monkeypatch)
    with stopped(backend_of(driver)):
        with pytest.raises(LedgerUnavailable):
            await driver.submit(id="during")
        assert (await driver.submit(id="beside")).id == "beside"
    assert (await driver.submit(id="after")).id == "after"
    assert {"beside", "after"} <= {task.id for task in await driver.all()}


async def test_a_host_that_is_silent_fails_all_that_waits_for_it(
    driver: Driver, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await impatient(driver, monkeypatch)
    monkeypatch.setattr(f"{DATABASE}.CONNECT_S", 0.5)
    with stopped(*all_of(postgres)):
        submits = [driver.submit() for _ in range(40)]
        results = await asyncio.gather(*submits, driver.all(), return_exceptions=True)
        assert {type(one) for one in results} == {LedgerUnavailable}
    monkeypatch.undo()
    await driver.submit(id="after")
    assert "after" in {task.id for task in await driver.all()}


async def test_a_commit_that_is_not_answered_is_asked_for(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await impatient(driver, monkeypatch)
    monkeypatch.setattr(f"{DATABASE}.RESOLVE_S", 60.0)
    pid = backend_of(driver)
    commit = TransactionWriter._commit
    database: Any = driver.backend.database  # type: ignore[attr-defined]

    async def unanswered(
        self: TransactionWriter, connection: asyncpg.Connection, xid: str | None
    ) -> None:
        os.kill(pid, signal.SIGSTOP)
        await commit(self, connection, xid)

    async def fate(xid: str) -> Any:
        os.kill(pid, signal.SIGCONT)
        return await database._fate(xid)

    monkeypatch.setattr(TransactionWriter, "_commit", unanswered)
    monkeypatch.setattr(database._intake, "_fate", fate)
    try:
        inserted = await driver.insert(submission(a_task(id="t")))
        told = inserted.receipts[0].fate is Fate.FRESH
    except LedgerUnavailable:
        told = False
    assert told == ("t" in {task.id for task in await driver.all()})


async def test_a_writer_is_closed_though_postgres_is_silent(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{WRITER}.CLOSE_S", 0.2)
    with stopped(backend_of(driver)):
        waiting = [asyncio.create_task(driver.submit()) for _ in range(20)]
        await wait_until(lambda: writer_of(driver)._running is not None)
        async with asyncio.timeout(30):  # a statement has more than that for its answer
            await driver.backend.close()
            results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(one) for one in results} == {LedgerUnavailable}


async def impatient(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connections that are open now, and no later ones, wait a second for each answer."""
    with monkeypatch.context() as patch:
        patch.setattr(f"{DATABASE}.ANSWER_S", 1.0)
        writer_of(driver)._connection.terminate()
        await driver.backend.database._readers.expire_connections()  # type: ignore[attr-defined]
        await wait_until(lambda: _works(driver))


async def _works(driver: Driver) -> bool:
    try:
        await driver.submit()
        await driver.all()
    except LedgerUnavailable:
        return False
    return True


def writer_of(driver: Driver) -> Any:
    assert isinstance(driver.backend, PostgresBackend)
    return driver.backend.database._intake


def backend_of(driver: Driver) -> int:
    pid: int = writer_of(driver)._connection.get_server_pid()
    return pid


def all_of(postgres: PostgresServer) -> list[int]:
    pid = postgres.process.pid
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    frozen: list[int] = []
    try:
        for pid in pids:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGSTOP)
                frozen.append(pid)
        yield
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
