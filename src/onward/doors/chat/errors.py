"""Errors as OpenAI's clients read them (N-6).

The official client silently sends 408, 409, 429 and 5xx again; `x-should-retry` says whether that
is safe. A worker that is rate limited has done nothing: that is sent again, after its time.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from onward.core.errors import Forbidden, Invalid, NoWorker, QueueFull, TooBusy, Unauthorized
from onward.core.policy import error_class
from onward.doors.refusal import ErrorStyle, Refusal
from onward.errors import OnwardError
from onward.faults import Fault

PREFIXES = ("/v1",)
RETRY_SAFE = {"x-should-retry": "true", "retry-after": "1"}
ONCE = {"x-should-retry": "false"}
RATE_LIMITED = "RateLimitError"
CODES = {Unauthorized.code: "invalid_api_key", Forbidden.code: "insufficient_scope"}  # OpenAI's
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
    code = None if refusal.code == Invalid.code else CODES.get(refusal.code, refusal.code)
    return ChatErrorBody(ChatError(refusal.message, kind, code=code))


def failure(message: str, kind: str = "server_error", code: str | None = None) -> ChatErrorBody:
    return ChatErrorBody(ChatError(message, kind, code=code))


def failed(message: str, fault: Fault | None) -> tuple[int, ChatErrorBody, Mapping[str, str]]:
    """The status, body and headers of a task that failed: a 4xx of the worker is the caller's."""
    status = None if fault is None else fault.status
    if fault is None or not (status and 400 <= status < 500):
        limited = fault is not None and error_class(fault) == RATE_LIMITED
        status = 429 if limited else 500
    if status != 429:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return status, failure(message, kind), ONCE
    after = None if fault is None else fault.retry_after_ms
    headers = {} if after is None else {"retry-after": str(-(-after // 1000))}
    return status, failure(message, "rate_limit_error", "rate_limit_exceeded"), headers


STYLE = ErrorStyle(ChatErrorBody, _body, _worded)
