"""One SQLite file: opening, migrating, group commit and durability. Knows nothing of tasks.

Statements run in the event loop's thread, all writes of one turn of the loop in one transaction: a
writer thread would lose its time waiting for the interpreter lock (docs/adr/0002). What may take
long happens elsewhere: making a commit durable (fdatasync of the log) and checkpoints run in a
thread, and so do reads that may be large.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar

import apsw
import structlog

from onward.core.errors import LedgerUnavailable

log = structlog.get_logger("onward.sqlite")

T = TypeVar("T")
Row = tuple[Any, ...]

CHUNKS = (64, 16, 4, 1)  # rows a statement: few prepared shapes, few trips into the library
CHECKPOINT_PAGES = 4_000  # of 2 or 4 KiB, in the write-ahead log
MEMORY = ":memory:"
OLDEST = (3, 51, 3)  # before that, a reset of the write-ahead log could corrupt the file


def _load(name: str) -> str:
    return (files("onward.backends.sqlite") / name).read_text()


def named(text: str) -> dict[str, str]:
    """The statements of a file, by the names above them."""
    parts = re.split(r"^-- :name (\w+)\n", text, flags=re.M)
    return {
        name: re.sub(r"^--.*\n", "", body, flags=re.M).strip()
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


QUERIES = named(_load("queries.sql"))


@lru_cache(maxsize=512)
def sql(name: str, *, rows: int = 0, width: int = 0, columns: str = "", changes: str = "") -> str:
    """A named query with its lists filled in; width 0 makes {rows} a plain list of ?."""
    row = f"({','.join('?' * width)})" if width else "?"
    return (
        QUERIES[name]
        .replace("{rows}", ",".join([row] * rows))
        .replace("{columns}", columns)
        .replace("{changes}", changes)
    )


class Database:
    def __init__(self, path: str, *, durable: bool) -> None:
        version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
        if version < OLDEST:
            raise LedgerUnavailable(
                f"SQLite {apsw.sqlite_lib_version()} is too old", hint="pip install -U apsw"
            )
        self.memory = path == MEMORY
        self.path = path
        self._durable = durable and not self.memory
        self._lock = None if self.memory else _own(path)
        try:
            self._writer = self._open()
            self._migrate()
        except BaseException as error:
            if self._lock is not None:
                self._lock.close()  # refused means let go: once it is mended, it can be opened
            if isinstance(error, apsw.NotADBError):
                raise LedgerUnavailable(
                    f"{path} is not an Onward ledger", hint="name another file with --ledger"
                ) from error
            raise
        self._reader = self._writer if self.memory else self._open()
        self._far_reader = self._writer if self.memory else self._open()
        self._far_lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onward-sync")
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="onward-read")
        self._log_file = None if self.memory else os.open(f"{path}-wal", os.O_RDONLY | os.O_CREAT)
        self._turn: asyncio.Future[None] | None = None
        self._unsynced: list[asyncio.Future[None]] = []
        self._syncing: asyncio.Future[None] | None = None
        self._broken: LedgerUnavailable | None = None
        self._tidying = ThreadPoolExecutor(1, thread_name_prefix="onward-tidy")
        self._log_pages = 0
        self._writer.set_wal_hook(self._logged)
        self._checkpointing = False
        self.before_commit: Callable[[], None] = lambda: None
        self.after_rollback: Callable[[], None] = lambda: None

    # Writing.

    async def write(self, work: Callable[[], T]) -> T:
        """Do `work` in this turn's transaction; returns when it is committed (and on disk)."""
        if self._broken is not None:
            raise self._broken
        turn = self._begin()
        self._writer.execute("SAVEPOINT work")
        try:
            result = work()
        except BaseException as error:
            self._undo(turn)
            if isinstance(error, apsw.FullError | apsw.IOError | apsw.BusyError):
                raise _unavailable(error) from error
            raise
        self._writer.execute("RELEASE work")
        await asyncio.shield(turn)
        return result

    def _undo(self, turn: asyncio.Future[None]) -> None:
        if self._writer.in_transaction:
            # Only this caller's work is undone: the others of this turn ride on.
            self._writer.execute("ROLLBACK TO work; RELEASE work")
            return
        # A full or broken disk takes the whole transaction back, the others' work with it.
        self._turn = None
        self.after_rollback()
        turn.set_exception(LedgerUnavailable("the ledger could not be written"))
        turn.exception()

    def run(self, statement: str, bindings: Any = ()) -> list[Row]:
        return self._writer.execute(statement, bindings).fetchall()

    def run_rows(self, name: str, rows: Sequence[Row], **parts: Any) -> list[Row]:
        """A query with {rows}, in chunks: the answer is that of all chunks together."""
        found: list[Row] = []
        at = 0
        while at < len(rows):
            size = next(size for size in CHUNKS if size <= len(rows) - at)
            statement = sql(name, rows=size, width=len(rows[0]), **parts)
            bindings = tuple(chain.from_iterable(rows[at : at + size]))
            found += self._writer.execute(statement, bindings).fetchall()
            at += size
        return found

    def run_list(self, name: str, values: Sequence[Any], *first: Any) -> list[Row]:
        """A query with a plain list at its end, in chunks."""
        found: list[Row] = []
        for at in range(0, len(values), 256):
            part = values[at : at + 256]
            found += self.run(sql(name, rows=len(part)), (*first, *part))
        return found

    def _begin(self) -> asyncio.Future[None]:
        if self._turn is None:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
            except apsw.Error as error:
                raise _unavailable(error) from error
            loop = asyncio.get_running_loop()
            self._turn = loop.create_future()
            loop.call_soon(self._commit)
        return self._turn

    def _commit(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        try:
            self.before_commit()
            self._writer.execute("COMMIT")
        except apsw.Error as error:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            self.after_rollback()
            turn.set_exception(_unavailable(error))
            turn.exception()  # seen: if nobody waits any more, nobody need hear of it
            return
        if self._durable:
            self._unsynced.append(turn)
            self._sync()
        else:
            turn.set_result(None)

    def _sync(self) -> None:
        if self._syncing is not None or not self._unsynced or self._log_file is None:
            return
        riders, self._unsynced = self._unsynced, []
        loop = asyncio.get_running_loop()

        def done(outcome: asyncio.Future[None]) -> None:
            self._syncing = None
            error = outcome.exception()
            if error is not None:
                # After a failed sync the kernel may drop what it could not write: no later sync
                # can vouch for it, so nothing is accepted any more until a restart re-reads it.
                self._broken = LedgerUnavailable(
                    "the disk refused to keep a commit", hint="free or mend the disk, then restart"
                )
                log.error("fdatasync failed", error=repr(error))
            for turn in riders:
                if turn.done():
                    continue
                if self._broken is not None:
                    turn.set_exception(self._broken)
                    turn.exception()
                else:
                    turn.set_result(None)
            self._sync()

        self._syncing = loop.run_in_executor(self._thread, os.fdatasync, self._log_file)
        self._syncing.add_done_callback(done)

    # Reading.

    def read(self, statement: str, bindings: Any = ()) -> list[Row]:
        """A small read, at once. Sees what is committed."""
        if self.memory:
            self._commit()
        return self._reader.execute(statement, bindings).fetchall()

    async def read_far(self, statement: str, bindings: Any = ()) -> list[Row]:
        """A read that may be large, in a thread of its own."""
        if self.memory:
            return self.read(statement, bindings)

        def work() -> list[Row]:
            with self._far_lock:
                return self._far_reader.execute(statement, bindings).fetchall()

        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    # Housekeeping.

    async def checkpoint(self) -> None:
        """Move the log into the file when it has grown; writers go on meanwhile."""
        if self.memory or self._checkpointing or self._log_pages < CHECKPOINT_PAGES:
            return
        self._checkpointing = True
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._tidying, self._checkpoint)
        finally:
            self._tidying = ThreadPoolExecutor(1, thread_name_prefix="onward-tidy")
        self._log_pages = 0
        self._writer.set_wal_hook(self._logged)
        self._checkpointing = False

    def _logged(self, _: apsw.Connection, __: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        connection = apsw.Connection(self.path)
        try:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        finally:
            connection.close()

    async def close(self) -> None:
        self._commit()
        while self._syncing is not None:
            await asyncio.wait([self._syncing])
        self._thread.shutdown()
        self._tidying.shutdown()
        self._readers.shutdown()
        for connection in {self._far_reader, self._reader, self._writer}:
            connection.close()
        if self._log_file is not None:
            os.close(self._log_file)
        if self._lock is not None:
            self._lock.close()

    def _open(self) -> apsw.Connection:
        connection = apsw.Connection(self.path, statementcachesize=256)
        connection.set_busy_timeout(5_000)
        # Of a new file. A commit writes whole pages, and most touch ten of them a little each.
        connection.execute("PRAGMA page_size = 2048")
        connection.execute("PRAGMA journal_mode = wal")
        # NORMAL leaves the sync of each commit to us: group commit in `_sync` does it for FULL.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA temp_store = memory")
        return connection

    def _migrate(self) -> None:
        steps = sorted(
            entry.name
            for entry in (files("onward.backends.sqlite") / "migrations").iterdir()
            if entry.name.endswith(".sql")
        )
        found = int(str(self._writer.pragma("user_version")))
        if found > len(steps):
            raise LedgerUnavailable(
                f"{self.path} was written by a newer Onward (schema {found}, ours is {len(steps)})",
                hint="upgrade Onward, or name another file with --ledger",
            )
        for number, name in enumerate(steps[found:], start=found + 1):
            self._writer.execute("BEGIN IMMEDIATE")
            self._writer.execute(_load(f"migrations/{name}"))
            self._writer.execute(f"PRAGMA user_version = {number}")
            self._writer.execute("COMMIT")


def _own(path: str) -> IO[str]:
    """One server a file: two would each trust its own counters."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    lock = Path(f"{path}.lock").open("a+")  # noqa: SIM115 held as long as the ledger is open
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        owner = lock.read().strip() or "another process"
        lock.close()
        raise LedgerUnavailable(
            f"{path} is in use by {owner}",
            hint="stop it, or name another file with --ledger sqlite:///other.db",
        ) from None
    lock.truncate(0)
    lock.write(f"process {os.getpid()}")
    lock.flush()
    return lock


def _unavailable(error: apsw.Error) -> LedgerUnavailable:
    log.error("the ledger refused a commit", error=repr(error))
    full = isinstance(error, apsw.FullError)
    return LedgerUnavailable("the disk is full" if full else "the ledger could not be written")
