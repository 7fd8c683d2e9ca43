"""Errors of POST /api/openai and GET /api/task/{id}: one text, under `error` (S0-2 … S0-7)."""

from __future__ import annotations

from onward.core.errors import Invalid, NotFound, NoWorker, QueueFull
from onward.doors.refusal import ErrorStyle, PlainError, Refusal
from onward.errors import OnwardError

PREFIXES = ("/api/openai", "/api/task")


def _worded(error: OnwardError) -> Refusal | None:
    match error:
        case Invalid():
            return Refusal(400, error.code, f"Invalid request: {error}")
        case NoWorker():
            return Refusal(503, error.code, "No worker available")
        case QueueFull():
            return Refusal(503, error.code, "Queue is full")
        case NotFound():
            return Refusal(404, error.code, "Task not found")
        case _:
            return None


STYLE = ErrorStyle(PlainError, lambda refusal, _: PlainError(refusal.message), _worded)
