"""One write on its way: the asks that come with it, what they claimed, which queues became ready.

Holds what the steps of a write share; reads and writes nothing itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter

import msgspec

from onward.core.contract import Ask
from onward.core.task import RUNNING, Claimed, Instant, Note, Task, TaskId, encode
from onward.ledgers.sqlite.texts import LongTexts

FOREVER = 9_000_000_000_000_000  # later than any clock

_claimed_fields = attrgetter(*Claimed.__struct_fields__[:-2])


class WriteBatch:
    def __init__(self, asks: Sequence[Ask], now: Instant) -> None:
        self.now = now
        self.claimed: list[Claimed] = []
        self.awake: set[str] = set()  # queues in which something became ready
        self.answered: set[TaskId] = set()
        self.texts = LongTexts()
        self.long: set[TaskId] = set()  # whose moves have long texts
        self._left = {id(ask): ask.limit for ask in asks}
        self._by_queue: dict[str, list[Ask]] = defaultdict(list)
        for ask in asks:
            for queue in dict.fromkeys(want.queue for want in ask.wants):
                self._by_queue[queue].append(ask)

    def give(self, ask: Ask, tasks: Sequence[Claimed]) -> None:
        self._left[id(ask)] -= len(tasks)
        self.claimed += tasks

    def take_slot(self, queue: str) -> Ask | None:
        """An ask with a free slot for a task of this queue; the slot is used up."""
        asks = self._by_queue.get(queue)
        while asks:
            if self._left[id(asks[0])] > 0:
                self._left[id(asks[0])] -= 1
                return asks[0]
            asks.pop(0)
        return None


def born_claimed(task: Task, ask: Ask, now: Instant) -> tuple[Task, Claimed]:
    """A task that goes straight into a free slot."""
    until, attempt_by = None, None
    if ask.lease_ms is not None:
        until = now + ask.lease_ms
        attempt_by = None if task.attempt_ms is None else now + task.attempt_ms
    clocks = [at for at in (until, attempt_by, task.expires_at) if at is not None]
    running = msgspec.structs.replace(
        task,
        state=RUNNING,
        fence=1,
        rev=1,
        attempt=1,
        events=task.events + 1,
        worker=ask.worker,
        started_at=now,
        lease_until=until,
        attempt_by=attempt_by,
        due_at=min(clocks, default=FOREVER),
    )
    return running, Claimed(*_claimed_fields(running))


@lru_cache(maxsize=1_024)
def claimed_note(worker: str, attempt: int) -> Note:
    return ("task.claimed", encode({"worker": worker, "attempt": attempt}))
