"""The seams: what a ledger, a bell and an executor must be able to do, and the records they use.

A store applies decided moves or refuses them; it never decides. Every store method takes many and
is one round trip and one transaction. tests/contract holds every ledger to this file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

import msgspec

from onward.core.limits import Bound, Usage
from onward.core.outcome import Outcome
from onward.core.task import (
    Claimed,
    Ending,
    Event,
    Held,
    Instant,
    Json,
    Lane,
    Letter,
    Note,
    Priority,
    State,
    Task,
    TaskId,
    WorkerId,
)

T = TypeVar("T")

# Bounds of the unread letters of one task, of those that come by `post`.
MAX_LETTERS = 1_000
MAX_LETTER_BYTES = 8 << 20
PAGE_BYTES = 8 << 20  # of a page of tasks, in texts
LOG_BYTES = 4 << 20  # of a page of events
Gauge = tuple[str, str, float]  # a metric's name, what it is, its value


class Key(msgspec.Struct, frozen=True):
    """An idempotency key, in its scope, with a hash of the body that it was first used for."""

    scope: str
    key: str
    body: str


class UniqueGuard(msgspec.Struct, frozen=True):
    """While a task with the same `unique_key` is in one of these states, no other is taken."""

    states: frozenset[State]
    returns: bool  # the other one's id is the answer, also to who asks again with the same `key`


class Submission(msgspec.Struct, frozen=True):
    """What refuses it is looked at in this order: key, unique, debounce, cap."""

    task: Task
    events: tuple[Note, ...]
    cap: int | None = None  # refuse if the queue would hold more than this
    key: Key | None = None
    unique: UniqueGuard | None = None


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One transition, fully decided. Refused unless state, fence and rev are still as expected."""

    task: TaskId
    expect: State
    fence: int
    rev: int
    to: State
    due_at: Instant | None
    changes: Mapping[str, str | int | None]  # plain fields of Task
    events: tuple[Note, ...]
    due_by: Instant | None = None  # clock-driven moves: refuse if the task is due later by now
    front: bool = False  # to queued: back to the place it was claimed from, not to the end
    ahead: bool = False  # to queued: before all others in its lane
    seen: int | None = None  # letters read so far, deleted here; waiting with more means queued
    spawn: tuple[Submission, ...] = ()  # children, born in the same transaction
    letters: tuple[Letter, ...] = ()  # posted in the same transaction
    keys: tuple[Key, ...] = ()  # from now on they are this task's, unless they are another's
    # What the reader of its letter does about it: applied in the letter's place, unless refused.
    answer: Move | None = None
    # What it is measured by, and whose bounds it frees: the task's own type and queue.
    service: str = ""
    queue: str = ""
    started_at: Instant | None = None  # of the attempt that it ends, if it runs


class Verdict(StrEnum):
    APPLIED = "applied"
    GONE = "gone"  # no such task
    STALE = "stale"  # claimed again since: a settlement is late
    MOVED = "moved"  # same fence, but it changed since it was read: read again, decide again
    EARLY = "early"  # a heartbeat has moved the alarm
    REFUSED = "refused"  # it cannot be applied, now or later; of a letter: too many are unread


APPLIED = Verdict.APPLIED  # as QUEUED, beside its class


class Moved(msgspec.Struct, frozen=True):
    verdicts: Sequence[Verdict]
    awake: frozenset[str]  # queues in which something became ready
    claimed: tuple[Claimed, ...] = ()  # went straight into free slots
    answered: frozenset[TaskId] = frozenset()  # whose answers were applied


class Fate(StrEnum):
    FRESH = "fresh"
    KNOWN = "known"  # this key was used with this body before: `task` is that task's id
    REUSED = "reused"  # this key was used with another body before
    FULL = "full"
    HELD = "held"  # `task` has the same unique key, and is in one of the states that count
    WAITS = "waits"  # `task` has the same debounce key, and has not started
    REFUSED = "refused"  # what the ledger holds under its key cannot be read


FRESH, FULL = Fate.FRESH, Fate.FULL


class Receipt(msgspec.Struct, frozen=True):
    fate: Fate
    task: TaskId
    running: bool = False  # went straight into a free slot


