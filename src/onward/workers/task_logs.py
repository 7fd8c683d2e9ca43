"""What handlers logged, kept with their tasks: the newest MiB of each, apart from the event log.

Documents of a kind for each task, in parts of some 64 KiB; the last part grows until it is full.
They end with the task's retention, or a day later. Lines wait in memory until they are written, so
that no socket and no settlement waits for them; a server that is killed loses the last of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import structlog

from onward.core.clock import Clock
from onward.core.contract import Documents
from onward.core.errors import LedgerUnavailable
from onward.core.task import TaskId, new_id
from onward.wire.base import Page
from onward.wire.logs import LogRecord

log = structlog.get_logger("onward.task_logs")

MOST_BYTES = 1 << 20  # of one task
PART_BYTES = 64 << 10
MOST_WAITING = 16 << 20  # bytes of all tasks that are not written yet
MOST_OPEN = 256  # last parts that are kept in memory
DAY_MS = 24 * 3_600_000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[LogRecord, ...]).decode


class LogPart(NamedTuple):
    key: str
    version: int
    lines: Sequence[bytes]
    size: int


class TaskLogs:
    def __init__(self, documents: Documents, clock: Clock, *, on: bool = True) -> None:
        self.on = on
        self._documents = documents
        self._clock = clock
        self._waiting: dict[TaskId, list[bytes]] = {}
        self._waiting_bytes = 0
        self._writers: dict[TaskId, asyncio.Task[None]] = {}
        self._open: dict[TaskId, LogPart] = {}

    def add(self, task: TaskId, records: Sequence[LogRecord], *, retention_ms: int) -> None:
        """They are written soon, in their order; what a ledger cannot keep up with is dropped."""
        lines = [_encode(record) for record in records]
        size = sum(map(len, lines))
        if not self.on or self._waiting_bytes + size > MOST_WAITING:
            return
        self._waiting.setdefault(task, []).extend(lines)
        self._waiting_bytes += size
        if task not in self._writers:
            writing = self._write(task, retention_ms + DAY_MS)
            self._writers[task] = asyncio.get_running_loop().create_task(writing)

    async def read(self, task: TaskId, cursor: str | None) -> Page[LogRecord]:
        """A page is a part, or what follows the cursor in it. `next` is None at the end."""
        if (writer := self._writers.get(task)) is not None:
            await asyncio.wait({writer})
        documents = await self._documents.list(_kind(task), now=self._clock.now())
        parts = sorted(documents, key=lambda document: document.key)
        key, _, at = (cursor or ":0").partition(":")
        # A part that was dropped meanwhile: the next one is read from its beginning.
        left = [document for document in parts if document.key >= key]
        if not left:
            return Page(items=())
        start = int(at) if left[0].key == key else 0
        items = _decode(left[0].body)[start:]
        return Page(items=items, next=f"{left[1].key}:0" if len(left) > 1 else None)

    async def forget(self, tasks: Sequence[TaskId]) -> None:
        """These tasks are erased."""
        for task in tasks:
            self._open.pop(task, None)
            for document in await self._documents.list(_kind(task), now=self._clock.now()):
                await self._documents.delete(_kind(task), document.key)

    async def close(self) -> None:
        while self._writers:
            await asyncio.wait(set(self._writers.values()))

    async def _write(self, task: TaskId, kept_ms: int) -> None:
        try:
            while lines := self._waiting.pop(task, []):
                self._waiting_bytes -= sum(map(len, lines))
                await self._append(task, lines, kept_ms)
        except LedgerUnavailable as error:
            log.warning("lines of a task are lost", task=task, error=str(error))
        finally:
            self._waiting_bytes -= sum(map(len, self._waiting.pop(task, [])))
            del self._writers[task]

    async def _append(self, task: TaskId, lines: Sequence[bytes], kept_ms: int) -> None:
        while lines:
            part = self._open.pop(task, None) or LogPart(new_id(), 0, (), 0)
            fitting, size = [*part.lines], part.size
            for line in lines:
                if fitting and size + len(line) > PART_BYTES:
                    break
                fitting.append(line)
                size += len(line) + 1
            taken = len(fitting) - len(part.lines)
            if taken and not await self._put(task, part, fitting, size, kept_ms):
                continue  # another server has written there: these lines begin a part of their own
            if not part.version:
                await self._trim(task)
            lines = lines[taken:]

    async def _put(
        self, task: TaskId, part: LogPart, lines: Sequence[bytes], size: int, kept_ms: int
    ) -> bool:
        now = self._clock.now()
        written = await self._documents.put(
            _kind(task),
            part.key,
            (b"[" + b",".join(lines) + b"]").decode(),
            now=now,
            expect=part.version,
            expires_at=now + kept_ms,
        )
        if written is None:
            return False
        if size < PART_BYTES:
            self._open[task] = LogPart(part.key, written.version, lines, size)
            if len(self._open) > MOST_OPEN:
                del self._open[next(iter(self._open))]
        return True

    async def _trim(self, task: TaskId) -> None:
        """Drops the oldest parts, when a new one has begun."""
        documents = await self._documents.list(_kind(task), now=self._clock.now())
        size = 0
        for document in sorted(documents, key=lambda document: document.key, reverse=True):
            size += len(document.body)
            if size > MOST_BYTES:
                await self._documents.delete(_kind(task), document.key)


def _kind(task: TaskId) -> str:
    return f"task_log:{task}"
