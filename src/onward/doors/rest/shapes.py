"""The native shapes: what /api/v2 takes and gives (R-7, N-3). Instants are epoch milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from onward.core.contract import Page
from onward.core.task import Task
from onward.native.views import task_view
from onward.workers.roster import Member

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
Masked = Annotated[bool, Query(description="Show a mask instead of sensitive parts.")]


class Strict(BaseModel):
    # Without the input: an error that is logged would quote a payload.
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class ServiceBody(Strict):
    name: Name
    task_types: Annotated[list[Name], Field(min_length=1, max_length=100)]
    # "schema" is a method of BaseModel's own
    schemas: dict[str, Any] = Field(default_factory=dict, alias="schema")
    via: Literal["any", "streams", "agent-stream"] = "any"
    requires_approval: bool = False
    sensitive: Annotated[list[str], Field(max_length=100)] = []
    timeout_ms: TimeoutMs | None = None
    max_retries: Retries | None = None


class WorkerShape(BaseModel):
    id: str
    transport: str
    queues: list[str]
    slots: int
    connected_at: int
    stand_in: bool
    draining: bool
    busy: int | None  # None: it works for another server, or by itself


class WorkersShape(BaseModel):
    items: list[WorkerShape]
    next: str | None


def native(task: Task) -> Mapping[str, Any]:
    return msgspec.structs.asdict(task_view(task))


def native_page(page: Page[Task]) -> Mapping[str, Any]:
    return {"items": [task_view(task) for task in page.items], "next": page.next}


def native_worker(member: Member, busy: int | None) -> Mapping[str, Any]:
    return {
        "id": member.id,
        "transport": member.transport,
        "queues": member.queues,
        "slots": member.slots,
        "connected_at": member.since,
        "stand_in": member.stand_in,
        "draining": member.draining,
        "busy": busy,
    }
