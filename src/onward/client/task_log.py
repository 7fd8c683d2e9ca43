"""What a handler logs, by whatever logger, goes to its task: found by context, sent in batches.

A record is taken when it is made, so neither the handlers nor the formats of the program matter;
its levels do. Each record has `task_id` and `attempt`, for the program's own formats.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar
from pathlib import Path
from typing import Any

from msgspec import UNSET

from onward.faults import storable_text
from onward.wire.logs import MOST_TEXT, MOST_TRACEBACK, LogRecord

MOST_BYTES = 1 << 20  # of one attempt that wait to be sent; older lines give way
BATCH_BYTES = 200 << 10
EVERY_S = 0.25
OURS = ("onward.", "httpx2", "httpcore2", "websockets")  # what the SDK does is not the handler's

Send = Callable[[Sequence[LogRecord]], Awaitable[None]]


def are_kept() -> bool:
    """ONWARD_TASK_LOGS=off holds for a worker as for a server."""
    return os.environ.get("ONWARD_TASK_LOGS", "on").lower() != "off"


class TaskLog:
    """The lines of one attempt. Any thread adds to it."""

    def __init__(self, task_id: str, attempt: int, send: Send | None) -> None:
        """Without `send`, its lines are only marked with the task."""
        self.task_id = task_id
        self.attempt = attempt
        self._send = send
        self._lines: deque[LogRecord] = deque()
        self._bytes = self._dropped = 0
        self._adding = threading.RLock()
        self._sending = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._due = False
        self._flushing: asyncio.Task[None] | None = None

    @contextmanager
    def around(self) -> Iterator[None]:
        """What is logged inside belongs to this attempt."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def take(self, record: logging.LogRecord) -> None:
        if self._send is None or record.levelno < logging.INFO or record.name.startswith(OURS):
            return
        trace = _text_of(record.exc_info[1]) if record.exc_info else ""
        self.add(_line(record, self.attempt, trace))

    def failed(self, what: str, error: BaseException, *, trace: bool) -> None:
        """The end of the attempt, with its traceback unless the handler meant the error."""
        if self._send is not None:
            record = logging.makeLogRecord({"name": "onward.worker", "msg": what})
            record.levelno, record.levelname = logging.ERROR, "ERROR"
            self.add(_line(record, self.attempt, _text_of(error) if trace else ""))

    def add(self, line: LogRecord) -> None:
        with self._adding:
            self._lines.append(line)
            self._bytes += _size(line)
            while self._bytes > MOST_BYTES:
                self._bytes -= _size(self._lines.popleft())
                self._dropped += 1
            due, self._due = self._due, True
        if not due:
            with suppress(RuntimeError):  # the loop is closed: nothing is sent any more
                # In a context of its own: what sending it logs is not the handler's.
                self._loop.call_soon_threadsafe(self._later, context=Context())

    async def flush(self) -> None:
        """Sends what is there. A server that does not take it costs the task nothing."""
        async with self._sending:
            while self._send is not None and (lines := self._next_batch()):
                try:
                    await self._send(lines)
                except (Exception, asyncio.CancelledError):
                    self._send = None
                    raise

    async def close(self) -> None:
        with suppress(Exception, asyncio.CancelledError):
            await self.flush()
        self._send = None

    def _later(self) -> None:
        self._loop.call_later(EVERY_S, self._begin)

    def _begin(self) -> None:
        self._due = False
        self._flushing = self._loop.create_task(self._flush_quietly())

    async def _flush_quietly(self) -> None:
        with suppress(Exception, asyncio.CancelledError):
            await self.flush()

    def _next_batch(self) -> Sequence[LogRecord]:
        batch: list[LogRecord] = []
        size = 0
        with self._adding:
            while self._lines and size < BATCH_BYTES:
                batch.append(self._lines.popleft())
                size += _size(batch[-1])
            self._bytes -= size
            dropped, self._dropped = self._dropped, 0
        if dropped:
            text = f"{dropped} lines were left out: they came faster than they could be sent"
            record = logging.makeLogRecord({"name": "onward.worker", "msg": text})
            record.levelname = "WARNING"
            batch.insert(0, _line(record, self.attempt, ""))
        return batch


_current: ContextVar[TaskLog | None] = ContextVar("onward_task_log", default=None)
_installed = False


def install() -> None:
    """From now on records know their task. Once in a process; it costs others nothing."""
    global _installed
    if not _installed:
        _installed = True
        logging.Logger.makeRecord = _marking(logging.Logger.makeRecord)  # type: ignore[method-assign]


def _marking(make: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    """Around the method and not the record factory: a record that has a name already refuses an
    `extra` of the program that uses the same name.
    """

    def marked(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        log = _current.get()
        record.__dict__.setdefault("task_id", None if log is None else log.task_id)
        record.__dict__.setdefault("attempt", None if log is None else log.attempt)
        if log is not None and isinstance(record.levelno, int):
            log.take(record)
        return record

    return marked


def _line(record: logging.LogRecord, attempt: int, trace: str) -> LogRecord:
    try:
        message = record.getMessage()
    except Exception:  # arguments that do not fit: the program's own handlers complain of it
        message = str(record.msg)
    return LogRecord(
        at=round(record.created * 1000),
        level=record.levelname[:64],
        logger=storable_text(record.name)[:256],
        message=storable_text(message)[:MOST_TEXT],
        attempt=attempt,
        # Its end is what tells most.
        traceback=storable_text(trace)[-MOST_TRACEBACK:] if trace else UNSET,
    )


def _text_of(error: BaseException | None) -> str:
    """Its traceback, from the first line that is not the SDK's."""
    if error is None:
        return ""
    trace = error.__traceback__
    while trace and trace.tb_next and trace.tb_frame.f_code.co_filename.startswith(_AROUND):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


_AROUND = tuple(str(Path(file).parent) for file in (__file__, futures.__file__))


def _size(line: LogRecord) -> int:
    trace = line.traceback if isinstance(line.traceback, str) else ""
    return len(line.message) + len(trace) + 100
