"""What a person is asked before a task may run, and what they decided. Records only.

An approval is no table: it is a waiting task with this record beside it (docs/adr/0007). When it
opens and closes is decided in machine.py, and in no other place.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

import msgspec

from onward.core.task import Instant, Json, Note, State, Task, encode

WAITS = "approval"  # what such a task is waiting_for
EXPIRY = "expiry"  # who decided, when nobody did in time


class Status(StrEnum):
    OPEN = "open"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"  # nobody decided in time: the default was applied
    CANCELED = "canceled"  # the task was canceled before anybody decided


class Approval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: Status
    requested_at: Instant
    digest: str  # of the payload that is shown, and of the one that was approved
    # Never shown: else a reader of the masked payload could try short secrets against the digest.
    # "": of one that was asked for before there were any.
    salt: str = ""
    expires_at: Instant | None = None
    default: Literal["approve", "reject"] = "reject"  # what holds when no person decides in time
    reason: str | None = None  # why a person is asked
    by: str | None = None
    comment: str | None = None
    decided_at: Instant | None = None

    def encode(self) -> Json:
        return encode(self)

    def closed(
        self, status: Status, now: Instant, *, by: str | None = None, comment: str | None = None
    ) -> Approval:
        return msgspec.structs.replace(self, status=status, decided_at=now, by=by, comment=comment)

    def digest_of(self, payload: Json) -> str:
        return digest_of(payload, self.salt)

    def requested(self) -> Note:
        data = {"digest": self.digest, "expires_at": self.expires_at, "reason": self.reason}
        return "approval.requested", _told(data)

    def decision(self) -> Json:
        """For the event log: who decided, and, if a person approved, exactly what."""
        approved = self.digest if self.status is Status.APPROVED else None
        return _told({"by": self.by, "comment": self.comment, "digest": approved})

    def reopened(self, payload: Json, now: Instant) -> Approval:
        """The same question again, on the same terms."""
        span = None if self.expires_at is None else self.expires_at - self.requested_at
        return ask(payload, now, expires_ms=span, default=self.default, reason=self.reason)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A person's answer to an open approval, and which one they mean."""

    by: str | None = None
    comment: str | None = None
    generation: int | None = None  # None: whichever is open now
    digest: str | None = None  # None: whatever the payload is now


_decode = msgspec.json.Decoder(Approval).decode


def ask(
    payload: Json,
    now: Instant,
    *,
    expires_ms: int | None = None,
    default: Literal["approve", "reject"] = "reject",
    reason: str | None = None,
    salt: str | None = None,
) -> Approval:
    salt = secrets.token_hex(16) if salt is None else salt
    return Approval(
        status=Status.OPEN,
        requested_at=now,
        digest=digest_of(payload, salt),
        salt=salt,
        expires_at=None if expires_ms is None else now + expires_ms,
        default=default,
        reason=reason,
    )


def approval_of(task: Task) -> Approval | None:
    """None: no approval was ever asked for."""
    if task.approval is not None:
        return _decode(task.approval)
    if not awaited(task):
        return None
    # Not kept, so made anew by each reading: with the same digest.
    return ask(task.payload, task.queued_at or task.created_at, salt="")


def open_approval(task: Task, now: Instant) -> Approval | None:
    """What a person can still decide."""
    asked = approval_of(task) if awaited(task) else None
    if asked is not None and asked.expires_at is not None and asked.expires_at <= now:
        # The sweep has not come yet: past its time the default holds all the same.
        return None
    return asked


def asked_again(
    task: Task, payload: Json, now: Instant, *, guarded: bool = False
) -> Approval | None:
    """What to ask before a replay. None: nothing, or this very payload was approved.

    `guarded`: its service requires an approval by now, whatever held when it was submitted.
    """
    before = approval_of(task)
    if before is None or (guarded and before.default == "approve"):
        return ask(payload, now) if guarded else None
    approved = before.status is Status.APPROVED and before.digest == before.digest_of(payload)
    if approved and task.state is not State.CANCELED:
        return None
    return before.reopened(payload, now)


def closing(task: Task, status: Status, now: Instant) -> dict[str, str | int | None]:
    """What changes when something else ends the task while an approval of it is open."""
    asked = approval_of(task) if awaited(task) and task.approval is not None else None
    if asked is None:
        return {}
    return {"approval": asked.closed(status, now).encode(), "waiting_for": None}


def awaited(task: Task) -> bool:
    return task.state is State.WAITING and task.waiting_for == WAITS


def digest_of(payload: Json, salt: str) -> str:
    return hmac.digest(salt.encode(), payload.encode(), "sha256").hex()


def _told(data: Mapping[str, object]) -> Json:
    return encode({name: value for name, value in data.items() if value is not None})
