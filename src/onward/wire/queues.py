"""Queues: what waits in each, which workers serve it, and whether it is paused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

from onward.wire.base import Body, Instant, Wire
from onward.wire.limits import LimitUse


class PauseView(Wire, frozen=True):
    since: Instant
    by: str | None = None
    reason: str | None = None


class BreakerView(Wire, frozen=True):
    state: Literal["closed", "open", "half_open"]
    since: Instant
    until: Instant
    by: str
    failures: int = 0
    calls: int = 0


class QueueView(Wire, frozen=True):
    """A queue: what waits, who works, whether it is paused or its breaker is open."""

    name: str
    paused: PauseView | None
    breaker: BreakerView | None  # of its service, once that has been called
    workers: int
    slots: int
    queued: int
    retrying: int  # among those queued
    oldest_ms: int | None  # how long the first of them has waited; None: not looked up, in a list
    states: Mapping[str, int]
    limits: tuple[LimitUse, ...]


class Pause(Body, frozen=True):
    by: Annotated[str, Meta(max_length=200)] | None = None
    reason: Annotated[str, Meta(max_length=1000)] | None = None
