"""At most so many a second go out, and the newest always does: progress, that is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")

PROGRESS_EVERY_S = 0.1


class Pace(Generic[T]):
    def __init__(self, send: Callable[[T], Awaitable[None]], every_s: float) -> None:
        self._send = send
        self._every_s = every_s
        self._held_back: T | None = None
        self._next = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._late: asyncio.Task[None] | None = None

    async def tell(self, item: T) -> None:
        now = monotonic()
        if now >= self._next:
            self._next = now + self._every_s
            self._held_back = None
            await self._send(item)
            return
        self._held_back = item
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._next - now, self._send_late)

    def _send_late(self) -> None:
        self._timer = None
        self._late = asyncio.get_running_loop().create_task(self._flush_late())

    async def _flush_late(self) -> None:
        with suppress(Exception):  # no caller waits for it; the next one sees the error
            await self.flush()

    async def flush(self) -> None:
        """What was held back goes out now: there will be nothing newer, or its time has come."""
        item, late = self._held_back, self._late
        self.stop()
        if late is not None and late is not asyncio.current_task():
            await asyncio.wait([late])  # it is under way, and comes before whatever is next
        if item is not None:
            self._next = monotonic() + self._every_s
            await self._send(item)

    def stop(self) -> None:
        """What was held back is dropped."""
        self._held_back = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
