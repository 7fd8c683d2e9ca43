"""What an endpoint's refusal means to the ledger: its class, its status, and when to come back.

Nothing that could hold the key goes on: of an error there remain a bounded message, with the key
struck out, and numbers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from onward.core.task import Fault, bounded_delay

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


class ToldInside(ValueError):
    """An error that came inside an answer, after "200 OK" had been sent."""

    def __init__(self, body: Any) -> None:
        super().__init__("the endpoint told of an error inside its answer")
        self.body = body


def fault_told(error: Exception, key: str) -> Fault:
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
        case ToldInside():
            return _told_inside(error.body, key)
        case openai.APIError() if error.body is not None:
            return _told_inside(error.body, key)
        case _:
            return NOT_UNDERSTOOD


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """When to come back: a number of seconds or a date, measured by the endpoint's own clock."""
    said = headers.get("retry-after-ms")
    scale = 1
    if said is None:
        said, scale = headers.get("retry-after"), 1000
    if said is None:
        return None
    try:
        wait_ms = float(said) * scale
    except ValueError:
        until = _moment(said)
        if until is None:
            return None
        wait_ms = (until - (_moment(headers.get("date")) or time.time())) * 1000
    # Not a number is no comparison's friend.
    return bounded_delay(wait_ms) if wait_ms > 0 else None


def _moment(date: str | None) -> float | None:
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def _told_inside(body: Any, key: str) -> Fault:
    said = body if isinstance(body, Mapping) else {}
    code = said.get("code")
    status = code if isinstance(code, int) and 400 <= code <= 599 else 502
    return _by_status(status, _text(body), key, None)


def _by_status(status: int, text: str, key: str, wait_ms: int | None) -> Fault:
    kind = _KINDS.get(status) or ("ServiceUnavailable" if status >= 500 else "InvalidInput")
    message = f"the endpoint answered {status}"
    if text:
        # Struck out before it is cut: half a key is still no message.
        message += f": {text.replace(key, '…')[:MOST_TEXT]}"
    return Fault(kind=kind, message=message, status=status, retry_after_ms=wait_ms)


def _text(body: Any) -> str:
    """The endpoint's own words, wherever it keeps them."""
    for _ in range(2):
        if isinstance(body, Mapping):
            body = body.get("message") or body.get("error") or body.get("detail")
    return " ".join(body.split()) if isinstance(body, str) else ""
