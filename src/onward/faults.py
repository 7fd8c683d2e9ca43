"""Why an attempt failed: what a worker reports, a ledger stores and a caller reads as `error`."""

from __future__ import annotations

from typing import Any

import msgspec

LONGEST_DELAY_MS = 30 * 24 * 3_600_000  # that a worker may ask for before another try
MOST_MESSAGE = 16_384  # characters of a fault
MOST_DETAILS = 256 << 10  # bytes
PERMANENT = frozenset(
    {"InvalidInput", "SchemaInvalid", "MissingField", "AuthError", "PermissionDenied", "NotFound"}
)
UNKNOWN_SERVICE = "UnknownService"  # the kind of fault with which a worker returns a task


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str
    message: str
    status: int | None = None
    retryable: bool | None = None
    retry_after_ms: int | None = None
    details: Any = None  # JSON. Not `Raw | None`: msgspec would read nothing but null there

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


def transient(fault: Fault) -> bool:
    """The worker's `retryable` first, then the HTTP status, then the name; unknown: try again."""
    if fault.retryable is not None:
        return fault.retryable
    if fault.status is not None and fault.status >= 400:
        return fault.status >= 500 or fault.status in (408, 429)
    return fault.kind not in PERMANENT


def unknown_service(type_: str) -> Fault:
    return Fault(kind=UNKNOWN_SERVICE, message=f"this worker serves no {type_!r}", retryable=True)


def bounded_delay(ms: float) -> int:
    return int(min(max(ms, 0), LONGEST_DELAY_MS))


def storable_fault(fault: Fault) -> Fault:
    """As a ledger can keep it, whatever a handler has put into it."""
    wait_ms = _whole(fault.retry_after_ms)
    return Fault(
        kind=storable_text(fault.kind)[:200],
        message=storable_text(fault.message)[:MOST_MESSAGE],
        status=_whole(fault.status),
        retryable=None if fault.retryable is None else bool(fault.retryable),
        retry_after_ms=None if wait_ms is None else bounded_delay(wait_ms),
        details=_json(fault.details),
    )


def storable_text(value: object) -> str:
    """Its text, without what some ledger cannot keep: half of a surrogate pair, a NUL."""
    return str(value).replace("\0", "?").encode(errors="replace").decode()


def _whole(value: Any) -> int | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 2**53 else 2**53 - 1


def _json(value: Any) -> Any:
    try:
        size = len(msgspec.json.encode(value).decode())
    except Exception:
        return f"a {type(value).__name__}, which is no JSON"
    return value if size <= MOST_DETAILS else f"left out: {size} characters"
