"""What an open page is sent: a snapshot, then what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from onward.wire.base import Instant, Wire
from onward.wire.queues import BreakerView


class Point(Wire, frozen=True):
    """Rates are a second's; durations are in ms, None where nothing has ended."""

    at: Instant
    created: float = 0
    succeeded: float = 0
    failed: float = 0
    retried: float = 0
    canceled: float = 0
    primary: int = 0  # queued, by lane
    retry: int = 0
    running: int = 0
    scheduled: int = 0
    waiting: int = 0
    run_p50: int | None = None
    run_p95: int | None = None
    wait_p95: int | None = None


class LaneDepths(Wire, frozen=True):
    primary: int
    retry: int


class LiveState(Wire, frozen=True):
    server: str
    version: str
    states: Mapping[str, int]
    lanes: LaneDepths
    retry_share: float
    queues: Mapping[str, Mapping[str, int]]  # the fullest ones, by state
    workers: Mapping[str, int]  # by transport
    slots: int
    draining: int
    busy: int
    breakers: Mapping[str, BreakerView]
    paused: tuple[str, ...]
    approvals: int  # open ones, counted up to a thousand
    operations: int  # under way


EnvironmentColor = Literal["blue", "green", "amber", "red", "purple", "gray"]


class Environment(Wire, frozen=True):
    name: str
    color: EnvironmentColor


class Snapshot(LiveState, frozen=True):
    at: Instant
    environment: Environment | None  # what this server is called, if it has a name
    changed: None
    step_ms: int
    history: Mapping[str, tuple[float | None, ...]]  # of each field of a point, oldest first


class Change(LiveState, frozen=True):
    at: Instant
    changed: tuple[str, ...] | None  # ids of tasks; None: too many to name
    point: Point | None  # None: like the one before


class ServerEvent(Wire, frozen=True):
    """One event of a stream."""

    event: str
    data: Any  # encoded once, for all who listen
    id: str | None = None  # where a reader who comes back goes on
