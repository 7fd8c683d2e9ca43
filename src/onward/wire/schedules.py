"""Schedules: work that runs once, at intervals, or by cron."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta

from onward.wire.base import (
    YEAR_MS,
    Body,
    Instant,
    Limit,
    Masked,
    Name,
    PriorityWord,
    Query,
    Retries,
    TimeoutMs,
    Wire,
)

EVERY_MS = 1_000  # no interval is shorter
LATEST = 253_402_300_799_999  # the end of the year 9999, where calendars end
ZONE = "UTC"

# Part of a path: no slash, and nothing that a path would swallow.
ScheduleName = Annotated[
    str,
    Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f/.][^\x00-\x1f\x7f/]*$(?!\n)"),
]


class Missed(StrEnum):
    """What becomes of runs whose time went by while no server was there."""

    SKIP = "skip"
    ONCE = "once"  # one run stands for all of them
    ALL = "all"  # each one, the newest hundred at most


class Overlap(StrEnum):
    ALLOW = "allow"
    SKIP = "skip"  # no run while the last one is not over


class Outcome(StrEnum):
    SUBMITTED = "submitted"
    TRIGGERED = "triggered"  # by a caller, beside its times
    OVERLAPPED = "overlapped"  # the last run was not over
    REFUSED = "refused"  # its work is not accepted any more
    MISSED = "missed"


class ScheduleTimes(Body, frozen=True):
    """When it runs: exactly one of the first three is given."""

    cron: Annotated[str, Meta(max_length=200)] | None = None
    every_ms: Annotated[int, Meta(ge=EVERY_MS, le=10 * YEAR_MS)] | None = None
    run_at: Annotated[int, Meta(ge=0, le=LATEST)] | None = None
    timezone: Annotated[str, Meta(min_length=1, max_length=64)] = ZONE
    missed: Missed = Missed.ONCE
    overlap: Overlap = Overlap.ALLOW


class ScheduleBody(ScheduleTimes, frozen=True):
    """A task of this type, with a payload and terms, or a run of this flow, with params."""

    name: ScheduleName | None = None
    paused: bool | None = None
    type: Name | None = None
    payload: Any = None
    queue: Name | None = None
    priority: PriorityWord | None = None
    max_retries: Retries | None = None
    timeout_ms: TimeoutMs | None = None
    requires_approval: bool | None = None
    session_id: Name | None = None
    flow: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    params: dict[str, Any] | None = None


class RunEntry(Wire, frozen=True):
    """What became of one instant."""

    at: Instant
    outcome: Outcome
    task_id: str | None = None
    reason: str | None = None


class ScheduleView(
    ScheduleBody, frozen=True, kw_only=True, forbid_unknown_fields=False, omit_defaults=False
):
    """A schedule as it stands in a list."""

    name: str
    paused: bool
    description: str  # its times in words
    next_run_at: Instant | None  # None: paused, or over
    last_run_at: Instant | None
    last_task_id: str | None
    last_outcome: Outcome | None
    created_at: Instant
    links: Mapping[str, str]

    @property
    def over(self) -> bool:
        """It will never run again by itself."""
        return self.next_run_at is None and not self.paused


class ScheduleDetail(ScheduleView, frozen=True, kw_only=True):
    """A schedule with its next instants and what became of the last ones."""

    upcoming: tuple[Instant, ...]  # the next first
    history: tuple[RunEntry, ...]  # the newest first


class SchedulePreview(Wire, frozen=True):
    description: str  # its times in words
    upcoming: tuple[Instant, ...]  # the next first
    fault: str | None = None  # what is wrong with its times, which are then none


class ScheduleQuery(Query, frozen=True):
    cursor: Annotated[str, Meta(max_length=128)] = ""  # the last name of the page before
    limit: Limit = 100
    masked: Masked = False


class ScheduleRead(Query, frozen=True):
    masked: Masked = False
