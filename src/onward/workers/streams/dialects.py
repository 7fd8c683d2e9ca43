"""What entries on a stream look like: one dialect a protocol, as names and two translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from onward.core import strict_json
from onward.core.errors import Invalid
from onward.core.outcome import Failed, Outcome, Released, Succeeded
from onward.core.task import Claimed, Fault, Instant, Json, Task, TaskId, bounded_delay, encode
from onward.core.trace import handed_on, stored

Fields = Mapping[str, str]

LONGEST_ID = 255
DEAD_LETTER_S = 7 * 24 * 3600


class StreamAnswer(msgspec.Struct, frozen=True):
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
    def kept_ms(self) -> Mapping[str, int]:
        """How long entries stay on streams that nobody empties."""
        ...

    @property
    def shared(self) -> bool:
        """Several groups see each entry, and one of them, nobody says which, does the work."""
        ...

    @property
    def whole(self) -> bool:
        """An entry says more of its task than a claim does."""
        ...

    @property
    def id_field(self) -> str: ...
    @property
    def released(self) -> str:
        """The consumer to whom a worker that leaves hands what it could not finish."""
        ...

    def cancel_key(self, task: TaskId, fence: int) -> str: ...
    def groups(self) -> Sequence[tuple[str, str]]:
        """Which are made if they are not there: stream and name."""
        ...

    def serves(self, group: str) -> bool:
        """Whether this group on the stream of tasks is one of those who do the work."""
        ...

    def opened(self, fields: Fields) -> Fields:
        """What an entry says, without what it is wrapped in."""
        ...

    def entry(self, claimed: Claimed, task: Task | None) -> Fields: ...
    def answer(self, stream: str, fields: Fields) -> StreamAnswer | None: ...
    def adopt(self, fields: Fields, now: Instant) -> Task | None: ...
    def flaw(self, fields: Fields) -> str | None:
        """Why nobody could do what somebody else's entry asks for."""
        ...


class StreamProtocol:
    """The task queue protocol v1.2.1 (S1)."""

    name = "streams"
    queue = "streams"
    tasks, results, dead = "stream:task", "stream:result", "stream:dlq"
    group, own_group = "cg:workers", "cg:onward"
    read = (tasks, results, dead)
    consumed = (results,)
    kept_ms: Mapping[str, int] = {}
    shared = whole = False
    id_field = "task_id"
    released = "onward:released"
    ours = "onward"  # `origin` of the dead letters that we write ourselves

    def cancel_key(self, task: TaskId, fence: int) -> str:
        """Of one attempt: what was asked of it must not stop the replay that follows."""
        return f"onward:cancel:{task}:{fence}"

    def groups(self) -> Sequence[tuple[str, str]]:
        return ((self.tasks, self.group), *((stream, self.own_group) for stream in self.read))

    def serves(self, group: str) -> bool:
        return group == self.group

    def opened(self, fields: Fields) -> Fields:
        return fields

    def entry(self, claimed: Claimed, task: Task | None = None) -> Fields:
        limits = [at for at in (claimed.attempt_by, claimed.expires_at) if at is not None]
        return {
            "task_id": claimed.id,
            "tool_name": claimed.type,
            "payload": claimed.payload,
            "idempotency_key": claimed.key or claimed.id,
            "retry_count": str(claimed.failures),
            "created_at": str(claimed.created_at),
            "fence": str(claimed.fence),
            "attempt": str(claimed.attempt),
            "deadline_at": str(min(limits)) if limits else "",
            **trace_field(claimed),
        }

    def answer(self, stream: str, fields: Fields) -> StreamAnswer | None:
        task = fields.get("task_id")
        if not task or (stream == self.dead and fields.get("origin") == self.ours):
            return None
        return StreamAnswer(
            task,
            count(fields.get("fence", "")) or None,
            fields.get("worker", ""),
            self._outcome(stream, fields),
            given_up=stream == self.dead,
        )

    def _outcome(self, stream: str, fields: Fields) -> Outcome:
        if stream == self.results and fields.get("status") == "succeeded":
            return succeeded(fields.get("result", "null"))
        retryable: bool | None = {"true": True, "1": True, "false": False, "0": False}.get(
            fields.get("retryable", "").lower()
        )
        if stream == self.dead:
            retryable = False  # the worker itself has given it up
        after = fields.get("retry_after_ms")
        fault = Fault(
            kind=fields.get("error_type") or "Error",
            message=fields.get("error", "failed"),
            retryable=retryable,
            retry_after_ms=bounded_delay(count(after)) if after else None,
        )
        return Released(fault) if fields.get("released") == "true" else Failed(fault)

    def flaw(self, fields: Fields) -> str | None:
        return None if fields.get("tool_name") else "an entry without tool_name"

    def adopt(self, fields: Fields, now: Instant) -> Task | None:
        task = fields.get("task_id", "")
        if not is_id(task):
            return None
        failures = count(fields.get("retry_count", ""))
        return Task(
            id=task,
            type=fields.get("tool_name") or "unknown",
            queue=self.queue,
            profile=self.name,
            payload=kept(fields.get("payload", "null")),
            created_at=now,
            queued_at=now,
            key=fields.get("idempotency_key") or None,
            fence=count(fields.get("fence", "")),
            failures=failures,
            retries=failures,
            overrides=stored(fields.get("traceparent")),
        )


def is_id(text: str) -> bool:
    return 0 < len(text) <= LONGEST_ID and text.isprintable()


def dead_letter_key(task: TaskId, generation: int) -> str:
    """Set once this death is on the stream of dead letters."""
    return f"onward:told:{task}:{generation}"


def trace_field(task: Claimed) -> Fields:
    """Where the attempt stands in a trace, if it is part of one."""
    traceparent = handed_on(task)
    return {} if traceparent is None else {"traceparent": traceparent}


def count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def succeeded(text: str) -> Outcome:
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


def kept(text: str) -> Json:
    """The same, and what no ledger could keep as JSON is kept as text."""
    try:
        return _json(text)
    except Invalid:
        return encode(text.replace("\x00", "\ufffd"))
