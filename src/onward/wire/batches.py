"""Many tasks in one request, and batches: tasks that were handed in together and end together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from onward.wire.base import Body, CallbackUrl, Instant, Name, Query, State, Wire
from onward.wire.problems import Problem
from onward.wire.tasks import Submit, TaskView

MOST_TASKS = 10_000
MOST_BYTES = 32 << 20  # of one request
BatchId = Annotated[str, Meta(min_length=1, max_length=64)]


class BatchTerms(Body, frozen=True):
    """What becomes of the tasks together. With `id` they join a batch that is still open."""

    name: Name | None = None
    on_complete: Submit | None = None
    webhook: CallbackUrl | None = None
    session_id: Name | None = None  # which is notified
    id: BatchId | None = None
    open: bool = False  # more tasks will join it

    def __post_init__(self) -> None:
        first = (self.name, self.on_complete, self.webhook, self.session_id)
        if self.id is not None and any(each is not None for each in first):
            raise ValueError("with id tasks join a batch: its terms were given with the first ones")


class SubmitMany(Body, frozen=True):
    """Each task is taken or refused by itself."""

    tasks: Annotated[tuple[Submit, ...], Meta(max_length=MOST_TASKS)]
    batch: BatchTerms | None = None


class BatchQuery(Query, frozen=True):
    """The terms of a batch whose tasks come as lines (application/x-ndjson); and, of any request,
    whether each task is to be shown.
    """

    full: Annotated[bool, Meta(description="show each task, as GET does")] = False
    name: Name | None = None
    on_complete: Annotated[str, Meta(description="JSON text")] | None = None
    webhook: CallbackUrl | None = None
    session_id: Name | None = None
    id: BatchId | None = None
    open: bool = False


class HandedIn(Wire, frozen=True):
    """One of many: a task, or why there is none."""

    id: str | UnsetType = UNSET
    error: Problem | UnsetType = UNSET
    task: TaskView | UnsetType = UNSET


class HandedInAll(Wire, frozen=True):
    batch: str | None
    items: tuple[HandedIn, ...]  # in the order of the request


class BatchView(Wire, frozen=True):
    id: str
    name: str | None
    total: int  # tasks in it
    states: Mapping[State, int]
    done: int  # how many of them are over
    created_at: Instant
    finished_at: Instant | None
    on_complete: str | None  # the id of the task that was submitted at its end
    owner: str | None
    links: Mapping[str, str]

    @property
    def over(self) -> bool:
        return self.finished_at is not None
