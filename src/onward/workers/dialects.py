"""What entries on a stream look like: one dialect a protocol, as names and two translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from onward.core import strict_json
from onward.core.errors import Invalid
from onward.core.outcome import Failed, Outcome, Succeeded
from onward.core.task import Claimed, Fault, Instant, Json, Task, TaskId, encode

Fields = Mapping[str, str]

LONGEST_ID = 255
TOLD_S = 7 * 24 * 3600


class Answer(msgspec.Struct, frozen=True):
    task: TaskId
    fence: int | None  # echoed by workers that can
    worker: str
    outcome: Outcome
    given_up: bool = False  # the worker has made a dead letter of it itself


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
    @property
    def released(self) -> str:
        """The consumer to whom a worker that leaves hands what it could not finish."""
        ...

    def cancel_key(self, task: TaskId, fence: int) -> str: ...
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
    released = "onward:released"
    ours = "onward"  # `origin` of the dead letters that we write ourselves

    def cancel_key(self, task: TaskId, fence: int) -> str:
        """Of one attempt: what was asked of it must not stop the replay that follows."""
        return f"onward:cancel:{task}:{fence}"

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
        return Answer(
            task,
            _count(fields.get("fence", "")) or None,
            fields.get("worker", ""),
            self._outcome(stream, fields),
            given_up=stream == self.dead,
        )

    def _outcome(self, stream: str, fields: Fields) -> Outcome:
        if stream == self.results and fields.get("status") == "succeeded":
            return _succeeded(fields.get("result", "null"))
        retryable: bool | None = {"true": True, "1": True, "false": False, "0": False}.get(
            fields.get("retryable", "").lower()
        )
        if stream == self.dead:
            retryable = False  # the worker itself has given it up
        return Failed(
            Fault(
                kind=fields.get("error_type") or "Error",
                message=fields.get("error", "failed"),
                retryable=retryable,
                retry_after_ms=_count(fields.get("retry_after_ms", "")) or None,
            )
        )

    def adopt(self, fields: Fields, now: Instant) -> Task | None:
        task = fields.get("task_id", "")
        if not 0 < len(task) <= LONGEST_ID or not task.isprintable():
            return None
        failures = _count(fields.get("retry_count", ""))
        return Task(
            id=task,
            type=fields.get("tool_name") or "unknown",
            queue=self.queue,
            profile=self.name,
            payload=_kept(fields.get("payload", "null")),
            created_at=now,
            queued_at=now,
            key=fields.get("idempotency_key") or None,
            fence=_count(fields.get("fence", "")),
            failures=failures,
            retries=failures,
        )


def told_key(task: TaskId, generation: int) -> str:
    """Set once this death is on the stream of dead letters."""
    return f"onward:told:{task}:{generation}"


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def _succeeded(text: str) -> Outcome:
    try:
        return Succeeded(_json(text))
    except Invalid as error:
        return Failed(Fault(kind="ResultInvalid", message=f"result: {error}", retryable=False))


def _json(text: str) -> Json:
    """Text that should be JSON; if it is none at all, it is kept as a string."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = encode(text)
    except RecursionError:
        pass  # said below, in our words
    strict_json.parse(text.encode())  # somebody has to read it: held to what every door is held to
    return text


def _kept(text: str) -> Json:
    """The same, and what no ledger could keep as JSON is kept as text."""
    try:
        return _json(text)
    except Invalid:
        return encode(text.replace("\x00", "\ufffd"))
