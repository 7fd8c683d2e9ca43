"""The agents' streams (S2): each task is in an envelope, read by every service and done by one.

Decides what an envelope holds and which errors are retried. On the common stream a service picks
its own types out, and acknowledges the rest unread; on a service's own stream all is for it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from onward.core import strict_json
from onward.core.errors import Invalid
from onward.core.outcome import Failed, Outcome
from onward.core.policy import TRANSIENT
from onward.core.task import Claimed, Instant, Json, Note, Priority, Task, encode
from onward.core.trace import stored
from onward.faults import Fault, bounded_delay
from onward.wire.streams import (
    AGENTS_PREFIX,
    COMPLETED,
    CREATE,
    DEAD,
    FAILED,
    TIMEOUT,
    Fields,
    own_stream,
)
from onward.wire.times import iso
from onward.workers.streams.dialects import (
    ORIGIN,
    StreamAnswer,
    StreamDialect,
    count,
    is_id,
    kept,
    succeeded,
    trace_field,
)

DAY_MS = 24 * 3_600_000
LONGEST_SESSION = 128
LONGEST_TIMEOUT_S = 10 * 365 * 24 * 3600
USUAL_TIMEOUT_S = 300  # where none is set: a figure for readers of the stream; it ends no task
ANSWERED = "task.answered"

OWN_GROUP, AGENTS_GROUP = "onward", "agent-group"

_JSON = frozenset({"params", "result", "error"})  # kept as JSON even where they are texts
_WORDS = {priority: priority.name.lower() for priority in Priority}
_PRIORITIES = {word: priority for priority, word in _WORDS.items()}


def _opened(fields: Fields) -> Fields:
    try:
        data = msgspec.json.decode(fields.get("data", "{}"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {
        name: value if isinstance(value, str) and name not in _JSON else encode(value)
        for name, value in data.items()
        if value is not None or name in _JSON
    }


def _entry(claimed: Claimed, task: Task | None) -> Fields:
    data = {
        "task_id": claimed.id,
        "task_type": claimed.type,
        "params": msgspec.Raw(claimed.payload.encode()),
        "session_id": None if task is None else task.session,
        "timeout": (None if task is None else timeout_s(task)) or USUAL_TIMEOUT_S,
        "priority": _WORDS[Priority.NORMAL if task is None else task.priority],
        "created_by": "agent",
        "fence": claimed.fence,
        "attempt": claimed.attempt,
        **trace_field(claimed),
    }
    return envelope(CREATE, f"{claimed.id}:{claimed.fence}", claimed.created_at, data)


def timeout_s(task: Task) -> int | None:
    """None: it has passed, and the ledger knows it no more."""
    if task.expires_at is None:
        return None if task.overdue else USUAL_TIMEOUT_S
    return -((task.created_at - task.expires_at) // 1000)


def _answer(stream: str, fields: Fields) -> StreamAnswer | None:
    task = fields.get("task_id", "")
    if not is_id(task) or fields.get("origin") == ORIGIN:
        return None
    by = fields.get("completed_by") or fields.get("failed_by") or ""
    fence = count(fields.get("fence", "")) or None
    return StreamAnswer(task, fence, by, _outcome(stream, fields))


def _outcome(stream: str, fields: Fields) -> Outcome:
    # Written only with the end itself: it marks an end that is on these streams already.
    notes: tuple[Note, ...] = ((ANSWERED, encode({"stream": stream})),)
    if stream == COMPLETED:
        return msgspec.structs.replace(succeeded(fields.get("result", "null")), notes=notes)
    return Failed(_fault(fields.get("error", "null")), notes=notes)


def _adopt(fields: Fields, now: Instant) -> Task | None:
    task, session = fields.get("task_id", ""), fields.get("session_id", "")
    if not is_id(task):
        return None
    timeout_s = min(count(fields.get("timeout", "")), LONGEST_TIMEOUT_S)
    has_session = 0 < len(session) <= LONGEST_SESSION and session.isprintable()
    return Task(
        id=task,
        type=fields.get("task_type") or "unknown",
        queue=AGENT_STREAMS.queue,
        profile="session",
        payload=kept(fields.get("params", "null")),
        created_at=now,
        queued_at=now,
        priority=_PRIORITIES.get(fields.get("priority", ""), Priority.NORMAL),
        expires_at=now + timeout_s * 1000 if timeout_s else None,
        session=session if has_session else None,
        fence=count(fields.get("fence", "")),
        overrides=stored(fields.get("traceparent")),
    )


AGENT_STREAMS = StreamDialect(
    name="agent-stream",
    queue="agents",
    tasks=CREATE,
    own_group=OWN_GROUP,
    read=(CREATE, COMPLETED, FAILED),  # none is emptied: the agents read them too
    kept_ms={COMPLETED: DAY_MS, FAILED: DAY_MS, TIMEOUT: DAY_MS, DEAD: 7 * DAY_MS},
    groups=(
        *((stream, OWN_GROUP) for stream in (CREATE, COMPLETED, FAILED)),
        *((stream, AGENTS_GROUP) for stream in (COMPLETED, FAILED, TIMEOUT)),
    ),
    shared=True,
    serves=lambda group: group not in (OWN_GROUP, AGENTS_GROUP),
    opened=_opened,
    entry=_entry,
    answer=_answer,
    adopt=_adopt,
    flaw=lambda fields: None if fields.get("task_type") else "an event without task_type",
    own=own_stream,
)


def envelope(stream: str, of: str, at: Instant, data: Mapping[str, Any]) -> Fields:
    """An event as it stands on a stream; the same event written twice has the same id."""
    made = uuid.UUID(bytes=hashlib.sha256(f"{stream}:{of}".encode()).digest()[:16], version=4)
    return {
        "event_id": str(made),
        "event_type": stream.removeprefix(AGENTS_PREFIX),
        "timestamp": iso(at),
        "data": encode(data),
    }


def _fault(text: Json) -> Fault:
    """`retryable` if the service sets it, else by status; an unknown code is permanent (R-5)."""
    try:
        parsed: Any = strict_json.parse(text.encode())
    except Invalid as refused:
        parsed = f"error: {refused}"
    error: Mapping[str, Any] = parsed if isinstance(parsed, dict) else {"message": parsed}
    code = str(error.get("code") or "Error")
    status, retryable = error.get("status"), error.get("retryable")
    by_status = type(status) is int and 400 <= status <= 599
    if not isinstance(retryable, bool):
        retryable = None if by_status else code in TRANSIENT
    after = error.get("retry_after_ms")
    return Fault(
        kind=code,
        message=str(error.get("message") or "failed"),
        status=status if by_status else None,
        retryable=retryable,
        retry_after_ms=bounded_delay(after) if type(after) is int and after >= 0 else None,
        details=error.get("details"),
    )
