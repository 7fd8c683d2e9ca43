"""Errors of /api/v2, and of every path that no other door has: problem details (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus

from msgspec import UNSET

from onward.doors.refusal import ErrorStyle, Refusal
from onward.wire.problems import Problem

PROBLEM = "application/problem+json"


def _body(refusal: Refusal, request_id: str) -> Problem:
    return Problem(
        type=f"urn:onward:error:{refusal.code.replace('_', '-')}",
        title=HTTPStatus(refusal.status).phrase,
        status=refusal.status,
        code=refusal.code,
        detail=refusal.message,
        request_id=request_id,
        hint=refusal.hint or UNSET,
        errors=refusal.faults or UNSET,
    )


STYLE = ErrorStyle(Problem, _body, media=PROBLEM)
