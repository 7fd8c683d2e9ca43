"""What a worker reads and answers on Redis streams, in the words of each of the two protocols.

The workers' protocol has one stream for all. Agents' services each read their own, if the server
knows them by their declaration, or else the common stream, of which they take what is theirs.
Decides nothing about tasks; streams.py reads, beats and settles alike for both.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from onward.client.execution import Ended
from onward.faults import Fault, transient
from onward.wire.streams import (
    AGENTS_PREFIX,
    COMPLETED,
    CREATE,
    DEAD_LETTERS,
    FAILED,
    RESULTS,
    TASKS,
    WORKERS_GROUP,
    Fields,
    own_stream,
)
from onward.wire.times import iso


class StreamPlace(NamedTuple):
    """Where a worker reads: a stream, in one of its groups."""

    stream: str
    group: str
    service: str | None = None  # that this group is of, where others read the stream, too


class ResultEntry(NamedTuple):
    stream: str
    fields: Mapping[str, str]


class StreamWords(Protocol):
    """One protocol, from a worker's side."""

    via: str  # how the services are declared

    @property
    def places(self) -> Sequence[StreamPlace]: ...

    def opened(self, fields: Fields) -> Fields:
        """An entry in the words of the workers' protocol."""
        ...

    def answer(self, fields: Fields, ended: Ended, worker: str, took_ms: int) -> ResultEntry: ...

    def unserved(self, fields: Fields, fault: Fault, worker: str) -> ResultEntry | None:
        """To a task that no service here does; None: it is for another one, and is let go."""
        ...

    def nameless(self, fields: Fields) -> ResultEntry | None:
        """To an entry without a task, which has no answer."""
        ...


class WorkersWords:
    via = "streams"
    places = (StreamPlace(TASKS, WORKERS_GROUP),)

    def opened(self, fields: Fields) -> Fields:
        return fields

    def answer(self, fields: Fields, ended: Ended, worker: str, took_ms: int) -> ResultEntry:
        answer = {
            "task_id": fields["task_id"],
            "worker": worker,
            "finished_at": str(time.time_ns() // 1_000_000),
        }
        if "fence" in fields:
            answer["fence"] = fields["fence"]
        if isinstance(ended, str):
            return ResultEntry(RESULTS, {**answer, "status": "succeeded", "result": ended})
        answer |= {"status": "failed", "error": ended.message, "error_type": ended.kind}
        if ended.kind == "SchemaInvalid":
            answer["retryable"] = "false"
        elif ended.retryable is not None:
            answer["retryable"] = "true" if ended.retryable else "false"
        if ended.retry_after_ms is not None:
            answer["retry_after_ms"] = str(ended.retry_after_ms)
        return ResultEntry(RESULTS, answer)

    def unserved(self, fields: Fields, fault: Fault, worker: str) -> ResultEntry | None:
        stream, answer = self.answer(fields, fault, worker, 0)
        return ResultEntry(stream, {**answer, "released": "true"})

    def nameless(self, fields: Fields) -> ResultEntry | None:
        letter = {
            "task_id": "",
            "tool_name": fields.get("tool_name", ""),
            "payload": fields.get("payload", ""),
            "error": "an entry without task_id",
            "retry_count": fields.get("retry_count", "0"),
            "failed_at": str(time.time_ns() // 1_000_000),
        }
        return ResultEntry(DEAD_LETTERS, letter)


class ServicesWords:
    via = "agent-stream"

    def __init__(self, services: Iterable[str], *, declared: bool) -> None:
        """`declared`: the server knows these services, and offers each its own on its stream."""
        self._declared = declared
        self.places = tuple(
            StreamPlace(own_stream(name), f"{name}-group")
            if declared
            else StreamPlace(CREATE, f"{name}-group", name)
            for name in services
        )

    def opened(self, fields: Fields) -> Fields:
        try:
            data = msgspec.json.decode(fields.get("data", "{}"), type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        found = {
            "task_id": data.get("task_id"),
            "tool_name": data.get("task_type"),
            "payload": msgspec.json.encode(data.get("params")).decode(),
            **{name: data.get(name) for name in ("fence", "attempt", "traceparent")},
        }
        return {name: str(value) for name, value in found.items() if value is not None}

    def answer(self, fields: Fields, ended: Ended, worker: str, took_ms: int) -> ResultEntry:
        data: dict[str, Any] = {"task_id": fields["task_id"], "duration_ms": took_ms}
        if fields.get("fence", "").isdigit():
            data["fence"] = int(fields["fence"])
        if isinstance(ended, str):
            data |= {"status": "success", "result": msgspec.Raw(ended.encode())}
            return _event(COMPLETED, {**data, "completed_by": worker})
        error: dict[str, Any] = {
            "code": ended.kind,
            "message": ended.message,
            "details": ended.details or {},
            # Said outright: of codes the protocol knows six, and a worker's errors have any name.
            "retryable": transient(ended),
            "status": ended.status,
            "retry_after_ms": ended.retry_after_ms,
        }
        given = {name: value for name, value in error.items() if value is not None}
        return _event(FAILED, {**data, "status": "failed", "error": given, "failed_by": worker})

    def unserved(self, fields: Fields, fault: Fault, worker: str) -> ResultEntry | None:
        return self.answer(fields, fault, worker, 0) if self._declared else None

    def nameless(self, fields: Fields) -> ResultEntry | None:
        return None  # the server sees it too, and makes a dead letter of it


def _event(stream: str, data: Mapping[str, Any]) -> ResultEntry:
    fields = {
        "event_id": str(uuid.uuid4()),
        "event_type": stream.removeprefix(AGENTS_PREFIX),
        "timestamp": iso(time.time_ns() // 1_000_000),
        "data": msgspec.json.encode(data).decode(),
    }
    return ResultEntry(stream, fields)
