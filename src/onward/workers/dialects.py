"""What entries on a stream look like: one dialect a protocol, as names and two translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from onward.core.outcome import Failed, Outcome, Succeeded
from onward.core.task import Claimed, Fault, Instant, Json, Task, TaskId, encode

Fields = Mapping[str, str]


class Answer(msgspec.Struct, frozen=True):
    task: TaskId
    fence: int | None  # echoed by workers that can
    worker: str
    outcome: Outcome


class Dialect(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def tasks(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def own_group(self) -> str: ...
    @property
    def read(self) -> Sequence[str]:
        """The streams that the server reads in its own group."""
        ...

    @property
    def consumed(self) -> Sequence[str]:
        """Those of them whose entries are nobody else's business."""
        ...

    @property
    def id_field(self) -> str: ...

    def groups(self) -> Sequence[tuple[str, str]]: ...
    def entry(self, task: Claimed) -> Fields: ...
    def answer(self, stream: str, fields: Fields) -> Answer | None: ...
    def adopt(self, fields: Fields, now: Instant) -> Task | None: ...


class StreamProtocol:
    """The task queue protocol v1.2.1 (S1)."""

    name = "streams"
    queue = "streams"
    tasks, results, dead = "stream:task", "stream:result", "stream:dlq"
    group, own_group = "cg:workers", "cg:onward"
    read = (tasks, results, dead)
    consumed = (results,)
    id_field = "task_id"
    ours = "onward"  # `origin` of the dead letters that we write ourselves

    def groups(self) -> Sequence[tuple[str, str]]:
        return ((self.tasks, self.group), *((stream, self.own_group) for stream in self.read))

    def entry(self, task: Claimed) -> Fields:
        limits = [at for at in (task.attempt_by, task.expires_at) if at is not None]
        return {
            "task_id": task.id,
            "tool_name": task.type,
            "payload": task.payload,
            "idempotency_key": task.key or task.id,
            "retry_count": str(task.failures),
            "created_at": str(task.created_at),
            "fence": str(task.fence),
            "attempt": str(task.attempt),
            "deadline_at": str(min(limits)) if limits else "",
        }

    def answer(self, stream: str, fields: Fields) -> Answer | None:
        task = fields.get("task_id")
        if not task or (stream == self.dead and fields.get("origin") == self.ours):
            return None
        fence = fields.get("fence", "")
        return Answer(
            task,
            int(fence) if fence.isdigit() else None,
            fields.get("worker", ""),
            self._outcome(stream, fields),
        )

    def _outcome(self, stream: str, fields: Fields) -> Outcome:
        if stream == self.results and fields.get("status") == "succeeded":
            return Succeeded(_json(fields.get("result", "null")))
        retryable: bool | None = {"true": True, "1": True, "false": False, "0": False}.get(
            fields.get("retryable", "").lower()
        )
        if stream == self.dead:
            retryable = False  # the worker itself has given it up
        kind = fields.get("error_type") or "Error"
        return Failed(Fault(kind=kind, message=fields.get("error", "failed"), retryable=retryable))

    def adopt(self, fields: Fields, now: Instant) -> Task | None:
        task = fields.get("task_id")
        if not task:
            return None
        failures = fields.get("retry_count", "0")
        return Task(
            id=task,
            type=fields.get("tool_name") or "unknown",
            queue=self.queue,
            profile=self.name,
            payload=_json(fields.get("payload", "null")),
            created_at=now,
            queued_at=now,
            key=fields.get("idempotency_key") or None,
            failures=int(failures) if failures.isdigit() else 0,
            retries=int(failures) if failures.isdigit() else 0,
        )


def _json(text: str) -> Json:
    """Text that should be JSON; if it is not, it is kept as a string."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return encode(text)
    return text
