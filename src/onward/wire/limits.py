"""Limits: how many tasks of a service may run at once, and how many may start in a time."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from onward.wire.base import YEAR_MS, Body, Instant, Name, Wire

Most = Annotated[int, Meta(ge=0, le=1_000_000)]
LimitNames = Annotated[tuple[Name, ...], Meta(max_length=16)]


class Concurrency(Body, frozen=True):
    """How many may run at once; `total: 0` pauses."""

    total: Most | None = None
    per_partition: Most | None = None


class RateLimit(Body, frozen=True):
    """In any `per_ms`, what starts costs at most `count` and `burst` together."""

    count: Annotated[int, Meta(ge=1, le=1_000_000)]
    per_ms: Annotated[int, Meta(ge=1, le=YEAR_MS, description="milliseconds")]
    per: Literal["total", "partition"] = "total"
    burst: Annotated[int, Meta(ge=0, le=1_000_000)] = 1
    # What a start costs: a number, or the path in the payload where it stands.
    cost: (
        Annotated[int, Meta(ge=0, le=1_000_000)]
        | Annotated[str, Meta(min_length=1, max_length=200)]
    ) = 1


Rates = Annotated[tuple[RateLimit, ...], Meta(max_length=8)]


class LimitBody(Body, frozen=True):
    concurrency: Concurrency | None = None
    rate: Rates = ()


class LimitUse(Wire, frozen=True):
    """One limit, and how far it is used up."""

    name: str  # of the limit, or of the service whose own it is
    kind: Literal["concurrency", "rate"]
    per: Literal["total", "partition"]
    max: int  # at once, or in `per_ms`
    per_ms: int | None
    used: int | None  # None: it is each partition's, and none was asked for
    next_at: Instant | None  # of a rate: when the next task may start


class LimitView(Wire, frozen=True):
    name: str
    concurrency: Concurrency | None
    rate: tuple[RateLimit, ...]
    services: tuple[str, ...]  # that name it
    in_use: int  # how many tasks that count to it run now
    next_at: Instant | None  # when its rates let the next one start; None: it has none
