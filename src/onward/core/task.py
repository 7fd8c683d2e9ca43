"""The nouns: a task, its states, its events and letters.

Nothing here decides anything (that is machine.py) and nothing here stores anything (that is a
backend). Records are msgspec structs because one is made per task on the hot path.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import TypeAlias

import msgspec
import uuid_utils

from onward.faults import Fault, storable_text

TaskId: TypeAlias = str
WorkerId: TypeAlias = str
Instant: TypeAlias = int  # epoch milliseconds
Json: TypeAlias = str  # encoded text; only doors, workers and the flow engine read it
Note: TypeAlias = tuple[str, Json | None]  # an event before it has a place in the log: type, data


class State(StrEnum):
    SCHEDULED = "scheduled"  # not before due_at
    QUEUED = "queued"  # ready for the first worker that claims it
    RUNNING = "running"  # leased to a worker until due_at
    WAITING = "waiting"  # parked until a letter comes, or due_at
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # over, and not kept for a person
    DEAD = "dead"  # over, but kept for a person to replay or abandon
    CANCELED = "canceled"


# For what is compared with them for each task: until Python 3.12 a member that is read from its
# class goes through a slow hook of that class, and costs ten times as much as a module's name.
QUEUED, RUNNING, SUCCEEDED, DEAD = State.QUEUED, State.RUNNING, State.SUCCEEDED, State.DEAD
FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.DEAD, State.CANCELED})
STATES: dict[str, State] = {state.value: state for state in State}


class Lane(StrEnum):
    PRIMARY = "primary"  # new work
    RETRY = "retry"  # work that failed before


class Priority(IntEnum):
    HIGH = 0
    NORMAL = 1
    LOW = 2


# One of these, once per (task, generation): the ledger's unique index holds us to it.
FINAL_EVENTS = frozenset({"task.succeeded", "task.failed", "task.canceled"})


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: TaskId
    type: str
    queue: str  # the one routing key: workers claim queues, never types
    profile: str  # which door's rules hold for it; see policy.py
    payload: Json
    created_at: Instant
    state: State = State.QUEUED
    lane: Lane = Lane.PRIMARY
    priority: Priority = Priority.NORMAL

    fence: int = 0  # how often it has been claimed; heartbeat and settlement must quote it
    rev: int = 0  # raised by every move; a decision taken on an older reading is refused
    generation: int = 1  # raised by a replay
    events: int = 0  # how many events it has written; the next one's `n` is this plus one

    attempt: int = 0  # executions begun in this generation, releases not counted
    failures: int = 0  # times the work itself failed
    retries: int = 0  # times it was scheduled again after failing
    lost: int = 0  # deliveries lost in a row, with a worker that never answered

    run_at: Instant | None = None  # scheduled: not before
    start_by: Instant | None = None  # queued: at most until
    attempt_ms: int | None = None  # one run: at most this long
    expires_at: Instant | None = None  # all together: what happens then depends on the profile
    lease_until: Instant | None = None  # running: no heartbeat until then means lost
    attempt_by: Instant | None = None  # running: this attempt's end
    cancel_by: Instant | None = None  # running: a cancel was asked for; over by then at the latest
    due_at: Instant | None = None  # the one alarm: whichever of the clocks above is next

    queued_at: Instant | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    worker: WorkerId | None = None

    result: Json | None = None
    error: Json | None = None
    fingerprint: str | None = None  # groups dead letters that died of the same thing
    progress: Json | None = None
    journal: Json | None = None  # a parked task's own memory
    bulk: Json | None = None  # the part of that memory which is large and seldom changes
    overrides: Json | None = None  # what the submitter set against the profile

    session: str | None = None
    owner: str | None = None  # the id of the key that submitted it; None: there were no keys
    parent: TaskId | None = None
    key: str | None = None  # idempotency key, in its session; its effects are kept under it
    waiting_for: str | None = None  # waiting: "approval", "event", "timer", "children"
    approval: Json | None = None  # what a person was asked before it may run; see approval.py
    overdue: bool = False
    callback_url: str | None = None  # where its end is posted to

    partition: str = ""  # of its queue: partitions take turns
    strict: bool = False  # within its partition nothing overtakes it, also while it waits to retry
    costs: Json | None = None  # by the name of a rate's limit, where a start does not cost 1
    tags: Json | None = None  # a list of words, sorted
    batch: str | None = None  # the batch that it was handed in with
    unique_key: str | None = None  # of its type and owner; see Unique
    debounce_key: str | None = None  # the same; a newer one takes its place until it has started
    debounce_by: Instant | None = None  # it is put off until then at most
    predecessor: TaskId | None = None  # it waits until that one is over
    successor: TaskId | None = None  # gets a letter when this one is over

    @property
    def occupies(self) -> bool:
        """Whether it counts against the limits of its service: in strict order also while it
        waits to be tried again.
        """
        again = self.state is State.SCHEDULED and self.strict and self.started_at is not None
        return self.state is State.RUNNING or again

    @property
    def offered(self) -> bool:
        """On a transport, and no worker has taken it from there yet: shown as queued."""
        return self.state is State.RUNNING and self.lease_until is None

    @property
    def shown(self) -> State:
        return State.QUEUED if self.offered else self.state


class Claimed(msgspec.Struct, frozen=True):
    """A task that a worker holds: just what is needed to run and settle it."""

    id: TaskId
    worker: WorkerId
    fence: int
    rev: int
    type: str
    queue: str
    profile: str
    payload: Json
    generation: int
    attempt: int
    failures: int
    retries: int
    lost: int
    lane: Lane
    created_at: Instant
    expires_at: Instant | None
    attempt_by: Instant | None
    attempt_ms: int | None
    overrides: Json | None
    parent: TaskId | None
    key: str | None
    journal: Json | None
    bulk: Json | None = None
    owner: str | None = None
    partition: str = ""
    strict: bool = False
    queued_at: Instant | None = None
    started_at: Instant | None = None
    cancel_by: Instant | None = None
    letters: Sequence[Letter] = ()


def as_claimed(task: Task) -> Claimed:
    """Of a task that runs, or is offered: what its worker has of it. Without letters."""
    return Claimed(*[getattr(task, name) for name in Claimed.__struct_fields__[:-1]])


# An attempt, as a settlement or an effect is about: as its worker has it, or as it was read.
Held: TypeAlias = Claimed | Task


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """News for a task: a child's end, a signal."""

    to: TaskId
    name: str
    body: Json


class Event(msgspec.Struct, frozen=True):
    task: TaskId
    n: int  # counts within its task; per-task readers resume by it
    generation: int
    type: str
    at: Instant
    data: Json | None


class Ending(msgspec.Struct, frozen=True):
    """How a task ended: what those who waited for it get."""

    id: TaskId
    state: State
    result: Json | None
    error: Json | None
    at: Instant

    @classmethod
    def of(cls, task: Task) -> Ending:
        return cls(task.id, task.state, task.result, task.error, task.finished_at or 0)


_decode_fault = msgspec.json.Decoder(Fault).decode


def weight(text: object) -> int:
    """How many bytes it takes, at most: one a character, or four of those that are not ASCII."""
    if not isinstance(text, str):
        return 0
    return len(text) if text.isascii() else 4 * len(text)


def is_text(value: object) -> bool:
    """Whether it can be kept as text: half of a surrogate pair cannot."""
    return isinstance(value, str) and (value.isascii() or value == storable_text(value))


def fault_of(error: Json | None) -> Fault | None:
    return None if error is None else _decode_fault(error)


def new_id() -> TaskId:
    return str(uuid_utils.uuid7())


def encode(value: object) -> Json:
    return msgspec.json.encode(value).decode()
