"""An endpoint's error as a fault: its kind, its status, and when to try again.

Nothing that could contain the API key is passed on: only a bounded message, with the key removed,
and numbers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from onward.faults import Fault, bounded_delay

MOST_TEXT = 300

CUT_OFF = Fault(kind="ServiceUnavailable", message="the endpoint broke off in mid-answer")
EMPTY = Fault(kind="EmptyAnswer", message="the endpoint answered with no text", retryable=True)
FILTERED = Fault(
    kind="ContentFiltered", message="the endpoint will not summarise this text", retryable=False
)
NOT_UNDERSTOOD = Fault(
    kind="BadAnswer", message="the endpoint's answer is no chat completion", retryable=True
)

_KINDS = {
    400: "InvalidInput",
    401: "AuthError",
    403: "PermissionDenied",
    404: "NotFound",
    408: "NetworkTimeout",
    413: "InvalidInput",
    422: "InvalidInput",
    429: "RateLimitError",
    504: "NetworkTimeout",
}


class ErrorInAnswer(ValueError):
    """An error that came inside an answer, after "200 OK" had been sent."""

    def __init__(self, body: Any) -> None:
        super().__init__("the endpoint's answer contains an error")
        self.body = body


def endpoint_fault(error: Exception, key: str) -> Fault:
    """An exception of the openai client, of the connection under it, or our own, as a fault."""
    import httpx2
    import openai

    match error:
        case TimeoutError() | openai.APITimeoutError() | httpx2.TimeoutException():
            return Fault(kind="NetworkTimeout", message="the endpoint did not answer in time")
        case openai.APIStatusError():
            headers = error.response.headers
            text = _text(error.body) or error.response.reason_phrase
            return _by_status(error.status_code, text, key, retry_after_ms(headers))
        case openai.APIConnectionError() | httpx2.TransportError():
            return Fault(
                kind="ServiceUnavailable", message="the connection to the endpoint failed or broke"
            )
        case ErrorInAnswer():
            return _fault_in(error.body, key)
        case openai.APIError() if error.body is not None:
            return _fault_in(error.body, key)
        case _:
            return NOT_UNDERSTOOD


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """When to try again: a number of seconds or a date, measured by the endpoint's own clock."""
    header = headers.get("retry-after-ms")
    scale = 1
    if header is None:
        header, scale = headers.get("retry-after"), 1000
    if header is None:
        return None
    try:
        wait_ms = float(header) * scale
    except ValueError:
        until = _moment(header)
        if until is None:
            return None
        wait_ms = (until - (_moment(headers.get("date")) or time.time())) * 1000
    # A NaN is not larger than 0, and so no delay.
    return bounded_delay(wait_ms) if wait_ms > 0 else None


def _moment(date: str | None) -> float | None:
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def _fault_in(body: Any, key: str) -> Fault:
    code = body.get("code") if isinstance(body, Mapping) else None
    status = code if isinstance(code, int) and 400 <= code <= 599 else 502
    return _by_status(status, _text(body), key, None)


def _by_status(status: int, text: str, key: str, wait_ms: int | None) -> Fault:
    kind = _KINDS.get(status) or ("ServiceUnavailable" if status >= 500 else "InvalidInput")
    message = f"the endpoint answered {status}"
    if text:
        # Removed before the text is cut: half a key must not remain.
        message += f": {text.replace(key, '…')[:MOST_TEXT]}"
    return Fault(kind=kind, message=message, status=status, retry_after_ms=wait_ms)


def _text(body: Any) -> str:
    """The error text, in whichever field the endpoint has it."""
    for _ in range(2):
        if isinstance(body, Mapping):
            body = body.get("message") or body.get("error") or body.get("detail")
    return " ".join(body.split()) if isinstance(body, str) else ""
