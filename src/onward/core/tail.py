"""The event log → projectors, each with a durable cursor of its own. At least once, in order.

A projector that fails is tried again with the same events; the others go on. Where several servers
share a ledger, one of them at a time reads for a projector, by its duty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

import msgspec
import structlog

from onward.core import readers
from onward.core.clock import Clock
from onward.core.contract import Backend, Projector
from onward.core.duty import Duty
from onward.core.task import Event, Instant, TaskId, encode
from onward.core.troubles import Troubles

log = structlog.get_logger("onward.tail")

BATCH = 1_000  # events
TASKS = 64  # named by the events of one call: a projector may read all of them, megabytes each
PACE_S = 0.02  # a task's few events come close together: one look, and one cursor, for all
AGAIN_S = 1.0

Look = Callable[[], Awaitable[bool]]
OnDuty = Callable[[bool], Awaitable[None]]  # this server reads from now on, or stops reading


class Tail:
    def __init__(
        self,
        backend: Backend,
        projector: Projector,
        clock: Clock,
        *,
        batch: int | None = None,  # for a projector that reads tasks in parts: events in one call
        pace_s: float = PACE_S,
        duty: Duty | None = None,  # None: no other server reads for this projector
        on_duty: OnDuty | None = None,
    ) -> None:
        self._backend = backend
        self._projector = projector
        self._clock = clock
        self._batch = batch or BATCH
        self._tasks = batch or TASKS
        self._pace_s = pace_s
        self._duty = duty
        self._on_duty = on_duty
        self._reads = False
        self._cursor: str | None = None
        self._renew_at: Instant = 0
        self._more = False

    async def step(self) -> int:
        """Project one batch; returns how many events it held."""
        if self._cursor is None:
            self._cursor = await self._place()
        page = await self._backend.tasks.events(after=self._cursor, limit=self._batch)
        self._more = page.more
        for part in _by_tasks(page.items, self._tasks):
            await self._projector.project(part)
        # Also past a page of which nothing could be read: it would be read again for ever.
        if page.next and page.next != self._cursor:
            self._cursor = page.next
            # Saved after projecting: a crash in between repeats the batch, it never skips one.
            await self._backend.documents.put(
                readers.CURSORS, self._projector.name, encode(self._cursor), now=self._clock.now()
            )
        await self._renew()
        return len(page.items)

    async def _place(self) -> str:
        documents, name, now = self._backend.documents, self._projector.name, self._clock.now()
        return msgspec.json.decode(await readers.begin(documents, name, "", now=now), type=str)

    async def _renew(self) -> None:
        now = self._clock.now()
        if now >= self._renew_at:
            await readers.record_activity(self._backend.documents, self._projector.name, now=now)
            self._renew_at = now + readers.RENEW_MS

    async def catch_up(self) -> bool:
        """Project all there is; False: another server does."""
        while await self._is_ours():
            await self.step()
            if not self._more:
                return True
        return False

    async def run(self, troubles: Troubles, look: Look | None = None) -> None:
        """Look whenever something is written, and once a second; `catch_up` is what a look does."""
        look, name = look or self.catch_up, self._projector.name
        try:
            async with self._backend.bell.listen("log") as listener:
                while True:
                    ours = False
                    try:
                        ours = await look()
                    except Exception as error:  # the same events come again
                        log.warning("projector failed", projector=name, error=repr(error))
                        troubles.failed(f"reader {name}", error)
                    else:
                        troubles.went_well(f"reader {name}")
                    if not ours:
                        await asyncio.sleep(AGAIN_S)
                        continue
                    with suppress(TimeoutError):
                        async with asyncio.timeout(AGAIN_S):
                            await listener.wait()
                    await asyncio.sleep(self._pace_s)
        finally:
            if self._duty is not None:
                with suppress(Exception):  # the ledger is away: the duty ends by itself
                    await self._duty.give_up()

    async def _is_ours(self) -> bool:
        ours = self._duty is None or await self._duty.mine()
        if ours is not self._reads:
            self._reads = ours
            self._cursor = None  # the server that read meanwhile has moved it
            if self._on_duty is not None:
                await self._on_duty(ours)
        return ours


class LazyTail:
    """A tail of what not every ledger has: read from the first task on that the projector is for.

    The projector's cursor shows that: it is written before the first such task is. Until then no
    server reads the log for it.
    """

    def __init__(
        self,
        backend: Backend,
        projector: Projector,
        clock: Clock,
        *,
        duty: Duty | None = None,
        on_duty: OnDuty | None = None,
    ) -> None:
        self._backend = backend
        self._name = projector.name
        self._clock = clock
        self._tail = Tail(backend, projector, clock, duty=duty, on_duty=on_duty)
        self._opened = asyncio.Event()

    async def open(self) -> None:
        """A task that it is for is about to be submitted."""
        if self._opened.is_set():
            return
        end = (await self._backend.tasks.events(after="$", limit=1)).next or ""
        await readers.begin(self._backend.documents, self._name, end, now=self._clock.now())
        self._opened.set()

    async def run(self, troubles: Troubles) -> None:
        while not await self._is_opened():
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._opened.wait()
        await self._tail.run(troubles)

    async def step(self) -> bool:
        return await self._tail.catch_up()

    async def _is_opened(self) -> bool:
        if self._opened.is_set():
            return True
        try:
            now = self._clock.now()
            found = await self._backend.documents.get(readers.CURSORS, self._name, now=now)
        except Exception as error:
            log.warning("cannot read a cursor", projector=self._name, error=repr(error))
            return False
        if found is not None:
            self._opened.set()
        return found is not None


def _by_tasks(events: Sequence[Event], most: int) -> Iterator[Sequence[Event]]:
    """The same in their order, cut so that each part names so many tasks at most."""
    part: list[Event] = []
    named: set[TaskId] = set()
    for event in events:
        if len(named) == most and event.task not in named:
            yield part
            part, named = [], set()
        part.append(event)
        named.add(event.task)
    if part:
        yield part
