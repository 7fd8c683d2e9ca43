"""The native shapes: what /api/v2 takes and gives (R-7, N-3). Instants are epoch milliseconds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, model_validator

from onward.core.contract import Page
from onward.core.phase import phase
from onward.core.task import Event, Priority, Task
from onward.native.session_keys import as_given

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
Key = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[\x20-\x7e]+$")]
Ms = Annotated[int, Field(ge=0, le=10 * 365 * 24 * 3_600_000)]
TimeoutMs = Annotated[int, Field(gt=0, le=365 * 24 * 3_600_000)]
Retries = Annotated[int, Field(ge=0, le=1000)]
# Exact in every ledger, in Lua and in a browser; what is larger is refused before it gets there.
Number = Annotated[int, Field(ge=0, lt=1 << 53)]
# What `find` of any ledger gives out as a cursor is a number; nobody else's text gets that far.
CURSOR = r"^[0-9]{1,18}$"
Cursor = Annotated[str, Query(pattern=CURSOR)]
is_cursor = re.compile(CURSOR).fullmatch
PRIORITIES = {"high": Priority.HIGH, "normal": Priority.NORMAL, "low": Priority.LOW}
PRIORITY_WORDS = {priority: word for word, priority in PRIORITIES.items()}


class Strict(BaseModel):
    # Without the input: an error that is logged would quote a payload.
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class ApprovalTerms(Strict):
    """On what terms somebody is asked; ours, beyond `requires_approval`."""

    expires_ms: TimeoutMs | None = None
    default: Literal["approve", "reject"] = "reject"
    reason: Annotated[str, Field(max_length=1000)] | None = None

    @model_validator(mode="after")
    def _default_needs_a_time(self) -> ApprovalTerms:
        if self.default == "approve" and self.expires_ms is None:
            raise ValueError("default says what holds after expires_ms: give both")
        return self


class SubmitBody(Strict):
    type: Name
    payload: Any = None
    queue: Name | None = None
    priority: Literal["high", "normal", "low"] = "normal"
    delay_ms: Ms | None = None
    run_at: Number | None = None
    idempotency_key: Key | None = None
    session_id: Name | None = None
    max_retries: Retries | None = None
    timeout_ms: TimeoutMs | None = None
    backoff_ms: Annotated[list[Ms], Field(max_length=100)] | None = None
    requires_approval: bool | None = None
    approval: ApprovalTerms | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> SubmitBody:
        if self.delay_ms is not None and self.run_at is not None:
            raise ValueError("give delay_ms or run_at, not both")
        if self.approval is not None and self.requires_approval is False:
            raise ValueError("approval is given, yet requires_approval is false")
        return self


class RetryBody(Strict):
    payload: Any = None


class BeginEffect(Strict):
    fence: Number


class FinishEffect(Strict):
    fence: Number
    value: Any = None


class ProgressBody(Strict):
    fence: Number
    progress: Annotated[float, Field(ge=0, le=1)]
    message: str | None = None


class ChunkBody(Strict):
    fence: Number
    data: Any = None


class TaskShape(BaseModel):
    id: str
    type: str
    queue: str
    state: str
    phase: str
    payload: Any
    result: Any
    error: dict[str, Any] | None
    attempt: int
    generation: int
    created_at: int
    started_at: int | None
    finished_at: int | None
    progress: float | None
    progress_message: str | None
    priority: str
    worker: str | None
    run_at: int | None
    failures: int
    retries: int
    session_id: str | None
    parent_id: str | None
    idempotency_key: str | None
    links: dict[str, str]


class TasksShape(BaseModel):
    items: list[TaskShape]
    next: str | None


class EventShape(BaseModel):
    n: int
    type: str
    at: int
    data: dict[str, Any] | list[Any] | str | float | bool | None


class EventsShape(BaseModel):
    items: list[EventShape]
    next: str | None


class ExplainShape(BaseModel):
    id: str
    phase: str
    reason: str
    sentence: str
    eta: int | None
    hint: str | None


def native(task: Task) -> Mapping[str, Any]:
    path = f"/api/v2/tasks/{task.id}"
    progress = {} if task.progress is None else msgspec.json.decode(task.progress)
    return {
        "id": task.id,
        "type": task.type,
        "queue": task.queue,
        "state": task.shown,
        "phase": phase(task),
        "payload": msgspec.Raw(task.payload.encode()),
        "result": _raw(task.result),
        "error": _raw(task.error),
        "attempt": task.attempt,
        "generation": task.generation,
        "created_at": task.created_at,
        "started_at": None if task.offered else task.started_at,
        "finished_at": task.finished_at,
        "progress": progress.get("progress"),
        "progress_message": progress.get("message"),
        "priority": PRIORITY_WORDS[task.priority],
        "worker": task.worker,
        "run_at": task.run_at,
        "failures": task.failures,
        "retries": task.retries,
        "session_id": task.session,
        "parent_id": task.parent,
        "idempotency_key": as_given(task.key, task.session),
        "links": {
            "self": path,
            "events": f"{path}/events",
            "explain": f"{path}/explain",
            "cancel": f"{path}/cancel",
            "retry": f"{path}/retry",
        },
    }


def native_page(page: Page[Task], *, brief: bool = False) -> Mapping[str, Any]:
    items = [native(task) for task in page.items]
    if brief:  # a list of megabytes helps nobody who only looks at the rows
        items = [{**item, "payload": None, "result": None} for item in items]
    return {"items": items, "next": page.next}


def native_event(event: Event) -> Mapping[str, Any]:
    data = msgspec.Raw(b"{}") if event.data is None else _raw(event.data)
    return {"n": event.n, "type": event.type, "at": event.at, "data": data}


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())
