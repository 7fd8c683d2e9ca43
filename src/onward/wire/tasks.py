"""Tasks: what the server returns of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.wire.base import Instant, PriorityWord, State, Wire


class TaskView(Wire, frozen=True):
    id: str
    type: str
    queue: str
    state: State
    phase: str
    payload: Any
    result: Any
    error: Any
    attempt: int
    generation: int
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    progress: float | None
    progress_message: str | None
    priority: PriorityWord
    worker: str | None
    run_at: Instant | None
    failures: int
    retries: int
    session_id: str | None
    parent_id: str | None
    idempotency_key: str | None
    links: Mapping[str, str]
