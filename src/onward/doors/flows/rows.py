"""A run as a row of the flow centre's table (S4-3)."""

from __future__ import annotations

import msgspec

from onward.core.phase import phase
from onward.core.task import Instant, Json, State, Task, TaskId, encode
from onward.doors.vocabulary import FLOWS
from onward.flow.runs import memory_of, node_of, shared_of, start_of
from onward.native.run_log import error_text
from onward.native.session_keys import as_given


def status_of(run: Task) -> str:
    return FLOWS[phase(run)]


class RunRow(msgspec.Struct, kw_only=True):
    id: TaskId
    flow_version_id: str
    status: str
    params_json: Json
    shared_json: Json
    current_node_key: str
    last_action: str
    step_count: int
    retry_state_json: Json
    lease_owner: str
    lease_expiry: Instant | None
    request_id: str
    created_at: Instant
    updated_at: Instant
    error_text: str


def run_row(run: Task, retry_state: Json) -> RunRow:
    start, memory = start_of(run.payload), memory_of(run)
    held = run.state is State.RUNNING
    return RunRow(
        id=run.id,
        flow_version_id=start.version,
        status=status_of(run),
        params_json=encode(start.params),
        shared_json=encode(shared_of(run)),
        current_node_key=node_of(run),
        last_action="" if memory is None else memory.last_action,
        step_count=0 if memory is None else memory.step_count,
        retry_state_json=retry_state,
        lease_owner=(run.worker or "") if held else "",
        lease_expiry=run.lease_until if held else None,
        request_id=as_given(run.key, None, run.owner) or "",
        created_at=run.created_at,
        updated_at=run.finished_at or run.queued_at or run.created_at,
        error_text=error_text(run.error),
    )
