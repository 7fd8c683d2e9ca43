"""Errors as OpenAI's clients read them (N-6).

The official client silently sends 408, 409, 429 and 5xx again; `x-should-retry` says whether that
is safe.
"""

from __future__ import annotations

import msgspec

from onward.core.errors import Invalid, NoWorker, OnwardError, QueueFull, TooBusy
from onward.doors.refusal import ErrorStyle, Refusal

PREFIXES = ("/v1",)
RETRY_SAFE = {"x-should-retry": "true", "retry-after": "1"}
ONCE = {"x-should-retry": "false"}
UNAVAILABLE = frozenset({NoWorker.code, QueueFull.code, TooBusy.code})


class ChatError(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: None = None
    code: str | None = None


class ChatErrorBody(msgspec.Struct, frozen=True):
    error: ChatError


def _worded(error: OnwardError) -> Refusal | None:
    match error:
        case Invalid():
            return Refusal(400, error.code, str(error), headers=ONCE)
        case NoWorker():
            return Refusal(503, error.code, "No worker available", headers=RETRY_SAFE)
        case QueueFull():
            return Refusal(503, error.code, "Queue is full", headers=RETRY_SAFE)
        case TooBusy():
            return Refusal(503, error.code, str(error), headers=RETRY_SAFE)
        case _:
            return None


def _body(refusal: Refusal, _: str) -> ChatErrorBody:
    if refusal.code in UNAVAILABLE:
        return failure(refusal.message, "service_unavailable")
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    code = None if refusal.code == Invalid.code else refusal.code
    return ChatErrorBody(ChatError(refusal.message, kind, code=code))


def failure(message: str, kind: str = "server_error") -> ChatErrorBody:
    return ChatErrorBody(ChatError(message, kind))


STYLE = ErrorStyle(ChatErrorBody, _body, _worded)
