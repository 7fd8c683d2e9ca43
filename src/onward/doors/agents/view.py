"""A session's task as agents look it up in Redis: `task:{id}` and `task:{id}:result` (S2-5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from onward.core.phase import phase
from onward.core.task import Instant, Json, State, Task, encode, fault_of
from onward.doors.vocabulary import AGENTS
from onward.faults import Fault
from onward.native.views import PRIORITY_WORDS
from onward.wire.times import iso
from onward.workers.streams.agent_dialect import AGENT_STREAMS, timeout_s

DAY_MS = 24 * 3_600_000
LIVE_MS = 30 * DAY_MS  # keys of tasks that are not over; their end sets a nearer one
CANCELED = Fault(kind="CANCELED", message="the task was canceled")
PRIVATE = ("params", "result", "error")  # sealed where the ledger's own texts are


def shown(task: Task) -> bool:
    """Whether agents look for it."""
    return task.session is not None or task.queue == AGENT_STREAMS.queue


def fields_of(task: Task, now: Instant) -> dict[str, str]:
    """JSON where a value has parts, an empty text where there is none."""
    fault = fault_of(task.error)
    if fault is None and task.state is State.CANCELED:
        fault = CANCELED
    limit = timeout_s(task)
    return {
        "task_id": task.id,
        "task_type": task.type,
        "status": AGENTS[phase(task)],
        "session_id": task.session or "",
        "params": task.payload,
        "result": task.result or "null",
        "error": "null" if fault is None else encode(error_of(fault)),
        "created_at": iso(task.created_at),
        "updated_at": iso(now),
        "completed_at": "" if task.finished_at is None else iso(task.finished_at),
        **({} if limit is None else {"timeout": str(limit)}),
        "priority": PRIORITY_WORDS[task.priority],
    }


def cached(result: str, *, sealed: bool, now: Instant) -> Json:
    """The body of `task:{id}:result`. A sealed result is a text."""
    return encode({"result": result if sealed else raw(result), "cached_at": iso(now)})


def life_ms(task: Task, now: Instant) -> int:
    """How long its keys stay: until a day after the end."""
    return LIVE_MS if task.finished_at is None else task.finished_at + DAY_MS - now


def error_of(fault: Fault) -> Mapping[str, Any]:
    return {"code": fault.kind, "message": fault.message, "details": fault.details or {}}


def raw(text: Json | None) -> msgspec.Raw:
    return msgspec.Raw((text or "null").encode())
