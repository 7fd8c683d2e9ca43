"""The sweep: whatever the clock has to say to tasks takes the same road as everything else.

Several servers may sweep at once: the guard in the ledger lets one move win, so nobody is elected.
"""

from __future__ import annotations

import asyncio

import structlog

from onward.core.dispatch import Dispatcher

log = structlog.get_logger("onward.alarm")

BATCH = 256


class Alarm:
    def __init__(self, dispatcher: Dispatcher, *, every_ms: int = 100) -> None:
        self._dispatcher = dispatcher
        self._every_ms = every_ms

    async def sweep(self) -> int:
        """Everything that is due now; returns how many tasks were looked at."""
        seen = 0
        while True:
            now = self._dispatcher.clock.now()
            tasks = await self._dispatcher.backend.tasks.due(now=now, limit=BATCH)
            if tasks:
                await self._dispatcher.apply_clock(tasks, now)
            seen += len(tasks)
            if len(tasks) < BATCH:
                return seen

    async def run(self) -> None:
        while True:
            try:
                await self.sweep()
            except Exception as error:  # the ledger is away: what is due stays due
                log.warning("sweep failed", error=repr(error))
            await asyncio.sleep(self._every_ms / 1000)
