"""Dead letters: tasks that failed for good, in groups of one cause; to replay or to abandon."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from onward.wire.base import (
    Body,
    Cursor,
    Instant,
    Limit,
    Masked,
    Name,
    Query,
    RefusedTask,
    Text,
    Wire,
)
from onward.wire.tasks import TaskView


class DeadGroup(Wire, frozen=True):
    """Tasks that died of the same cause."""

    fingerprint: str
    kind: str
    message: str
    count: int
    first_at: Instant
    last_at: Instant
    types: tuple[str, ...]
    sample: TaskView  # the one that died last
    task_ids: tuple[str, ...]  # the newest few


class DeadLetterQuery(Query, frozen=True):
    """With a fingerprint: the tasks of that group, and not the groups."""

    fingerprint: str | None = None
    type: str | None = None
    queue: str | None = None
    q: Annotated[str, Meta(max_length=200)] | None = None
    cursor: Cursor | None = None
    limit: Limit = 100
    masked: Masked = False


class DeadLetterFilter(Body, frozen=True):
    """All of it must hold; an empty filter is every dead letter."""

    fingerprint: Name | None = None
    type: Name | None = None
    queue: Name | None = None
    q: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class Abandon(Body, frozen=True):
    ids: Annotated[tuple[Name, ...], Meta(max_length=10_000)] | None = None
    filter: DeadLetterFilter | None = None
    dry_run: bool = False
    reason: Text | None = None  # for the audit

    def __post_init__(self) -> None:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("give ids or filter, and not both; an empty filter means all")


class Replay(Abandon, frozen=True):
    payload: Any | msgspec.UnsetType = msgspec.UNSET  # instead of each task's own
    # A JSON merge patch (RFC 7396) of each task's own payload.
    patch: Any | msgspec.UnsetType = msgspec.UNSET
    rate: Annotated[float, Meta(ge=0.001, le=10_000)] | None = None  # starts a second

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.payload is not msgspec.UNSET and self.patch is not msgspec.UNSET:
            raise ValueError("give payload or patch, not both: patch changes parts of each payload")

    @property
    def mends(self) -> bool:
        return self.payload is not msgspec.UNSET or self.patch is not msgspec.UNSET


class ReplayQuery(Query, frozen=True):
    masked: Masked = False


class Bulk(Wire, frozen=True):
    """What came of a request about many dead letters."""

    matched: int
    refused: tuple[RefusedTask, ...]  # the first 10,000
    refused_count: int


class Mended(Wire, frozen=True):
    id: str
    before: Any
    after: Any


class Replayed(Bulk, frozen=True):
    """What a replay did, or with `dry_run` would do."""

    replayed: int
    until: Instant | None  # when the last one starts, if they start at a rate
    sample: tuple[Mended, ...]  # of a dry run with other payloads: a few, before and after


class Abandoned(Bulk, frozen=True):
    """What was given up, or with `dry_run` would be."""

    abandoned: int
