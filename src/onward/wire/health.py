"""Whether the server is well, and whether it takes work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import UNSET, UnsetType

from onward.wire.base import Wire

Circuit: TypeAlias = Literal["closed", "open", "half_open"]
Condition: TypeAlias = Literal["healthy", "degraded", "unhealthy", "unknown", "not_configured"]


class Part(Wire, frozen=True):
    """`error` and `warnings` are absent while there is nothing to tell."""

    status: Condition
    error: str | UnsetType = UNSET
    warnings: tuple[str, ...] | UnsetType = UNSET


class WorkersPart(Wire, frozen=True):
    status: Condition
    connected: int
    by_transport: Mapping[str, int]
    error: str | UnsetType = UNSET


class ServiceBreaker(Wire, frozen=True):
    state: Circuit
    since: str
    until: str
    failures: int
    calls: int


class BreakersPart(Wire, frozen=True):
    status: Circuit  # closed, unless the calls of some service are held back
    services: Mapping[str, ServiceBreaker]


class BackgroundPart(Wire, frozen=True):
    status: Condition
    failing: Mapping[str, str]


class Details(Wire, frozen=True):
    ledger: Part
    redis: Part
    workers: WorkersPart
    circuit_breaker: BreakersPart
    background: BackgroundPart


class BreakerSummary(Wire, frozen=True):
    state: Circuit
    open: tuple[str, ...]


class Components(Wire, frozen=True):
    ledger: bool
    redis: bool | None  # None: nothing of this server is on a Redis
    workers: bool
    circuit_breaker: BreakerSummary
    background: bool


class HealthView(Wire, frozen=True):
    status: Literal["healthy", "degraded", "unhealthy"]
    version: str
    components: Components
    details: Details
    timestamp: str


class Readiness(Wire, frozen=True):
    ready: bool
