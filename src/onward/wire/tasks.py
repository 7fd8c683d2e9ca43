"""Tasks: how one is submitted, and what the server shows of it, of its events and of its queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from onward.wire.base import (
    MAX_BODY,
    MOST_LEFT_OUT,
    MOST_TAGS,
    YEAR_MS,
    Body,
    CallbackUrl,
    Cursor,
    Instant,
    Key,
    Limit,
    Masked,
    Ms,
    Name,
    Number,
    Partition,
    Phase,
    PriorityWord,
    Query,
    Retries,
    State,
    Tag,
    TimeoutMs,
    WaitMs,
    Wire,
)
from onward.wire.limits import LimitUse

_OVER = frozenset({"succeeded", "failed", "dead", "canceled"})
_LAST_EVENTS = frozenset(
    {"task.succeeded", "task.failed", "task.canceled", "task.dlq", "task.abandoned"}
)
# What `onward.enqueue` refuses to hand in, and the server to take from there.
TOO_LARGE = f"the submission is larger than {MAX_BODY >> 20} MiB"
# Not a class: the server passes on what is stored, and a client reads a dict.
_FAULT = {
    "type": ["object", "null"],
    "properties": {
        "kind": {"type": "string"},
        "message": {"type": "string"},
        "status": {"type": "integer"},
        "retryable": {"type": "boolean"},
        "retry_after_ms": {"type": "integer"},
        "details": {},
    },
    "required": ["kind", "message"],
}


class ApprovalTerms(Body, frozen=True):
    """On what terms a person is asked to approve a task before it runs."""

    expires_ms: TimeoutMs | None = None
    default: Literal["approve", "reject"] = "reject"  # what holds when no one decides in time
    reason: Annotated[str, Meta(max_length=1000)] | None = None

    def __post_init__(self) -> None:
        if self.default == "approve" and self.expires_ms is None:
            raise ValueError("default says what holds after expires_ms: give both")


class Unique(Body, frozen=True):
    """No second task with this key, of this type and owner, while there is one."""

    key: Key
    while_: Literal["live", "queued", "running"] = msgspec.field(default="live", name="while")
    then: Literal["return", "refuse", "replace"] = "return"


class Debounce(Body, frozen=True):
    """While one with this key waits, a newer one takes its place and waits `ms` again."""

    key: Key
    ms: Annotated[int, Meta(ge=1, le=YEAR_MS, description="milliseconds")]
    max_ms: TimeoutMs | None = None  # all together, from the first one on


class Submit(Body, frozen=True):
    type: Name
    payload: Any = None
    queue: Name | None = None
    priority: PriorityWord | None = None  # None: the session's, or else normal
    delay_ms: Ms | None = None
    run_at: Number | None = None
    idempotency_key: Key | None = None
    session_id: Name | None = None
    max_retries: Retries | None = None
    timeout_ms: TimeoutMs | None = None
    backoff_ms: Annotated[tuple[Ms, ...], Meta(max_length=100)] | None = None
    requires_approval: bool | None = None
    approval: ApprovalTerms | None = None
    callback_url: CallbackUrl | None = None
    tags: Annotated[tuple[Tag, ...], Meta(max_length=MOST_TAGS)] = ()
    partition: Partition | None = None  # of its queue; otherwise as its service finds it
    unique: Unique | None = None
    debounce: Debounce | None = None

    def __post_init__(self) -> None:
        if self.delay_ms is not None and self.run_at is not None:
            raise ValueError("give delay_ms or run_at, not both")
        if self.debounce is not None and (self.delay_ms, self.run_at) != (None, None):
            raise ValueError("debounce says when it starts: give no delay_ms and no run_at")
        if self.approval is not None and self.requires_approval is False:
            raise ValueError("approval is given, yet requires_approval is false")


class Retry(Body, frozen=True):
    payload: Any | msgspec.UnsetType = msgspec.UNSET  # instead of the task's own


class TaskView(Wire, frozen=True):
    """A task as its readers see it."""

    id: str
    type: str
    queue: str
    state: State
    phase: Phase
    payload: Any
    result: Any
    error: Annotated[Any, Meta(extra_json_schema=_FAULT)]
    attempt: int
    generation: int
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    progress: float | None
    progress_message: str | None
    priority: PriorityWord
    worker: str | None
    run_at: Instant | None
    failures: int
    retries: int
    session_id: str | None
    owner: str | None  # the id of the key that handed it in
    parent_id: str | None
    idempotency_key: str | None
    callback_url: str | None  # where its end is posted to
    tags: tuple[str, ...]
    batch: str | None  # the batch that it was handed in with
    partition: str | None  # of its queue
    links: Mapping[str, str]

    @property
    def over(self) -> bool:
        """It has ended, however it did."""
        return self.state in _OVER

    @property
    def reason(self) -> str:
        """Why it failed, in one line."""
        if isinstance(self.error, dict):
            return str(self.error.get("message") or self.error.get("kind") or "")
        return str(self.error or "no reason was given")


def task_links(id: str) -> Mapping[str, str]:
    path = f"/api/v2/tasks/{id}"
    return {
        "self": path,
        "events": f"{path}/events",
        "explain": f"{path}/explain",
        "cancel": f"{path}/cancel",
        "retry": f"{path}/retry",
    }


class TaskEvent(Wire, frozen=True):
    """Something that happened to a task; `n` counts from 1 without gaps."""

    n: int
    type: str
    at: Instant
    data: Any

    @property
    def is_last(self) -> bool:
        """The task is over with it."""
        return self.type in _LAST_EVENTS


class Explanation(Wire, frozen=True):
    """Why a task is where it is."""

    id: str
    phase: Phase
    reason: str  # for machines; `sentence` is for people
    sentence: str
    eta: Instant | None
    hint: str | None
    limit: LimitUse | None  # that holds it back


class Wait(Query, frozen=True):
    wait_ms: WaitMs = 0


class TaskRead(Wait, frozen=True):
    masked: Masked = False


LeftOut = Annotated[tuple[str, ...], Meta(max_length=MOST_LEFT_OUT)]


class TaskQuery(Query, frozen=True):
    """Which tasks to list. Tasks named by `id` are looked up, whatever the other fields are."""

    state: tuple[State, ...] = ()
    type: str | None = None
    queue: str | None = None
    session: str | None = None
    owner: str | None = None  # the id of the key that handed them in
    tag: Annotated[tuple[str, ...], Meta(max_length=MOST_TAGS)] = ()  # all of them
    batch: str | None = None
    partition: str | None = None
    created_after: Number | None = None  # from then on
    created_before: Number | None = None
    finished_after: Number | None = None  # from then on
    finished_before: Number | None = None
    not_type: LeftOut = ()  # none of these
    not_queue: LeftOut = ()
    not_session: LeftOut = ()
    not_tag: LeftOut = ()
    not_batch: LeftOut = ()
    not_partition: LeftOut = ()
    q: Annotated[str, Meta(max_length=200)] | None = None
    id: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    brief: Annotated[bool, Meta(description="leave payload and result out")] = False
    masked: Masked = False
    cursor: Cursor | None = None
    limit: Limit = 100


class EventQuery(Query, frozen=True):
    after: Number = 0
    limit: Limit = 1000
    masked: Masked = True
