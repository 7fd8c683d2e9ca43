"""What every shape on the wire is made of.

A `Wire` is something that the server returns: a client reads the fields it knows and ignores the
rest, so that a newer server may add some. A `Body` is something that a caller sends: a field that
the server does not know is refused, because the caller meant something by it. A `Query` is what
stands behind the question mark of a path. All three are written once and used by native, doors,
client and command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")

# Exact in every ledger, in Lua and in a browser; what is larger is refused before it gets there.
MAX_NUMBER = (1 << 53) - 1
YEAR_MS = 365 * 24 * 3_600_000
MAX_BODY = 1 << 20  # bytes: of a request, of one task of a batch, of a worker's response

Number = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Instant = Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="epoch milliseconds")]
Ms = Annotated[int, Meta(ge=0, le=10 * YEAR_MS, description="milliseconds")]
TimeoutMs = Annotated[int, Meta(ge=1, le=YEAR_MS, description="milliseconds")]
WaitMs = Annotated[int, Meta(ge=0, le=600_000, description="milliseconds to wait for the end")]
Retries = Annotated[int, Meta(ge=0, le=1000)]
# `$` alone would let a line break through at the end.
NAME = r"^[^\x00-\x1f\x7f]+$(?!\n)"
KEY = r"^[\x20-\x7e]+$(?!\n)"
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=NAME)]
Key = Annotated[str, Meta(min_length=1, max_length=255, pattern=KEY)]
Partition = Annotated[str, Meta(min_length=1, max_length=128, pattern=NAME)]
CallbackUrl = Annotated[
    str, Meta(min_length=1, max_length=512, description="where its end is posted to")
]
Tag = Annotated[str, Meta(min_length=1, max_length=64, pattern=NAME)]
MOST_TAGS = 16
MOST_LEFT_OUT = 16  # values of one field that a list leaves out
Limit = Annotated[int, Meta(ge=1, le=1000, description="how many at most")]
# What `find` of any ledger returns as a cursor is a number; no other text gets that far.
CURSOR = r"^[0-9]{1,18}$(?!\n)"
Cursor = Annotated[str, Meta(pattern=CURSOR, description="`next` of the page before")]
Text = Annotated[str, Meta(max_length=4000)]
Masked = Annotated[bool, Meta(description="show ••• instead of sensitive parts")]
is_cursor: Callable[[str], re.Match[str] | None] = re.compile(CURSOR).fullmatch

State: TypeAlias = Literal[
    "scheduled", "queued", "running", "waiting", "succeeded", "failed", "dead", "canceled"
]
Phase: TypeAlias = Literal[
    "scheduled", "queued", "retry_wait", "retrying", "requeued", "offered", "running", "overdue",
    "canceling", "waiting_approval", "parked", "succeeded", "failed", "dead", "canceled",
]  # fmt: skip
PriorityWord: TypeAlias = Literal["high", "normal", "low"]
NodeStatus: TypeAlias = Literal["running", "ok", "error", "canceled"]


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a response."""


class Body(Wire, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a request."""


class Query(Wire, frozen=True):
    """The parameters of a path; a field that is a list may be given several times."""


class RefusedTask(Wire, frozen=True):
    """One of many tasks that a request was about, and why it was left as it was."""

    id: str
    reason: str


class Page(Wire, Generic[T], frozen=True):
    """A part of a list; `next` is the cursor of the part after it."""

    items: tuple[T, ...]
    next: str | None = None
