"""What the dispatcher door makes of a request: a task of a group, with a timeout within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, NoWorker
from onward.core.task import Ending, State, Task, TaskId, encode, fault_of, new_id
from onward.doors.vocabulary import SYNC_CANCELED, SYNC_ERRORS
from onward.native.caller import Caller
from onward.native.masking import Masking
from onward.services.catalog import FRESH_MS
from onward.services.declarations import Declarations, as_declared
from onward.settings import Settings
from onward.workers.roster import Roster, group_queue

PROFILE = "sync"
TYPE = "dispatch"
OURS = ("group", "timeout", "async")  # addressed to the door; the worker sees the rest
ALARM_SLACK_MS = 2_000  # the alarm says when a task timed out; this is when we stop believing it


class DispatcherDoor:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        declarations: Declarations,
        masking: Masking,
        settings: Settings,
    ) -> None:
        self.dispatcher = dispatcher
        self.settings = settings
        self._roster = roster
        self._declarations = declarations
        self._masking = masking

    def timeout_ms(self, body: Mapping[str, Any]) -> int:
        low, high = self.settings.min_task_timeout_ms, self.settings.max_task_timeout_ms
        if "timeout" not in body:
            return self.settings.task_timeout_ms  # the operator's own, within bounds or not
        asked = body["timeout"]
        if isinstance(asked, bool) or not isinstance(asked, int | float):
            raise Invalid("timeout must be a number of milliseconds", pointer="/timeout")
        return int(min(max(asked, low), high))

    async def task(
        self, caller: Caller, body: dict[str, Any], group: str, *, timeout_ms: int, waits: bool
    ) -> Task:
        payload = {name: value for name, value in body.items() if name not in OURS}
        queue = group_queue(group)
        # By the queue alone: the type is the same for all groups. Not looked for again when it is
        # not known: hardly any group is declared, and this is the busiest door.
        declared = await self._declarations.fitting(queue, queue, payload, missed_ms=FRESH_MS)
        now = self.dispatcher.clock.now()
        task = Task(
            id=new_id(),
            type=TYPE,
            queue=queue,
            profile=PROFILE,
            payload=encode(payload),
            created_at=now,
            owner=caller.key,
            # Who waits counts from here on, queueing included; who polls, from dispatch.
            expires_at=now + timeout_ms if waits else None,
            attempt_ms=None if waits else timeout_ms,
            start_by=None if waits else now + self.settings.queue_age_ms,
        )
        return as_declared(task, declared)

    async def require_worker(self, group: str) -> None:
        if not await self._roster.serves(group_queue(group)):
            raise NoWorker("No worker available")

    async def hand_in(self, task: Task) -> bool:
        """Accept a task whose caller does not wait here; whether it went straight to a worker."""
        receipt = await self.dispatcher.submit(task, cap=self.settings.max_queue_length)
        return receipt.running

    async def hand_in_and_wait(self, task: Task, timeout_ms: int) -> Ending | None:
        _, ending = await self.dispatcher.submit_and_wait(
            task,
            timeout_ms=timeout_ms + ALARM_SLACK_MS,
            cap=self.settings.max_queue_length,
            firm=True,
        )
        return ending

    async def find(self, caller: Caller, task: TaskId) -> Task | None:
        """A task of this door, as long as this door shows it, to those who see it."""
        found = (await self.dispatcher.backend.tasks.get([task]))[0]
        if found is None or found.profile != PROFILE or found.session is not None:
            return None
        if not caller.sees(found):
            return None
        if found.finished_at is not None:
            shown_until = found.finished_at + self.settings.task_result_ttl_ms
            if self.dispatcher.clock.now() >= shown_until:
                return None
        return await self._masking.task(found, caller)


def error_text(state: State, error: str | None) -> str:
    """An ending that is no success, in this door's words."""
    fault = fault_of(error)
    if state is State.CANCELED or fault is None:
        return SYNC_CANCELED
    return SYNC_ERRORS.get(fault.kind, fault.message)
