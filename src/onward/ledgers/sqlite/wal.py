"""The write-ahead log of one SQLite file, kept short under any load.

A passive checkpoint copies the log into the file while writers go on. Beside a busy writer it never
reaches the log's end, and SQLite begins a log anew only once all of it is copied. So past a bound
new transactions are held, for as long as it takes to copy the few pages that are left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import structlog

log = structlog.get_logger("onward.sqlite")

COPY_BYTES = 16 << 20  # from here on the log is copied beside the writers
STEP_BYTES = 4 << 20  # and again after so many more
MOST_BYTES = 40 << 20  # from here on writers are held until it is begun anew
BUSY_MS = 250  # how long a held checkpoint waits for readers, each of two times
FRAME_HEADER = 24  # bytes before each page of the log


class WriteAheadLog:
    def __init__(self, path: str, writer: apsw.Connection, interrupt: Callable[[], None]) -> None:
        self._path = path
        self._interrupt = interrupt  # ends the long reads of this process
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onward-tidy")
        self._frame = int(str(writer.pragma("page_size"))) + FRAME_HEADER
        self._length = 0  # of what the log holds, in bytes
        self._copied = 0  # what it was when all of it was copied last
        self._next = COPY_BYTES
        self._running: asyncio.Task[None] | None = None
        self._stuck = 0  # times in a row that a reader was in the way to the end
        self.held: asyncio.Future[None] | None = None  # no transaction may begin before this
        # One that had to grow further shrinks to this when it is begun anew.
        writer.pragma("journal_size_limit", MOST_BYTES)
        writer.set_wal_hook(self._committed)

    @property
    def bytes(self) -> int:
        try:
            return Path(f"{self._path}-wal").stat().st_size
        except OSError:
            return 0

    def _committed(self, _: apsw.Connection, __: str, pages: int) -> int:
        length = pages * self._frame
        if length < self._length:  # it was begun anew
            self._next, self._copied = COPY_BYTES, 0
            self._stuck = 0
        self._length = length
        return apsw.SQLITE_OK

    def after_commit(self) -> None:
        """Between two transactions: the only moment at which new ones can be held."""
        if self._length < self._next:
            return
        if self._length >= MOST_BYTES and self.held is None:
            self.held = asyncio.get_running_loop().create_future()
        self._start()

    async def tend(self) -> None:
        """Once a second: what failed, or could not be copied to its end, is tried again."""
        if self._length >= COPY_BYTES and self._length != self._copied:
            self._start()
        if self._running is not None:
            await asyncio.wait([self._running])

    async def close(self) -> None:
        if self._running is not None:
            await asyncio.wait([self._running])
        self._thread.shutdown()

    def _start(self) -> None:
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._shorten())

    async def _shorten(self) -> None:
        try:
            length = self._length
            if self.held is None and await self._run("PASSIVE", 0):
                self._copied = length
            if self.held is not None:  # perhaps only since the passive one began
                await self._begin_anew()
        except apsw.Error as error:
            log.error("a checkpoint failed; it is tried again", error=repr(error))
        finally:
            # Each try holds the writers for a moment: fewer and fewer if it is of no use.
            self._next = self._length + (STEP_BYTES << self._stuck)
            self._running = None
            if self.held is not None:
                self.held.set_result(None)
                self.held = None

    async def _begin_anew(self) -> None:
        if await self._run("RESTART", BUSY_MS):
            return
        # A read that goes on holds the place in the log at which it began. Ours can be repeated.
        self._interrupt()
        if await self._run("RESTART", BUSY_MS):
            return
        self._stuck += 1
        if self._stuck == 2:  # the first may have met one of ours that was just beginning
            log.warning(
                "another process reads the ledger, and its write-ahead log grows until that ends",
                path=self._path,
                bytes=self.bytes,
            )

    async def _run(self, mode: str, busy_ms: int) -> bool:
        """True: all of it was copied. False: a reader was in the way, or a writer went on."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._checkpoint, mode, busy_ms)

    def _checkpoint(self, mode: str, busy_ms: int) -> bool:
        connection = apsw.Connection(self._path)
        try:
            connection.set_busy_timeout(busy_ms)
            result = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        finally:
            connection.close()
        ((busy, pages, copied),) = result
        return not busy and pages == copied
