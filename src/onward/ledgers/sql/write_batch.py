"""One write on its way: the asks that come with it, what they claimed, which queues became ready.

Holds what the steps of a plan share. How tasks are numbered and counted, and how a lane's head is
taken, is each database's own: SQLite knows its counts, since it is the file's only writer; Postgres
has many writers, numbers rows by sequences and adds up what each transaction has changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TypeAlias, TypeVar

import msgspec

from onward.core.contract import Ask, Move, Submission, Want
from onward.core.limits import Bound
from onward.core.task import (
    FINAL_EVENTS,
    QUEUED,
    RUNNING,
    Claimed,
    Instant,
    Note,
    State,
    Task,
    TaskId,
    encode,
)
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.turns import Room, Waiting

T = TypeVar("T")
Plan: TypeAlias = Generator[Step, list[Row], T]  # yields statements and gets their rows

FOREVER = 9_000_000_000_000_000  # later than any clock
TallyKey = tuple[str, str, str, int]  # queue, state, and of queued tasks lane and priority
LaneKey: TypeAlias = tuple[str, int, str]  # queue, priority, lane
EventRow = tuple[int, int, int, str, Instant, str | None, int | None]

CLAIMED = Claimed.__struct_fields__[:-2]
_claimed_fields = attrgetter(*CLAIMED)


def driven(plan: Plan[T], run: Callable[[Step], list[Row]]) -> T:
    """Carry a plan out where a statement returns at once."""
    try:
        step = next(plan)
        while True:
            step = plan.send(run(step))
    except StopIteration as done:
        result: T = done.value
        return result


class WriteBatch(ABC):
    watching = False  # whether it wants to know of every task that comes or goes

    def __init__(self, asks: Sequence[Ask], now: Instant) -> None:
        self.now = now
        self.asks = asks
        self.claimed: list[Claimed] = []
        self.awake: set[str] = set()  # queues in which something became ready
        self.answered: set[TaskId] = set()
        self.ended: set[TaskId] = set()  # batches of which a task has ended
        self.aside: set[TaskId] = set()  # whose moves have texts that are kept elsewhere
        self.events: list[EventRow] = []
        self.changes: dict[TallyKey, int] = {}  # of counts
        self.queued: dict[str, int] = {}  # the same of queued tasks, by queue alone
        self._left = {id(ask): ask.limit for ask in asks}
        self._by_queue: dict[str, list[Ask]] = defaultdict(list)
        for ask in asks:
            for queue in dict.fromkeys(want.queue for want in ask.wants):
                self._by_queue[queue].append(ask)

    # Free slots.

    def give(self, ask: Ask, tasks: Sequence[Claimed]) -> None:
        self._left[id(ask)] -= len(tasks)
        self.claimed += tasks

    def idle_queues(self, submissions: Sequence[Submission]) -> set[str]:
        """Those of these for which a slot is left."""
        if not self.asks:
            return set()
        queues = {one.task.queue for one in submissions}
        return {queue for queue in queues if self._has_slot(queue)}

    def _has_slot(self, queue: str) -> bool:
        """None that bounds hold on: what comes there is claimed, or it would pass them."""
        asks = [ask for ask in self._by_queue[queue] if self._left[id(ask)] > 0]
        bounds = (want.bounds for ask in asks for want in ask.wants if want.queue == queue)
        return bool(asks) and not any(bounds)

    def take_slot(self, queue: str) -> Ask | None:
        """An ask with a free slot for a task of this queue; the slot is used up."""
        asks = self._by_queue.get(queue)
        while asks:
            if self._left[id(asks[0])] > 0:
                self._left[id(asks[0])] -= 1
                return asks[0]
            asks.pop(0)
        return None

    # Counts and events.

    def count(self, queue: str, state: State, lane: str, priority: int, change: int) -> None:
        key: TallyKey = (queue, state, "", 0)
        if state is QUEUED:
            key = (queue, state, lane, priority)
            self.queued[queue] = self.queued.get(queue, 0) + change
        self.changes[key] = self.changes.get(key, 0) + change

    def write(self, tid: int, last: int, generation: int, notes: Sequence[Note]) -> None:
        """Events of one task; `last` is its count of events with these."""
        n = last - len(notes)
        for type_, data in notes:
            n += 1
            final = generation if type_ in FINAL_EVENTS else None
            self.events.append((tid, n, generation, type_, self.now, data, final))

    # What each database does its own way.

    @abstractmethod
    def read_depths(self, capped: Collection[str], others: Collection[str]) -> Plan[None]:
        """Before `depth` is asked for one of these queues. That of a capped one must hold until
        this batch is committed, whichever server writes to it meanwhile.
        """

    def lock(self, names: Sequence[str]) -> Plan[None]:
        """Until this batch is committed no other server gets past this with one of these names."""
        yield from ()

    @abstractmethod
    def depth(self, queue: str) -> int:
        """How many are queued there, with what this batch has changed."""

    @abstractmethod
    def take(self, ask: Ask) -> Plan[Sequence[tuple[Want, Sequence[Row]]]]:
        """Claim from the heads of lanes: tid, events, mail, place, and what a Claimed has."""

    # Turns and bounds.

    @abstractmethod
    def look(self, wants: Sequence[Want], waiting: Waiting) -> Plan[None]:
        """What the next of these wait for."""

    @abstractmethod
    def room(self, bounds: Sequence[Bound], partition: str) -> Plan[Room]:
        """How much is left of these."""

    @abstractmethod
    def came(self, task: Task) -> None:
        """It is written; it has a partition, or is watched for."""

    @abstractmethod
    def joined(self, lane: LaneKey, partition: str) -> None:
        """A task of this partition is queued now."""

    @abstractmethod
    def went(self, move: Move, lane: LaneKey, type_: str, partition: str, *, again: bool) -> None:
        """A move was applied. `again`: in strict order, and started before."""

    @abstractmethod
    def forgot(self, rates: Sequence[Row]) -> None:
        """These rates are paid off long since."""

    @abstractmethod
    def new_tasks(self, tasks: Sequence[Task]) -> Plan[Sequence[int]]:
        """Insert them; returns their row numbers."""

    @abstractmethod
    def places(self, count: int) -> Iterable[int]:
        """New ends of a lane, in order."""

    def may_go_aside(self, names: Sequence[str]) -> Sequence[int]:
        """Which of these columns may hold texts that are kept elsewhere."""
        return ()

    def set_aside(self, move: Move, values: list[object], columns: Sequence[int]) -> None:
        """Replace what is kept elsewhere; `aside` knows the task from then on."""
        raise NotImplementedError

    def moved(self, move: Move, tid: int) -> None:
        """A move of a task in `aside` was applied."""
        raise NotImplementedError

    def purged(self, tids: Sequence[int]) -> Plan[None]:
        """These rows are gone."""
        yield from ()

    @abstractmethod
    def close(self) -> Plan[None]:
        """All is done: write the events, and let the counts count."""


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
