"""The event log → projectors, each with a durable cursor of its own. At least once, in order.

A projector that fails is tried again with the same events; the others go on.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend, Projector
from onward.core.task import encode

log = structlog.get_logger("onward.tail")

BATCH = 256
KIND = "cursor"


class Tail:
    def __init__(
        self, backend: Backend, projector: Projector, clock: Clock, *, batch: int | None = None
    ) -> None:
        self._backend = backend
        self._projector = projector
        self._clock = clock
        self._batch = batch or BATCH
        self._cursor: str | None = None

    async def step(self) -> int:
        """Project one batch; returns how many events it held."""
        if self._cursor is None:
            saved = await self._backend.documents.get(
                KIND, self._projector.name, now=self._clock.now()
            )
            self._cursor = "" if saved is None else msgspec.json.decode(saved.body, type=str)
        page = await self._backend.tasks.events(after=self._cursor, limit=self._batch)
        if page.items:
            await self._projector.project(page.items)
            self._cursor = page.next or self._cursor
            # Saved after projecting: a crash in between repeats the batch, it never skips one.
            await self._backend.documents.put(
                KIND, self._projector.name, encode(self._cursor), now=self._clock.now()
            )
        return len(page.items)

    async def run(self) -> None:
        async with self._backend.bell.listen("log") as listener:
            while True:
                try:
                    while await self.step() == self._batch:
                        pass
                except Exception as error:
                    log.warning(
                        "projector failed", projector=self._projector.name, error=repr(error)
                    )
                    await asyncio.sleep(1)
                with suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await listener.wait()
