"""What was done in the last day, minute by minute: for charts that outlive a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from onward.wire.base import Instant, Query, Wire

DAY_MS = 86_400_000


class SeriesQuery(Query, frozen=True):
    range_ms: Annotated[int, Meta(ge=60_000, le=DAY_MS)] = 3_600_000
    service: Annotated[str, Meta(max_length=255)] | None = None  # only what is done by this one
    queue: Annotated[str, Meta(max_length=255)] | None = None  # whose depth; all, unless given


class SeriesPoint(Wire, frozen=True):
    """One step: how many, how deep at its end, and how long in ms (an estimate by buckets)."""

    at: Instant  # its beginning
    submitted: int | None = None  # of all services only; None: no server counted
    succeeded: int | None = None
    failed: int | None = None
    dead: int | None = None
    canceled: int | None = None
    retried: int | None = None
    queued: int | None = None
    running: int | None = None
    wait_p50: int | None = None
    wait_p95: int | None = None
    run_p50: int | None = None
    run_p95: int | None = None


class HistogramView(Wire, frozen=True):
    """`counts` has one more item than `bounds_ms`: those above the last bound."""

    bounds_ms: tuple[float, ...]
    counts: tuple[int, ...]


class ServiceSeries(Wire, frozen=True):
    """One service over the whole range."""

    name: str
    succeeded: int
    failed: int  # with dead ones
    retried: int
    failure_share: float | None  # of those that succeeded or failed; None: none did
    run_p50: int | None
    run_p95: int | None
    wait_p95: int | None
    ended: tuple[int, ...]  # by step, as `points`


class SeriesView(Wire, frozen=True):
    since: Instant  # the first minute that is known; later than was asked for if servers are young
    until: Instant
    step_ms: int
    points: tuple[SeriesPoint, ...]  # oldest first; a step that no server counted in has no numbers
    totals: Mapping[str, int]
    wait: HistogramView
    run: HistogramView
    services: tuple[ServiceSeries, ...]  # the busiest first
