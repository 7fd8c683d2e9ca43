"""One SQLite file: opening, migrating, group commit and durability. Decides nothing about tasks.

Statements run in the event loop's thread, all writes of one turn of the loop in one transaction: a
writer thread would lose its time waiting for the interpreter lock (docs/adr/0002). What may take
long happens elsewhere: making a commit durable (fdatasync of the log) and checkpoints run in a
thread, and so do reads that may be large.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import apsw
import structlog

from onward.core.errors import LedgerUnavailable
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.schema import missing_columns
from onward.ledgers.sql.store import SecondFinal, Take
from onward.ledgers.sql.write_batch import Plan, TallyKey, driven
from onward.ledgers.sqlite.dialect import INDEXES, SCHEMA, STATEMENTS, VIEWS
from onward.ledgers.sqlite.files import PRIVATE, cannot_open, flusher, take
from onward.ledgers.sqlite.wal import WriteAheadLog

log = structlog.get_logger("onward.sqlite")

T = TypeVar("T")

CHUNKS = (64, 16, 4, 1)  # rows a statement: few prepared shapes, few trips into the library
LIST = 256  # values a statement
MEMORY = ":memory:"
SECOND_FINAL = "event.tid, event.final"  # in SQLite's error for a generation's second final event
OLDEST = (3, 51, 3)  # before that, a reset of the write-ahead log could corrupt the file

# The file or its disk fails: every caller is affected, and nothing is wrong with their statements.
# Any other error is about one statement and its values, and undoes no more than its own work.
DISK_ERRORS = (
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.CorruptError,
    apsw.FullError,
    apsw.IOError,
    apsw.LockedError,
    apsw.NoMemError,
    apsw.NotADBError,
    apsw.PermissionsError,
    apsw.ProtocolError,
    apsw.ReadOnlyError,
)
DAMAGED = (apsw.CorruptError, apsw.NotADBError)


class SqliteDatabase:
    def __init__(self, path: str, *, durable: bool) -> None:
        version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
        if version < OLDEST:
            raise LedgerUnavailable(
                f"SQLite {apsw.sqlite_lib_version()} is too old", hint="pip install -U apsw"
            )
        self.memory = path == MEMORY
        # By its real name: lock and log must be the same, whichever link it is opened by.
        self.path = path if self.memory else os.path.realpath(path)
        self._durable = durable and not self.memory
        self._lock = None if self.memory else take(self.path)
        try:
            self._writer = self._open()
            open_schema(self._writer, LEDGER, self.path, "name another file with --ledger")
        except BaseException as error:
            if self._lock is not None:
                self._lock.close()  # refused means let go: once it is mended, it can be opened
            if isinstance(error, apsw.NotADBError):
                raise LedgerUnavailable(
                    f"{path} is not an Onward ledger", hint="name another file with --ledger"
                ) from error
            if isinstance(error, DISK_ERRORS):
                raise cannot_open(self.path, error) from error
            raise
        self._reader = self._writer if self.memory else self._open()
        self._far_reader = self._writer if self.memory else self._open()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onward-sync")
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="onward-read")
        self._far = asyncio.Lock()  # one large read at a time
        self._log_file: int | None = None
        self._wal: WriteAheadLog | None = None
        self._flush: Callable[[int], object] = os.fsync
        if not self.memory:
            self._log_file = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CREAT, PRIVATE)
            self._flush = flusher(self._log_file)
            self._wal = WriteAheadLog(self.path, self._writer, self._far_reader.interrupt)
        self._turn: asyncio.Future[None] | None = None
        self._unsynced: list[asyncio.Future[None]] = []
        self._last: asyncio.Future[None] | None = None  # the turn that was committed last
        self._syncing: asyncio.Future[object] | None = None
        self._broken: LedgerUnavailable | None = None
        self.tallies: Callable[[], Mapping[TallyKey, int]] = dict
        self.before_commit: Callable[[], None] = lambda: None
        self.after_undo: Callable[[], None] = lambda: None
        self.after_rollback: Callable[[], None] = lambda: None

    # Writing.

    async def write(
        self, plan: Callable[[], Plan[T]], *, intake: bool = False, locks: Sequence[str] = ()
    ) -> T:
        """Carry it out in the open transaction; returns when it is committed (and on disk)."""
        await self._not_held()
        if self._broken is not None:
            raise self._broken
        turn = self._begin()
        self._writer.execute("SAVEPOINT work")
        try:
            result = driven(plan(), self.run)
        except BaseException as error:
            self._undo(turn)
            if isinstance(error, DISK_ERRORS):
                raise _unavailable(error) from error
            if isinstance(error, apsw.ConstraintError) and SECOND_FINAL in str(error):
                raise SecondFinal from error
            raise
        self._writer.execute("RELEASE work")
        await asyncio.shield(turn)
        return result

    async def _not_held(self) -> None:
        while self._wal is not None and self._wal.held is not None:
            await asyncio.shield(self._wal.held)

    def _undo(self, turn: asyncio.Future[None]) -> None:
        if self._writer.in_transaction:
            # Only this caller's work is undone: the others of this transaction go on.
            self._writer.execute("ROLLBACK TO work; RELEASE work")
            self.after_undo()
            return
        # A full or broken disk takes the whole transaction back, the others' work with it.
        self._turn = None
        self._taken_back(turn, LedgerUnavailable("the ledger could not be written"))

    def _taken_back(self, turn: asyncio.Future[None], error: LedgerUnavailable) -> None:
        _fail(turn, error)
        try:
            self.after_rollback()
        except apsw.Error as unread:
            # What is counted in memory now holds what the file does not.
            log.error("the ledger cannot be read after a rollback", error=repr(unread))
            self._broken = LedgerUnavailable(
                "the ledger cannot be read", hint="run onward doctor, repair the disk, then restart"
            )

    def run(self, step: Step) -> list[Row]:
        """A long batch goes in chunks: the answer is that of all chunks together."""
        if step.rows is not None:
            return self._run_rows(step, step.rows)
        if step.values is None:
            return self._writer.execute(STATEMENTS.text(step, 0), step.args).fetchall()
        found: list[Row] = []
        for at in range(0, len(step.values), LIST):
            part = step.values[at : at + LIST]
            statement = STATEMENTS.text(step, len(part))
            found += self._writer.execute(statement, (*step.args, *part)).fetchall()
        return found

    def _run_rows(self, step: Step, rows: Sequence[Row]) -> list[Row]:
        found: list[Row] = []
        at = 0
        while at < len(rows):
            size = next(size for size in CHUNKS if size <= len(rows) - at)
            statement = STATEMENTS.text(step, size)
            bindings = tuple(chain.from_iterable(rows[at : at + size]))
            found += self._writer.execute(statement, bindings).fetchall()
            at += size
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
        except BaseException as error:
            # Whatever it was: the callers of this transaction must learn that it is not kept.
            with suppress(apsw.Error):
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
            self._taken_back(turn, _unavailable(error))
            if not isinstance(error, Exception):
                raise
            return
        if self._durable:
            self._last = turn
            self._unsynced.append(turn)
            self._sync()
        else:
            turn.set_result(None)
        if self._wal is not None:
            self._wal.after_commit()

    def _sync(self) -> None:
        if self._syncing is not None or not self._unsynced or self._log_file is None:
            return
        riders, self._unsynced = self._unsynced, []
        loop = asyncio.get_running_loop()

        def done(outcome: asyncio.Future[object]) -> None:
            self._syncing = None
            error = outcome.exception()
            if error is not None:
                # After a failed sync the kernel may drop what it could not write: no later sync
                # can vouch for it, so nothing is accepted any more until a restart re-reads it.
                self._broken = LedgerUnavailable(
                    "the disk refused to keep a commit",
                    hint="repair the disk, then restart",
                )
                log.error("fdatasync failed", error=repr(error))
            for turn in riders:
                if self._broken is not None:
                    _fail(turn, self._broken)
                elif not turn.done():
                    turn.set_result(None)
            self._sync()

        self._syncing = loop.run_in_executor(self._thread, self._flush, self._log_file)
        self._syncing.add_done_callback(done)

    # Reading.

    async def kept(self) -> None:
        """Until all that can be read by now is on disk.

        What is read leaves the server, as an event or an answer: without this a power cut could
        take back an end that a reader has passed on.
        """
        if self._broken is not None:
            raise self._broken
        if self._last is not None and not self._last.done():
            await asyncio.shield(self._last)

    async def read(self, step: Step, take: Take = list, *, far: bool = False) -> list[Row]:
        """What is committed. At once, or, if it may be large, in a thread of its own."""
        statement = STATEMENTS.text(step, len(step.rows or step.values or ()))
        rows = [value for row in step.rows or () for value in row]
        bindings = (*rows, *step.args, *(step.values or ()))
        if self.memory:
            self._commit()
        if self.memory or not far:
            return _taken(self._reader, statement, bindings, take)
        loop = asyncio.get_running_loop()
        for _ in range(2):
            async with self._far:
                # One that begins while the log is to be begun anew would keep it from that.
                await self._not_held()
                with suppress(apsw.InterruptError):  # it was in the way of just that
                    return await loop.run_in_executor(
                        self._readers, _taken, self._far_reader, statement, bindings, take
                    )
        raise LedgerUnavailable(
            "this takes too long beside so many writes", hint="ask for less, or for it later"
        )

    async def tally(self) -> Collection[tuple[TallyKey, int]]:
        return self.tallies().items()

    # Housekeeping.

    async def checkpoint(self) -> None:
        """Move the log into the file when it has grown; writers go on meanwhile."""
        if self._wal is not None:
            await self._wal.tend()

    @property
    def log_bytes(self) -> int:
        return 0 if self._wal is None else self._wal.bytes

    async def close(self) -> None:
        self._commit()
        while self._syncing is not None:
            await asyncio.wait([self._syncing])
        if self._wal is not None:
            await self._wal.close()
        self._thread.shutdown()
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


def _taken(connection: apsw.Connection, statement: str, bindings: Any, take: Take) -> list[Row]:
    try:
        cursor = connection.execute(statement, bindings)
        try:
            return take(cursor)
        finally:
            cursor.close()  # a read that stops early must not hold its place in the log
    except DISK_ERRORS as error:
        raise _unavailable(error, "read") from error


_VIEW = re.compile(r"CREATE VIEW IF NOT EXISTS ((\w+) AS.*?);\n", re.DOTALL)


class Schema(NamedTuple):
    """What a file holds: how it is made, and how one of an earlier version is brought up to it."""

    tables: str
    indexes: str  # of tasks; made unless they are there
    tasks: str  # the table that has the fields of a Task
    steps: Traversable | None  # numbered, the first leads from version 1 to 2
    version: int
    views: str = ""  # for people; made anew where they were another version's


LEDGER = Schema(SCHEMA, INDEXES, "task", files("onward.ledgers.sqlite") / "migrations", 6, VIEWS)


def open_schema(connection: apsw.Connection, schema: Schema, path: str, other: str) -> None:
    """Make the tables, or bring them up to this version; another process may be doing the same."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = int(str(connection.pragma("user_version")))
        if found > schema.version:
            raise LedgerUnavailable(
                f"{path} was written by a newer Onward (schema {found}, ours is {schema.version})",
                hint=f"upgrade Onward, or {other}",
            )
        if found == 0:
            connection.execute(schema.tables)
        elif schema.steps is not None:
            steps = sorted(schema.steps.iterdir(), key=lambda entry: entry.name)
            for step in steps[found - 1 :]:
                connection.execute(step.read_text())
        there = [row[1] for row in connection.execute(f"PRAGMA table_info({schema.tasks})")]
        for change in missing_columns(schema.tasks, there, "INTEGER"):
            connection.execute(change)
        connection.execute(schema.indexes)
        _make_views(connection, schema.views)
        connection.pragma("user_version", schema.version)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _make_views(connection: apsw.Connection, script: str) -> None:
    """Not each time: whoever has the file open would have to read its schema again."""
    wanted = {name: text for text, name in _VIEW.findall(script)}
    there = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view'"))
    if all(there.get(name) == f"CREATE VIEW {text}" for name, text in wanted.items()):
        return
    for name in wanted:
        connection.execute(f"DROP VIEW IF EXISTS {name}")
    connection.execute(script)


def _fail(turn: asyncio.Future[None], error: LedgerUnavailable) -> None:
    if not turn.done():
        turn.set_exception(error)
        turn.exception()  # retrieved: without a waiter asyncio would log it


def _unavailable(error: BaseException, done: str = "written") -> LedgerUnavailable:
    refused = "the ledger refused a commit" if done == "written" else "the ledger cannot be read"
    log.error(refused, error=repr(error))
    if isinstance(error, DAMAGED):
        return LedgerUnavailable(
            "the ledger's file is damaged", hint="onward doctor; restore it from a backup"
        )
    full = isinstance(error, apsw.FullError)
    return LedgerUnavailable("the disk is full" if full else f"the ledger could not be {done}")
