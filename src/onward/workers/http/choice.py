"""Which worker gets a call: the least busy one, or, if the task says so, the next in turn.

A retry goes where `tries_each` of the task demands.

Knows only what this server has done. After a restart, or on another server, a retry may go to a
worker that was tried before.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import msgspec

from onward.core.policy import overrides_of
from onward.core.task import Claimed, Instant, TaskId, WorkerId
from onward.workers.http.registry import HttpWorker

MOST_TRAILS = 10_000

Burden: TypeAlias = Callable[[HttpWorker], tuple[bool, bool, float, int]]  # the least is chosen


class AttemptTrail(msgspec.Struct):
    """Where the attempts of one task went."""

    generation: int
    turn: int
    worker: WorkerId
    been: set[WorkerId]


class EndpointChoice:
    def __init__(self, slots_of: Callable[[HttpWorker], int]) -> None:
        self._slots_of = slots_of
        self.busy: Counter[WorkerId] = Counter()  # calls of ours under way
        self._last: dict[WorkerId, int] = {}
        self._turn = 0
        self._missed: dict[WorkerId, Instant] = {}
        self._trails: OrderedDict[TaskId, AttemptTrail] = OrderedDict()

    def pick(
        self, task: Claimed, live: Sequence[HttpWorker], tried: Collection[WorkerId]
    ) -> HttpWorker | None:
        """None: no worker is left. `tried` are those that could not be reached just now."""
        left = [worker for worker in live if worker.id not in tried]
        if not left:
            return None
        rules = overrides_of(task.overrides)
        burden = self._turns if rules.in_turn else self._burden
        if rules.tries_each is None:
            chosen = min(left, key=burden)
        else:
            chosen = self._by_trail(task, left, max(1, rules.tries_each), burden)
        self._turn += 1
        self._last[chosen.id] = self._turn
        return chosen

    def missed(self, worker: HttpWorker) -> None:
        """No connection to it: the others come first, until its next heartbeat."""
        self._missed[worker.id] = worker.beat_at

    def forget(self, task: TaskId) -> None:
        self._trails.pop(task, None)

    def keep(self, known: Collection[WorkerId]) -> None:
        """Forgets the workers that are gone."""
        for memory in (self._last, self._missed):
            for worker in memory.keys() - known:
                del memory[worker]

    def _burden(self, worker: HttpWorker) -> tuple[bool, bool, float, int]:
        busy = self.busy[worker.id]
        return (
            self._missed.get(worker.id) == worker.beat_at,
            busy >= self._slots_of(worker),
            busy + worker.load,
            self._last.get(worker.id, 0),
        )

    def _turns(self, worker: HttpWorker) -> tuple[bool, bool, float, int]:
        missed, full, _, last = self._burden(worker)
        return missed, full, 0, last

    def _by_trail(
        self, task: Claimed, left: Sequence[HttpWorker], each: int, burden: Burden
    ) -> HttpWorker:
        turn = (task.attempt - 1) // each
        trail = self._trails.get(task.id)
        if trail is None or trail.generation != task.generation:
            trail = AttemptTrail(task.generation, -1, "", set())
        same = next((worker for worker in left if worker.id == trail.worker), None)
        if trail.turn != turn or same is None:
            fresh = [worker for worker in left if worker.id not in trail.been]
            same = min(fresh or left, key=burden)
        trail.turn, trail.worker = turn, same.id
        trail.been.add(same.id)
        self._trails[task.id] = trail
        self._trails.move_to_end(task.id)
        if len(self._trails) > MOST_TRAILS:
            self._trails.popitem(last=False)
        return same
