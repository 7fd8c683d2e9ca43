"""What to go easy on: services that fail, queues that are paused, and how many retries wait.

Fed with outcomes by the Dispatcher, weighed once a second. It bounds what is claimed, and never
touches a task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from onward.core import machine
from onward.core.clock import Clock
from onward.core.contract import APPLIED, Backend, Move, Verdict
from onward.core.lanes import RETRY_SHARE, RetryShare
from onward.core.outcome import Failed, Outcome, Succeeded
from onward.core.policy import NEVER, Profile, counts_as_failure
from onward.core.pressure.breaker import BreakerRules, Breakers, Circuit
from onward.core.pressure.limits import BoundedQueues
from onward.core.pressure.pauses import Pauses
from onward.core.slots import Slots
from onward.core.task import Claimed, Lane, State, Task, TaskId, fault_of


class Pressure:
    def __init__(
        self,
        backend: Backend,
        profiles: Mapping[str, Profile],
        clock: Clock,
        slots: Slots,
        *,
        breaker: BreakerRules | None = None,
        retry_share: RetryShare = RETRY_SHARE,
    ) -> None:
        self._store = backend.tasks
        self._profiles = profiles
        self._waiting_retries: Mapping[str, int] = {}  # by queue, as of the last second
        self._slots = slots
        self._bounds: dict[str, int] = {}  # by queue, as its breaker has it
        # By queue whose breaker is half open: the tasks that were held when its probe began.
        self._old: dict[str, frozenset[tuple[TaskId, int]]] = {}
        self.retry_share = retry_share
        self.breakers = Breakers(
            backend.documents,
            clock,
            breaker or BreakerRules(),
            bound=self._bound,
            serves=slots.served,
        )
        self.pauses = Pauses(backend.documents, clock, changed=self._rebound)
        self.limits = BoundedQueues(self._store, clock, slots)
        slots.share_by(self._share)

    def note(self, batch: Sequence[tuple[Claimed, Outcome]], verdicts: Sequence[Verdict]) -> None:
        """Count these outcomes for the breakers of their services."""
        calls: Counter[str] = Counter()
        failures: Counter[str] = Counter()
        for (task, outcome), verdict in zip(batch, verdicts, strict=True):
            profile = self._profiles[task.profile]
            if verdict is not APPLIED or profile.breaker is NEVER:
                continue
            if self._old and self._is_old(task):
                continue
            if isinstance(outcome, Succeeded):
                calls[task.queue] += 1
            elif isinstance(outcome, Failed):
                calls[task.queue] += 1
                failures[task.queue] += counts_as_failure(outcome.fault, profile)
        for queue, count in calls.items():
            self.breakers.record(queue, count, failures[queue])

    def note_lateness(self, task: Task, move: Move) -> None:
        """The clock ended this attempt; if for its own time, that is the service's failure."""
        error = move.changes.get("error")
        fault = fault_of(error) if isinstance(error, str) else None
        late = fault == machine.ATTEMPT_TIMED_OUT and not self._is_old(task)
        if fault is not None and late and counts_as_failure(fault, self._profiles[task.profile]):
            self.breakers.record(task.queue, 1, 1)

    def _is_old(self, task: Claimed | Task) -> bool:
        """Called before its service's probe began: it does not show how the service is now."""
        return (task.id, task.fence) in self._old.get(task.queue, ())

    async def weigh(self) -> None:
        """Once a second."""
        self._waiting_retries = {
            queue: count
            for (queue, lane, state), count in (await self._store.counts()).items()
            if lane is Lane.RETRY and state is State.QUEUED
        }
        await self.breakers.tend()
        await self.pauses.read()

    def _bound(self, queue: str, most: int | None) -> None:
        if most is None:
            self._bounds.pop(queue, None)
        else:
            self._bounds[queue] = most
        reading = self.breakers.readings().get(queue)
        if reading is not None and reading.state is Circuit.HALF_OPEN:
            self._old[queue] = self._slots.held_of(queue)
        else:
            self._old.pop(queue, None)
        self._rebound(queue)

    def _rebound(self, queue: str) -> None:
        paused = queue in self.pauses.paused()
        self._slots.bound(queue, 0 if paused else self._bounds.get(queue))

    def _share(self, queues: Sequence[str]) -> float:
        waiting = self._waiting_retries
        if not waiting:
            return self.retry_share.normal
        return self.retry_share.of(sum(waiting.get(queue, 0) for queue in queues))
