"""A run as a row of the flow centre's table (S4-3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.core.phase import phase
from onward.core.task import State, Task, encode
from onward.doors.vocabulary import FLOWS
from onward.flow.runs import memory_of, node_of, shared_of, start_of
from onward.native.run_log import error_text


def status_of(run: Task) -> str:
    return FLOWS[phase(run)]


def run_row(run: Task) -> Mapping[str, Any]:
    start, memory = start_of(run.payload), memory_of(run)
    held = run.state is State.RUNNING
    return {
        "id": run.id,
        "flow_version_id": start.version,
        "status": status_of(run),
        "params_json": encode(start.params),
        "shared_json": encode(shared_of(run)),
        "current_node_key": node_of(run),
        "last_action": "" if memory is None else memory.last_action,
        "step_count": 0 if memory is None else memory.step_count,
        "retry_state_json": "{}",
        "lease_owner": (run.worker or "") if held else "",
        "lease_expiry": run.lease_until if held else None,
        "request_id": run.key or "",
        "created_at": run.created_at,
        "updated_at": run.finished_at or run.queued_at or run.created_at,
        "error_text": error_text(run.error),
    }
