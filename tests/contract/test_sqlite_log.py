"""The write-ahead log of a SQLite ledger: short under any load, and after any failure."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from onward.core.errors import LedgerUnavailable
from onward.core.outcome import Succeeded
from onward.ledgers import open_backend
from onward.ledgers.sql.dialect import Step
from onward.ledgers.sqlite import SqliteBackend, files, wal
from onward.ledgers.sqlite.wal import WriteAheadLog
from tests.contract.driver import Driver, submission
from tests.support import a_task, wait_until

MOST_BYTES = 64 << 20
COUNTING = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
ENDLESS = Step("find", (1,), where=f"tid = ({COUNTING})")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "onward.db"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> int:
    """A bound that a test reaches soon; returns what the log may hold, one turn included."""
    monkeypatch.setattr(wal, "COPY_BYTES", 200 << 10)
    monkeypatch.setattr(wal, "STEP_BYTES", 100 << 10)
    monkeypatch.setattr(wal, "MOST_BYTES", 600 << 10)
    return 6 * wal.MOST_BYTES


def opened(file: Path) -> Driver:
    return Driver(open_backend(f"sqlite:///{file}"))


def file_bytes(file: Path) -> int:
    return file.stat().st_size


def log_bytes(file: Path) -> int:
    return file_bytes(Path(f"{file}-wal"))


async def fill(driver: Driver, file: Path, batches: int, payload: str) -> int:
    """Insert as fast as it goes; returns how long the log ever was."""
    longest = 0

    async def insert(count: int) -> None:
        nonlocal longest
        for _ in range(count):
            await driver.insert(*[submission(a_task(payload=payload)) for _ in range(32)])
            longest = max(longest, log_bytes(file))

    await asyncio.gather(*[insert(batches // 4) for _ in range(4)])
    return longest


async def test_the_log_stays_short_however_fast_tasks_come(file: Path) -> None:
    driver = opened(file)

    async def maintain() -> None:
        while True:
            await driver.backend.maintain()
            await asyncio.sleep(1)

    housekeeping = asyncio.create_task(maintain())
    longest = await fill(driver, file, 240, f'"{"x" * 16_000}"')
    housekeeping.cancel()
    assert longest <= MOST_BYTES
    assert file_bytes(file) > MOST_BYTES, "enough was written to matter"
    assert sum((await driver.store.counts()).values()) == 240 * 32
    await driver.backend.close()


@pytest.mark.usefixtures("short")
async def test_a_failed_checkpoint_is_followed_by_one_that_works(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened(file)
    real: Callable[..., bool] = WriteAheadLog._checkpoint
    calls: list[str] = []

    def full_at_first(self: WriteAheadLog, mode: str, busy_ms: int) -> bool:
        calls.append(mode)
        if len(calls) == 1:
            raise apsw.FullError("database or disk is full")
        return real(self, mode, busy_ms)

    monkeypatch.setattr(WriteAheadLog, "_checkpoint", full_at_first)
    await fill(driver, file, 4, f'"{"x" * 4_000}"')
    await wait_until(lambda: calls)
    before = file_bytes(file)
    await driver.backend.maintain()
    assert len(calls) > 1
    await wait_until(lambda: file_bytes(file) > before)
    await driver.backend.close()


async def test_a_long_read_of_ours_does_not_let_the_log_grow(file: Path, short: int) -> None:
    driver = opened(file)
    backend = driver.backend
    assert isinstance(backend, SqliteBackend)
    await driver.submit()
    reading = asyncio.create_task(backend.database.read(ENDLESS, far=True))
    longest = await fill(driver, file, 64, f'"{"x" * 4_000}"')
    while not reading.done():
        longest = max(longest, await fill(driver, file, 4, f'"{"x" * 4_000}"'))
    with pytest.raises(LedgerUnavailable, match="takes too long"):
        await reading
    assert longest <= short
    assert len(await backend.database.read(Step("log_end"), far=True)) == 1, "others read as before"
    await backend.close()


async def test_while_another_process_reads_the_log_grows_and_shrinks_afterwards(
    file: Path, short: int
) -> None:
    driver = opened(file)
    await driver.submit()
    other = apsw.Connection(str(file))  # as another program's: not ours to interrupt
    other.execute("BEGIN")
    other.execute("SELECT * FROM task").fetchall()
    grown = await fill(driver, file, 40, f'"{"x" * 4_000}"')
    assert grown > short
    other.close()
    await fill(driver, file, 400, f'"{"x" * 4_000}"')
    assert log_bytes(file) <= short
    await driver.backend.close()


async def test_the_length_of_the_log_is_measured(file: Path) -> None:
    driver = opened(file)
    await driver.submit()
    ((name, _, value),) = driver.backend.gauges()
    assert (name, value) == ("onward_ledger_log_bytes", log_bytes(file))
    await driver.backend.close()


# Durability.


async def test_a_system_without_fdatasync_still_writes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fdatasync")
    driver = opened(file)
    async with asyncio.timeout(30):
        await driver.submit()
    await driver.backend.close()


async def test_a_mac_flushes_the_drive_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []

    def fcntl(_: int, cmd: int) -> int:
        flushed.append(cmd)
        return 0

    monkeypatch.setattr(files, "MAC_FLUSH", 51)
    monkeypatch.setattr("fcntl.fcntl", fcntl)
    driver = opened(file)
    await driver.submit()
    assert set(flushed) == {51}
    await driver.backend.close()


async def test_a_mac_flushes_as_far_as_its_file_system_can(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fcntl(_: int, cmd: int) -> int:
        raise OSError(errno.ENOTSUP, "not here")

    monkeypatch.setattr(files, "MAC_FLUSH", 51)
    monkeypatch.setattr("fcntl.fcntl", fcntl)
    driver = opened(file)
    await driver.submit()
    await driver.backend.close()


async def test_a_turn_that_cannot_be_committed_fails_whatever_the_reason(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened(file)
    backend = driver.backend
    assert isinstance(backend, SqliteBackend)
    await driver.submit(id="before")

    def surprise() -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(backend.database, "before_commit", surprise)
        with pytest.raises(LedgerUnavailable):
            async with asyncio.timeout(30):
                await driver.submit(id="lost")
    await driver.submit(id="after")
    assert [task.id for task in await driver.all()] == ["before", "after"]
    assert await driver.store.counts() == await driver.recount()
    await backend.close()


@pytest.mark.parametrize("read", ["get", "find", "history", "log"])
async def test_what_is_read_is_on_disk(
    file: Path, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not take back an end that a reader has passed on."""
    driver = opened(file)
    backend = driver.backend
    assert isinstance(backend, SqliteBackend)
    running = await driver.running(id="t")
    may_sync = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(file: int) -> None:
        asyncio.run_coroutine_threadsafe(may_sync.wait(), loop).result()

    monkeypatch.setattr(backend.database, "_flush", slow)
    ending = asyncio.create_task(driver.settle(running, Succeeded("1")))
    await wait_until(lambda: backend.database._syncing is not None)
    reads: dict[str, Callable[[], Any]] = {
        "get": lambda: driver.task("t"),
        "find": driver.all,
        "history": lambda: driver.history("t"),
        "log": driver.log,
    }
    reading = asyncio.create_task(reads[read]())
    done, _ = await asyncio.wait([reading], timeout=0.2)
    assert not done or "succeeded" not in str(reading.result())
    may_sync.set()
    assert "succeeded" in str(await reads[read]())
    await ending
    await reading
    await backend.close()
