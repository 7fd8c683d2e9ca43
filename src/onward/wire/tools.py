"""Tools for agents: their definitions, and what each of them returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from onward.wire.base import Name, Query, Wire
from onward.wire.notifications import Notification

Schema: TypeAlias = Mapping[str, Any]
ToolKind: TypeAlias = Literal["hand_off", "result", "list", "cancel", "call"]
# With commas between; `flow:` before the name of a flow.
ServiceNames: TypeAlias = Annotated[str, Meta(min_length=1, max_length=4_000)]


class ToolsQuery(Query, frozen=True):
    format: Literal["onward", "openai"] = "onward"
    session_id: Name | None = None  # whose tools they are: then no argument of theirs
    services: ServiceNames | None = None  # only the tools of these


class ToolCallQuery(Query, frozen=True):
    session_id: Name | None = None
    services: ServiceNames | None = None  # as they were listed: a tool of another is not found


class ToolView(Wire, frozen=True):
    name: str
    kind: ToolKind
    description: str
    parameters: Schema
    service: str | None
    flow: str | None
    task_types: tuple[str, ...]


class OpenAiFunction(Wire, frozen=True):
    name: str
    description: str
    parameters: Schema


class OpenAiTool(Wire, frozen=True, kw_only=True):
    type: Literal["function"] = "function"
    function: OpenAiFunction


class HandedOff(Wire, frozen=True):
    task_id: str
    acknowledgment_message: str
    status: str
    notifications: tuple[Notification, ...] = ()


class ToolError(Wire, frozen=True):
    code: str
    message: str
    details: Any


class TaskReport(Wire, frozen=True):
    task_id: str
    task_type: str
    status: str
    message: str
    result: Any
    error: ToolError | None
    progress: float | None
    progress_message: str | None
    partial_output: tuple[Any, ...]
    eta_seconds: int | None
    queue_position: int | None
    created_at: str
    completed_at: str | None
    notifications: tuple[Notification, ...] = ()


class TaskSummary(Wire, frozen=True):
    task_id: str
    task_type: str
    status: str
    summary: str
    created_at: str
    completed_at: str | None


class TaskSummaries(Wire, frozen=True):
    tasks: tuple[TaskSummary, ...]
    more: bool
    notifications: tuple[Notification, ...] = ()


class CancelRequested(Wire, frozen=True):
    task_id: str
    status: str
    message: str
    notifications: tuple[Notification, ...] = ()


ToolResult: TypeAlias = HandedOff | TaskReport | TaskSummaries | CancelRequested
