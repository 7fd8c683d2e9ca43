"""Services: which task types each does, with schemas, guards and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from onward.wire.base import Body, Name, Query, Retries, TimeoutMs, Wire

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


class ServiceView(Wire, frozen=True):
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
    declared_by: tuple[str, ...]  # empty: by a release that did not record it


class DeclaredBy(Query, frozen=True):
    by: Literal["operator", "worker"] = "operator"
