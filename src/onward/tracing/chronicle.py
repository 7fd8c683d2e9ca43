"""Reads the event log and has a span written for each stage of a traced task that is over.

One server at a time, from a cursor in the ledger: an attempt whose server was killed is reported by
another. The cursor holds nothing back from being purged, and expires when it is not moved: traces
are for looking, the ledger does not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.duty import Duty
from onward.core.errors import LedgerUnavailable
from onward.core.follow import history
from onward.core.tail import TASKS
from onward.core.task import Event, Task, encode
from onward.core.trace import sampled, traceparent_of
from onward.tracing.stages import ENDS, Stage, stages

log = structlog.get_logger("onward.tracing")

KIND, NAME = "trace", "cursor"
BATCH = 256
MOST = 20 * BATCH  # events of one task that are read for its spans
DAY_MS = 24 * 3_600_000

Write: TypeAlias = Callable[[Task, str, Stage], None]


class Chronicle:
    def __init__(self, backend: Backend, clock: Clock, write: Write, duty: Duty | None) -> None:
        self._backend = backend
        self._clock = clock
        self._write = write
        self._duty = duty  # None: no other server is on this ledger
        self._cursor: str | None = None

    async def step(self) -> None:
        """Everything up to the end of the log, if it is for us to tell."""
        if self._duty is not None and not await self._duty.mine():
            self._cursor = None  # its holder moves it meanwhile
            return
        while await self._read():
            pass

    async def close(self) -> None:
        """Tell what has happened up to now, and leave the rest to others."""
        try:
            await self.step()
            if self._duty is not None:
                await self._duty.give_up()
        except LedgerUnavailable as error:
            log.warning("the last spans were not written", error=str(error))

    async def _read(self) -> bool:
        """Whether there may be more."""
        before = self._cursor
        if self._cursor is None:
            self._cursor = await self._begin()
        page = await self._backend.tasks.events(after=self._cursor, limit=BATCH)
        await self._tell(page.items)
        self._cursor = page.next or self._cursor
        if self._cursor != before:
            # After telling: a crash in between repeats spans, under the same ids, and skips none.
            now = self._clock.now()
            body = encode(self._cursor)
            await self._backend.documents.put(KIND, NAME, body, now=now, expires_at=now + DAY_MS)
        return page.more

    async def _begin(self) -> str:
        saved = await self._backend.documents.get(KIND, NAME, now=self._clock.now())
        if saved is not None:
            return msgspec.json.decode(saved.body, type=str)
        return (await self._backend.tasks.events(after="$", limit=1)).next or ""

    async def _tell(self, events: Sequence[Event]) -> None:
        by_task: dict[str, list[Event]] = {}
        for event in events:
            by_task.setdefault(event.task, []).append(event)
        ids = [id for id, its in by_task.items() if any(event.type in ENDS for event in its)]
        for at in range(0, len(ids), TASKS):
            for task in await self._backend.tasks.look(ids[at : at + TASKS]):
                if task is not None:
                    await self._tell_of(task, by_task[task.id])

    async def _tell_of(self, task: Task, fresh: Sequence[Event]) -> None:
        traceparent = traceparent_of(task.overrides)
        if traceparent is not None and sampled(traceparent):
            for stage in stages(await self._history(fresh)):
                if fresh[0].n <= stage.n <= fresh[-1].n:
                    self._write(task, traceparent, stage)

    async def _history(self, fresh: Sequence[Event]) -> Sequence[Event]:
        """A task's events from its first on; a short life is in the batch that we have."""
        if fresh[0].n == 1 and fresh[-1].type != "task.failed":
            return fresh
        found: list[Event] = []
        async for event in history(self._backend.tasks, fresh[0].task):
            found.append(event)
            # One more than is fresh: what follows a failure says whether it was the last.
            if event.n > fresh[-1].n or len(found) == MOST:
                break
        return found
