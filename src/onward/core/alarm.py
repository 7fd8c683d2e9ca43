"""The sweep: what the clock does to tasks is decided and applied like everything else.

Several servers may sweep at once: the guard in the ledger lets one move win; there is no leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from onward.core.clock import uptime_ms
from onward.core.coalesce import call_in_halves
from onward.core.contract import POSTPONE_MS
from onward.core.dispatch import Dispatcher
from onward.core.task import FINAL, Instant, Task, TaskId

log = structlog.get_logger("onward.alarm")

BATCH = 256
MOST_POSTPONED_MS = 3_600_000  # a finished task that some reader of the log has not read yet
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
        self._late_ms = dispatcher.lease_ms // 3
        self._looked_ms: int | None = None
        self._steps = dispatcher.clock.steps
        self._postpone_ms = POSTPONE_MS
        # Each renews leases that others hold, and that a server knows of (workers on a stream).
        self.renewals: Sequence[Callable[[], Awaitable[None]]] = ()

    async def sweep(self) -> int:
        """Everything that is due now; returns how many tasks were looked at."""
        seen = 0
        stuck: set[TaskId] = set()
        # What comes due meanwhile is for the next sweep: it would be taken up one by one.
        until = now = await self.now()
        store = self._dispatcher.backend.tasks
        # What was refused may stand before the rest: the next look goes past it, and ends.
        while due := await store.due(now=until, limit=BATCH, without=stuck):
            stuck |= await self.ring(due, now)
            seen += len(due)
            if len(stuck) > MOST_STUCK:
                break
            now = await self.now()
        return seen

    async def ring(self, tasks: Sequence[Task], now: Instant) -> set[TaskId]:
        """These are due; returns those of which nothing came."""
        live = [task for task in tasks if task.state not in FINAL]
        over = [task.id for task in tasks if task.state in FINAL]
        stuck = await self._dispatcher.apply_clock(live, now)
        return {*stuck, *await self._purge(over, now)}

    async def _purge(self, ids: Sequence[TaskId], now: Instant) -> Sequence[TaskId]:
        """Returns those that could not be, perhaps with others."""
        stuck: list[TaskId] = []

        async def purge(part: Sequence[TaskId]) -> Sequence[None]:
            tasks, wait_ms = self._dispatcher.backend.tasks, self._postpone_ms
            gone = await tasks.purge(part, now=now, postpone_ms=wait_ms)
            # While a reader of the log holds all of them, they are not written anew each minute.
            self._postpone_ms = POSTPONE_MS if gone else min(2 * wait_ms, MOST_POSTPONED_MS)
            if gone < len(part):  # of a damaged row neither comes: this sweep must end all the same
                stuck.extend(part)
            return [None] * len(part)

        for id, error in zip(ids, await call_in_halves(purge, ids), strict=True):
            if error is not None:
                self._dispatcher.decisions.undecided(id, error)
                stuck.append(id)
        return stuck

    async def now(self) -> Instant:
        """By which to look for what is due, once the leases held here are renewed if need be."""
        # This process was paused (a suspended machine, SIGSTOP), or time has stepped forward: its
        # own leases may have lapsed with no worker lost. They are renewed before anything is taken
        # away. Where another server has taken a task over meanwhile, its fence has moved, and the
        # renewal is refused. The first look comes after a pause of every server, perhaps: none is
        # held here yet, but a worker on a stream may have gone on, or have answered.
        clock = self._dispatcher.clock
        now, steps, up_ms = clock.now(), clock.steps, self._uptime_ms()
        late = steps != self._steps or (
            self._looked_ms is not None and up_ms - self._looked_ms > self._late_ms
        )
        if late:
            await self._dispatcher.beat()
        if late or self._looked_ms is None:
            for renew in self.renewals:
                await renew()
        self._looked_ms, self._steps = up_ms, steps
        return now

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
