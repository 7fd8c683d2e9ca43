"""Operations: one verb for all tasks that a filter matches, or that are named."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from onward.wire.base import (
    MOST_LEFT_OUT,
    MOST_TAGS,
    Body,
    Cursor,
    Instant,
    Limit,
    Number,
    Query,
    RefusedTask,
    State,
    Wire,
)

Verb: TypeAlias = Literal["cancel", "retry", "delete"]
Word = Annotated[str, Meta(min_length=1, max_length=512)]
LeftOut = Word | Annotated[tuple[Word, ...], Meta(max_length=MOST_LEFT_OUT)]


class OperationFilter(Body, frozen=True):
    """Which tasks: all that is given must hold. Empty means none; `all` means every one."""

    state: State | Annotated[tuple[State, ...], Meta(max_length=8)] = ()
    type: Word | None = None
    queue: Word | None = None
    partition: Word | None = None
    tag: Word | Annotated[tuple[Word, ...], Meta(max_length=MOST_TAGS)] = ()
    batch: Word | None = None
    session: Word | None = None
    owner: Word | None = None  # the id of the key that handed them in
    q: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
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
    all: bool = False

    def __post_init__(self) -> None:
        if not any(getattr(self, name) for name in self.__struct_fields__):
            raise ValueError("an empty filter matches nothing; all: true means every task")


MOST_IDS = 10_000


class Operate(Body, frozen=True):
    filter: OperationFilter | None = None
    ids: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=MOST_IDS)] | None = None
    dry_run: bool = False
    rate: Annotated[float, Meta(gt=0, le=1_000_000, description="tasks a second")] | None = None

    def __post_init__(self) -> None:
        if (self.filter is None) == (self.ids is None):
            raise ValueError("give a filter or ids, and not both")


class OperationView(Wire, frozen=True):
    """Without an id it was a dry run."""

    action: Verb
    matched: int  # fixed when it was asked for
    done: int
    failed: int
    id: str | UnsetType = UNSET
    state: State | UnsetType = UNSET
    created_at: Instant | UnsetType = UNSET
    finished_at: Instant | UnsetType | None = UNSET
    owner: str | UnsetType | None = UNSET
    filter: OperationFilter | UnsetType = UNSET  # none: its tasks were named
    rate: float | UnsetType = UNSET  # none: as fast as it can
    refused: tuple[RefusedTask, ...] = ()  # the first few of those that failed, and why

    @property
    def over(self) -> bool:
        return self.state in ("succeeded", "failed", "dead", "canceled")


class OperationQuery(Query, frozen=True):
    cursor: Cursor | None = None
    limit: Limit = 100


def words(given: str | tuple[str, ...]) -> tuple[str, ...]:
    """A text or a list, as a list."""
    return (given,) if isinstance(given, str) else given
