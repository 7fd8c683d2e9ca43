"""The streams in Redis, of workers (the task queue protocol v1.2.1, S1) and of agents (S2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Fields: TypeAlias = Mapping[str, str]

TASKS, RESULTS, DEAD_LETTERS = "stream:task", "stream:result", "stream:dlq"
WORKERS_GROUP, OWN_GROUP = "cg:workers", "cg:onward"
AGENTS_PREFIX = "agent:stream:"
CREATE, COMPLETED, FAILED, TIMEOUT, DEAD = (
    f"{AGENTS_PREFIX}task.{word}" for word in ("create", "completed", "failed", "timeout", "dlq")
)
RELEASED = "onward:released"  # the consumer that gets what a leaving worker could not finish
CANCEL = "onward:cancel:"  # begins the keys that ask an attempt to stop


def own_stream(service: str) -> str:
    """Of a service of agents: read by it alone (docs/adr/0080)."""
    return f"{CREATE}:{service}"


def cancel_key(task: str, fence: int) -> str:
    """Of one attempt: canceling it must not stop the replay that follows."""
    return f"{CANCEL}{task}:{fence}"


def text_of(value: Any) -> str:
    # Another program's bytes: what is no UTF-8 must not stop the reading of all that follows it.
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def fields_of(raw: Mapping[Any, Any] | None) -> Fields:
    return {text_of(name): text_of(value) for name, value in (raw or {}).items()}
