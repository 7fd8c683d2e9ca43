"""Services: which task types each does, with schemas, guards and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from onward.wire.base import Body, Name, Query, Retries, TimeoutMs, Wire
from onward.wire.limits import Concurrency, LimitNames, RateLimit, Rates

PartitionPath = Annotated[str, Meta(min_length=1, max_length=200)]
Via = Literal["any", "streams", "agent-stream"]


class ServiceDeclaration(Body, frozen=True):
    name: Name
    task_types: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=100)]
    schema: Mapping[str, Any] = {}  # JSON Schema of the payload, by task type
    description: Annotated[str, Meta(max_length=4_000)] = ""  # for people and for models
    output: Mapping[str, Any] = {}  # JSON Schema of the result, by task type
    via: Via = "any"
    requires_approval: bool = False
    sensitive: Annotated[tuple[str, ...], Meta(max_length=100)] = ()  # paths in the payload
    timeout_ms: TimeoutMs | None = None
    max_retries: Retries | None = None
    expose: bool = True  # False: no agent is offered a tool for it
    partition_by: PartitionPath | None = None  # where in the payload a task's partition stands
    concurrency: Concurrency | None = None
    rate: Rates = ()
    limits: LimitNames = ()  # that it shares with other services
    encrypt: bool = False  # its tasks rest sealed, where not all do
    compensate: Name | None = None  # the service that undoes a task which is canceled


class ServiceView(Wire, frozen=True):
    """A service as it is declared."""

    name: str
    task_types: tuple[str, ...]
    schema: Mapping[str, Any]
    description: str
    output: Mapping[str, Any]
    via: Via
    requires_approval: bool
    sensitive: tuple[str, ...]
    timeout_ms: int | None
    max_retries: int | None
    expose: bool
    partition_by: str | None
    concurrency: Concurrency | None
    rate: tuple[RateLimit, ...]
    limits: tuple[str, ...]
    encrypt: bool
    compensate: str | None
    declared_by: tuple[str, ...]  # empty: by a release that did not record it


class DeclaredBy(Query, frozen=True):
    by: Literal["operator", "worker"] = "operator"