class Want(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some of one lane. Its partitions take turns; in each the oldest task is first.

    A task is claimed only if that keeps every bound that covers it: what `occupies` and is covered
    too is less than `most`, and its `rate` lets it start. What waits for a bound of its partition
    or its type is passed over. What waits for one of all partitions keeps its turn, and the lane
    waits with it: else a start that costs much would never come.
    """

    queue: str
    priority: Priority
    lane: Lane
    limit: int
    bounds: tuple[Bound, ...] = ()


class Ask(msgspec.Struct, frozen=True):
    """One worker's free slots: wants are tried in order until `limit` tasks are found."""

    worker: WorkerId
    limit: int
    wants: tuple[Want, ...]
    lease_ms: int | None = None  # None: the ledger's profile lease is not wanted (offered only)


class Inserted(msgspec.Struct, frozen=True):
    receipts: Sequence[Receipt]
    claimed: Sequence[Claimed]


class LeaseRenewal(msgspec.Struct, frozen=True):
    task: TaskId
    fence: int
    until: Instant  # the lease's new end
    progress: Json | None = None
    notes: tuple[Note, ...] = ()


class LeaseStatus(StrEnum):
    HELD = "held"
    CANCEL = "cancel"  # still yours, but please stop
    LOST = "lost"  # not yours any more


class Without(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks a query leaves out: those of which any one of these holds."""

    type: frozenset[str] = frozenset()
    queue: frozenset[str] = frozenset()
    session: frozenset[str] = frozenset()
    batch: frozenset[str] = frozenset()
    partition: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first. Empty means any."""

    states: frozenset[State] = frozenset()
    offered: bool | None = None  # whether those only offered are among these; None: if running are
    profiles: frozenset[str] = frozenset()
    type: str | None = None
    queue: str | None = None
    session: str | None = None
    owner: str | None = None
    parent: TaskId | None = None
    fingerprint: str | None = None
    waiting_for: str | None = None
    approval: str | None = None  # the status of its approval; "all": it ever needed one
    partition: str | None = None
    batch: str | None = None
    tags: frozenset[str] = frozenset()  # all of them
    created_from: Instant | None = None
    created_before: Instant | None = None
    finished_from: Instant | None = None
    finished_before: Instant | None = None
    without: Without = Without()
    text: str | None = None  # found in id, type, payload or error
    after: str | None = None  # cursor
    limit: int = 100
    most_bytes: int = PAGE_BYTES  # the task that takes a page past this is its last


class Page(msgspec.Struct, Generic[T], frozen=True):
    items: Sequence[T]
    next: str | None  # opaque cursor; of the event log: always set, also at the end
    more: bool = False  # of the event log: this page was cut, by its limit or by its bytes


class OpenApproval(msgspec.Struct, frozen=True):
    """A task that waits for approval, as far as it must be known to say that it waits too long."""

    task: TaskId
    generation: int
    type: str
    asked_at: Instant


BATCH_OVER = "batch_over"  # the name of the letter to a batch

POSTPONE_MS = 60_000  # until what cannot be decided, or purged, yet is looked at again


class TaskStore(Protocol):
    """The ledger."""

    async def insert(
        self, submissions: Sequence[Submission], asks: Sequence[Ask], *, now: Instant
    ) -> Inserted:
        """Write new tasks, and fill the asks from the head of their queues, new tasks included."""
        ...

    async def claim(self, asks: Sequence[Ask], *, now: Instant) -> Sequence[Claimed]: ...

    async def start_at(self, wants: Sequence[Want], *, now: Instant) -> Mapping[str, Instant]:
        """By queue: when the rates of these wants let the next of its queued tasks start.

        Without those whose tasks wait for nothing, or for another task's end. May be too early,
        where a bound of another kind holds as well; never too late.
        """
        ...

    async def usage(
        self, bounds: Sequence[Bound], partition: str, *, now: Instant
    ) -> Sequence[Usage]:
        """Of each of these bounds; of one for `each` partition, in this one."""
        ...

    async def extend(
        self, renewals: Sequence[LeaseRenewal], *, now: Instant
    ) -> Sequence[LeaseStatus]: ...

    async def apply(
        self,
        moves: Sequence[Move],
        asks: Sequence[Ask] = (),
        *,
        now: Instant,
        frees: Collection[str] = (),
    ) -> Moved:
        """Asks are filled as by `insert`: children are the new tasks.

        `frees`: queues in which bounds may let a task start now; other servers learn of them.

        Once all tasks of a batch are over, the last of their moves posts a letter to the task that
        the batch is, in the same transaction: BATCH_OVER.
        """
        ...

    async def post(self, letters: Sequence[Letter], *, now: Instant) -> Moved:
        """A letter to a waiting task wakes it; to any other live task it only lies there.

        A task that waits for approval is not woken: a signal must not pass for an approval.
        """
        ...

    async def due(
        self,
        *,
        now: Instant,
        limit: int,
        without: Collection[TaskId] = (),
        most_bytes: int = PAGE_BYTES,
    ) -> Sequence[Task]:
        """Soonest first. The task that takes them past `most_bytes` is the last: only an answer
        with no task means that there are no more.
        """
        ...

    async def get(self, ids: Sequence[TaskId]) -> Sequence[Task | None]:
        """As they are; raises if a text of one of them does not open here."""
        ...

    async def look(self, ids: Sequence[TaskId]) -> Sequence[Task | None]:
        """The same for lists and for readers of the log, as `find` shows them: in place of a text
        that does not open stands why not, and the other tasks are as they are.
        """
        ...

    async def find(self, query: Query) -> Page[Task]: ...

    async def position(self, task: TaskId) -> int | None:
        """1 is next in its partition. Exact up to 1,000, and 1,001 for anything beyond. None: it
        is not queued.
        """
        ...

    async def counts(self) -> Mapping[tuple[str, Lane, State], int]:
        """How many tasks by queue, lane and state as shown; never counted, always kept.

        Queued tasks are counted by lane; every other task counts as PRIMARY.
        """
        ...

    async def batches(self, ids: Sequence[TaskId]) -> Sequence[Mapping[State, int]]:
        """How many of the tasks that came with each batch are in which state; never counted,
        always kept. What is purged still counts, until the batch itself is.
        """
        ...

    async def oldest(self, queues: Collection[str]) -> Mapping[str, Instant]:
        """For each queue with tasks in it: since when the one that waits longest is queued. Read
        from the heads of its lanes, so its length costs nothing.
        """
        ...

    async def open_approvals(self, limit: int) -> Sequence[OpenApproval]:
        """The oldest requests first, by an index: none of a newer task comes before them."""
        ...

    async def events(
        self, *, after: str, limit: int, task: TaskId | None = None, most_bytes: int = LOG_BYTES
    ) -> Page[Event]:
        """The log after a cursor ("" its start, "$" its end), or one task's after an n.

        The event that takes a page past `most_bytes` is its last.
        """
        ...

    async def purge(
        self, ids: Sequence[TaskId], *, now: Instant, postpone_ms: int = POSTPONE_MS
    ) -> int:
        """Forget finished tasks and their events. Their idempotency keys stay for a day.

        Those that a reader of the log has not read the end of are due again later.
        """
        ...


class Document(msgspec.Struct, frozen=True):
    key: str
    body: Json
    version: int


class Documents(Protocol):
    """Small named JSON: services, the worker roster, projector cursors."""

    async def put(
        self,
        kind: str,
        key: str,
        body: Json,
        *,
        now: Instant,
        expect: int | None = None,  # the version it must have now; 0: it must not exist
        expires_at: Instant | None = None,
    ) -> Document | None: ...

    async def get(self, kind: str, key: str, *, now: Instant) -> Document | None: ...

    async def list(self, kind: str, *, now: Instant) -> Sequence[Document]: ...

    async def delete(self, kind: str, key: str, *, expect: int | None = None) -> bool:
        """`expect`: only if it has this version now."""
        ...


class SessionTally(msgspec.Struct, frozen=True, kw_only=True):
    """One session's tasks, counted. By state only the newest of them, up to COUNTED."""

    session: str
    tasks: int
    states: Mapping[State, int]
    last_at: Instant  # when one of the newest was last submitted, started or finished
    place: int  # where its newest task stands among all: lists go by it


COUNTED = 1_000


class SessionIndex(Protocol):
    """Which sessions have tasks here. Found by an index, never by a walk over all tasks."""

    async def find(self, *, after: str | None, limit: int) -> Page[SessionTally]:
        """The session with the newest task comes first."""
        ...

    async def get(self, session: str) -> SessionTally | None: ...


class Effect(msgspec.Struct, frozen=True):
    """An effect that was begun. `value` is None until it is known to be done."""

    task: TaskId
    fence: int  # of the attempt of that task that began it
    value: Json | None


class Effects(Protocol):
    """Which outside effects a task has had: each name once, over retry, reclaim and replay.

    Kept under the task's idempotency key in the key's scope, or under the task itself if it has no
    key, and forgotten together with that.
    """

    async def begin(self, task: Held, name: str, *, now: Instant) -> Effect | None:
        """None: the caller is to carry it out. Otherwise it was begun before."""
        ...

    async def finish(self, task: Held, name: str, value: Json, *, fence: int) -> bool:
        """It happened. `fence` is the one that began it, even if the task was claimed again since.

        The first value stays. False: no attempt with this fence began it, and nothing changes.
        """
        ...

    async def undo(self, task: Held, name: str) -> None:
        """It did not happen: the next attempt may try. Only what this very attempt began and not
        finished, and only until the next attempt: that one may have been let to repeat it.
        """
        ...


class Listener(Protocol):
    async def wait(self) -> None: ...  # bound it with asyncio.timeout


class Bell(Protocol):
    """A hint that there is something to look at. Losing one costs latency, never correctness."""

    def ring(self, *topics: str) -> None: ...

    def listen(self, *topics: str) -> AbstractAsyncContextManager[Listener]: ...

    def attach(self, peer: PeerEvents) -> None:
        """From now on, pass what happens on other servers on to `peer`."""
        ...


class PeerEvents(Protocol):
    """This server, for the others on its ledger."""

    def on_news(
        self, queues: Sequence[str], tasks: Sequence[TaskId], ended: Mapping[TaskId, Ending | None]
    ) -> None:
        """Queues with new work; tasks with new events; those of them that have ended: how, or None
        where the message does not contain that.
        """
        ...


ENQUEUED = "enqueued"  # the bell's topic


class Enqueued(Protocol):
    """Submissions that lie in the ledger's database, committed with a transaction of a caller."""

    async def read(
        self, limit: int, most_bytes: int, *, after: TaskId, without: Sequence[TaskId]
    ) -> Sequence[tuple[TaskId, Json | None]]:
        """By id, but for those in `without`. None: it has more than `most_bytes`."""
        ...

    async def forget(self, ids: Sequence[TaskId]) -> None: ...


class Backend(Protocol):
    @property
    def shared(self) -> bool:
        """Whether other servers, and workers that are none, may be on this ledger too."""
        ...

    @property
    def redis(self) -> str | None:
        """The URL of the Redis that it is on; None: it is on none."""
        ...

    @property
    def enqueued(self) -> Enqueued | None:
        """None: callers have no transactions in this ledger."""
        ...

    @property
    def tasks(self) -> TaskStore: ...
    @property
    def documents(self) -> Documents: ...
    @property
    def effects(self) -> Effects: ...
    @property
    def sessions(self) -> SessionIndex: ...
    @property
    def bell(self) -> Bell: ...
    @property
    def ahead_ms(self) -> int:
        """How far the ledger's time is ahead of this machine's uptime, as last measured."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """What an operator should change about this ledger; it works all the same."""
        ...

    def gauges(self) -> Sequence[Gauge]:
        """What only this ledger can measure, for /metrics."""
        ...

    async def maintain(self) -> None:
        """Housekeeping, about once a second."""
        ...

    async def close(self) -> None: ...


class Executor(Protocol):
    """What can carry out a claimed task: a socket, a URL, a callable, the flow engine."""

    async def execute(self, task: Claimed) -> Outcome: ...

    def cancel(self, task: Claimed) -> None:
        """Ask this very attempt to stop. The caller does not wait for it."""
        ...


class Projector(Protocol):
    """A reader of the event log with a durable cursor of its own. At least once, in order."""

    @property
    def name(self) -> str: ...

    async def project(self, events: Sequence[Event]) -> None: ...
