"""What a handler logged: as its worker sends it, and as it is read with its task."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from onward.wire.base import Body, Instant, Number, Query, Wire

MOST_TEXT = 16_384  # characters of a message
MOST_TRACEBACK = 32_768


class LogRecord(Wire, frozen=True, omit_defaults=True):
    """What a handler has logged."""

    at: Instant
    level: Annotated[str, Meta(max_length=64)]
    logger: Annotated[str, Meta(max_length=256)]
    message: Annotated[str, Meta(max_length=MOST_TEXT)]
    attempt: Number
    traceback: Annotated[str, Meta(max_length=MOST_TRACEBACK)] | UnsetType = UNSET


class LogReport(Body, frozen=True):
    fence: Number
    records: Annotated[tuple[LogRecord, ...], Meta(max_length=10_000)]


class LogQuery(Query, frozen=True):
    cursor: (
        Annotated[
            str,
            Meta(
                pattern=r"^[0-9a-f-]{36}:[0-9]{1,6}$(?!\n)",
                description="`next` of the page before",
            ),
        ]
        | None
    ) = None
