"""Tasks: what the server shows of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.wire.base import Instant, Masked, Query, WaitMs, Wire

_OVER = frozenset({"succeeded", "failed", "dead", "canceled"})


class TaskView(Wire, frozen=True):
    id: str
    type: str
    queue: str
    state: str
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
    priority: str
    worker: str | None
    run_at: Instant | None
    failures: int
    retries: int
    session_id: str | None
    parent_id: str | None
    idempotency_key: str | None
    links: Mapping[str, str]

    @property
    def over(self) -> bool:
        return self.state in _OVER

    @property
    def reason(self) -> str:
        """Why it failed, in one line."""
        if isinstance(self.error, dict):
            return str(self.error.get("message") or self.error.get("kind") or "")
        return str(self.error or "no reason was given")


class Wait(Query, frozen=True):
    wait_ms: WaitMs = 0


class TaskRead(Wait, frozen=True):
    masked: Masked = False
