"""Approvals: what a person is asked before a task may run, and what they decide."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from onward.wire.base import Body, Cursor, Instant, Limit, Masked, Name, Query, Text, Wire


class ApprovalView(Wire, frozen=True):
    """A question to a person, and what was decided. Its id is that of the task that waits."""

    id: str
    task_id: str
    type: str
    queue: str
    payload: Any
    status: Literal["open", "approved", "rejected", "expired", "canceled"]
    requested_at: Instant
    expires_at: Instant | None
    default: Literal["approve", "reject"]  # what holds when no one decides in time
    reason: str | None
    by: str | None
    comment: str | None
    decided_at: Instant | None
    digest: str


class Reject(Body, frozen=True):
    by: Name | None = None
    comment: Text | None = None
    digest: Annotated[str, Meta(max_length=64)] | None = None  # of the payload that was shown


class Approve(Reject, frozen=True):
    payload: Any | msgspec.UnsetType = msgspec.UNSET  # instead of the task's own


class ApprovalQuery(Query, frozen=True):
    status: Literal["open", "approved", "rejected", "expired", "canceled", "all"] = "open"
    cursor: Cursor | None = None
    limit: Limit = 100
    masked: Masked = False


class ApprovalRead(Query, frozen=True):
    masked: Masked = False
