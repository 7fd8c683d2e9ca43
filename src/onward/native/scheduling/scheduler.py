"""The clockwork of schedules: on every server, it submits what is due and moves the schedule on.

No server is elected. Each instant is submitted under a key of its own before the schedule is moved
past it, so two servers, or one that dies in between, make one task of it. Sleeps until the nearest
instant; decides nothing that rules.py could decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend, Key
from onward.core.errors import LedgerUnavailable, NotFound, TooBusy
from onward.core.task import FINAL, Instant, TaskId, new_id
from onward.core.troubles import Troubles
from onward.errors import OnwardError
from onward.native.scheduling import rules
from onward.native.scheduling.rules import Schedule
from onward.native.scheduling.timetable import TOPIC, Timetable
from onward.wire.schedules import Outcome, Overlap, RunEntry

log = structlog.get_logger("onward.schedules")

SCOPE = "schedule"
AT_ONCE = 64  # schedules run side by side
AGAIN_MS = 1_000  # what could not be run is tried again after this
LONGEST_S, SHORTEST_S = 1.0, 0.005

# Submits a schedule's work under this key; returns the task, which is the first one's of the key.
Submit = Callable[[Schedule, Key], Awaitable[TaskId]]


class Scheduler:
    def __init__(
        self, backend: Backend, clock: Clock, timetable: Timetable, submit: Submit
    ) -> None:
        self.timetable = timetable
        self._backend = backend
        self._clock = clock
        self._submit = submit

    async def run(self, troubles: Troubles) -> None:
        async with self._backend.bell.listen(TOPIC) as bell:
            while True:
                try:
                    await self.turn()
                except Exception as error:  # the ledger is away: what is due stays due
                    log.warning("schedules could not be read", error=repr(error))
                    troubles.failed("schedules", error)
                else:
                    troubles.went_well("schedules")
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s()):
                        await bell.wait()

    def _pause_s(self) -> float:
        nearest = self.timetable.nearest
        if nearest is None:
            return LONGEST_S
        return max(SHORTEST_S, min(LONGEST_S, (nearest - self._clock.now()) / 1000))

    async def turn(self) -> int:
        """Run everything that is due; returns how many schedules were looked at."""
        await self.timetable.refresh()
        names = self.timetable.due(self._clock.now())
        for at in range(0, len(names), AT_ONCE):
            await asyncio.gather(*map(self._strike, names[at : at + AT_ONCE]))
        return len(names)

    async def trigger(self, name: str, key: str | None = None) -> TaskId:
        """Run it now, beside its times, also while it is paused; under one key, once."""
        schedule = await self.timetable.find(name)
        text = f"{schedule.id}:trigger:{key or new_id()}"
        task = await self._submit(schedule, Key(SCOPE, text, ""))
        at = self._clock.now()
        await self._note(name, RunEntry(at=at, outcome=Outcome.TRIGGERED, task_id=task))
        return task

    async def _strike(self, name: str) -> None:
        try:
            await self._run_due(name)
        except Exception as error:  # of one schedule: the others are run all the same
            log.warning("schedule not run", schedule=name, error=repr(error))
            self.timetable.put_off(name, self._clock.now() + AGAIN_MS)

    async def _run_due(self, name: str) -> None:
        found = await self.timetable.read(name)
        if found is None:
            return
        schedule, version = found
        now = self._clock.now()
        due = rules.due(schedule, now)
        if due.passed is not None:
            reason = "its time went by while no server was there"
            entry = RunEntry(at=due.passed, outcome=Outcome.MISSED, reason=reason)
            schedule = rules.noted(schedule, entry)
        ran: RunEntry | None = None
        for at in due.runs:
            entry = await self._once(schedule, at)
            schedule = rules.noted(schedule, entry)
            ran = ran if entry.task_id is None else entry
        if not due.runs and due.passed is None:
            return
        moved = await self.timetable.advance(rules.advanced(schedule, now), version, now)
        if not moved and ran is not None:
            # Another server was faster, or a caller has changed it meanwhile; it did run.
            await self._note(name, ran)

    async def _note(self, name: str, entry: RunEntry) -> None:
        with suppress(NotFound):  # removed since: its last task goes on alone
            await self.timetable.change(name, lambda found, _: rules.noted(found, entry))

    async def _once(self, schedule: Schedule, at: Instant) -> RunEntry:
        if schedule.overlap is Overlap.SKIP and not await self._is_over(schedule.last_task_id):
            reason = f"{schedule.last_task_id} is not over"
            return RunEntry(at=at, outcome=Outcome.OVERLAPPED, reason=reason)
        try:
            task = await self._submit(schedule, Key(SCOPE, f"{schedule.id}:{at}", ""))
        except (LedgerUnavailable, TooBusy):
            raise
        except OnwardError as error:
            # Without the message: a refusal may quote the payload.
            log.warning("schedule refused", schedule=schedule.name, code=error.code)
            return RunEntry(at=at, outcome=Outcome.REFUSED, reason=str(error))
        return RunEntry(at=at, outcome=Outcome.SUBMITTED, task_id=task)

    async def _is_over(self, id: TaskId | None) -> bool:
        if id is None:
            return True
        (task,) = await self._backend.tasks.look([id])
        return task is None or task.state in FINAL
