"""Errors of the flow centre: one text, under `error`; a body that makes no sense is 400."""

from __future__ import annotations

from onward.core.errors import Invalid
from onward.doors.refusal import ErrorStyle, PlainError, Refusal
from onward.errors import OnwardError

PREFIXES = ("/flows", "/tasks", "/workers", "/register", "/heartbeat", "/list", "/allocate")


def _worded(error: OnwardError) -> Refusal | None:
    return Refusal(400, error.code, str(error)) if isinstance(error, Invalid) else None


STYLE = ErrorStyle(PlainError, lambda refusal, _: PlainError(refusal.message), _worded)
