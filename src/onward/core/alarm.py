"""The sweep: whatever the clock has to say to tasks takes the same road as everything else.

Several servers may sweep at once: the guard in the ledger lets one move win, so nobody is elected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from onward.core.clock import uptime_ms
from onward.core.dispatch import Dispatcher
from onward.core.task import TaskId

log = structlog.get_logger("onward.alarm")

BATCH = 256
MOST_STUCK = 4_096  # due tasks of which nothing comes: so many are looked past in one sweep


class Alarm:
    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        every_ms: int = 100,
        uptime_ms: Callable[[], int] = uptime_ms,
    ) -> None:
        self._dispatcher = dispatcher
        self._every_ms = every_ms
        self._uptime_ms = uptime_ms
        self._late_ms = min(rules.lease_ms for rules in dispatcher.profiles.values()) // 3
        self._swept_ms: int | None = None

    async def sweep(self) -> int:
        """Everything that is due now; returns how many tasks were looked at."""
        await self._beat_if_late()
        seen = 0
        stuck: set[TaskId] = set()
        while True:
            now = self._dispatcher.clock.now()
            limit = BATCH + len(stuck)
            due = await self._dispatcher.backend.tasks.due(now=now, limit=limit)
            tasks = [task for task in due if task.id not in stuck]
            if tasks:
                stuck.update(await self._dispatcher.apply_clock(tasks, now))
            seen += len(tasks)
            # What was refused may stand before the rest: the next look goes past it, and ends.
            if len(due) < limit or not tasks or len(stuck) > MOST_STUCK:
                return seen

    async def _beat_if_late(self) -> None:
        # This process was paused (a suspended machine, SIGSTOP), and its own leases may have lapsed
        # with nobody lost: they are renewed before anything is taken away. Where another server has
        # taken a task over meanwhile, its fence has moved, and the renewal is refused.
        now_ms = self._uptime_ms()
        if self._swept_ms is not None and now_ms - self._swept_ms > self._late_ms:
            await self._dispatcher.beat()
        self._swept_ms = now_ms

    async def run(self) -> None:
        while True:
            troubles = self._dispatcher.troubles
            try:
                await self.sweep()
            except Exception as error:  # the ledger is away: what is due stays due
                log.warning("sweep failed", error=repr(error))
                troubles.failed("alarm", error)
            else:
                troubles.went_well("alarm")
            await asyncio.sleep(self._every_ms / 1000)
