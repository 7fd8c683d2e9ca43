"""What the entries of a stream look like: each dialect is a record of names and translations.

The workers' dialect is here (the task queue protocol v1.2.1, S1); the agents' is in
agent_dialect.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from onward.core import strict_json
from onward.core.errors import Invalid
from onward.core.outcome import Failed, Outcome, Released, Succeeded
from onward.core.task import Claimed, Instant, Json, Task, TaskId, encode
from onward.core.trace import handed_on, stored
from onward.faults import Fault, bounded_delay
from onward.services.catalog import Declared
from onward.wire.streams import DEAD_LETTERS, OWN_GROUP, RESULTS, TASKS, WORKERS_GROUP, Fields

LONGEST_ID = 255
DEAD_LETTER_S = 7 * 24 * 3600
ORIGIN = "onward"  # `origin` of the entries that the server writes to streams that it also reads


class StreamAnswer(msgspec.Struct, frozen=True):
    task: TaskId
    fence: int | None  # repeated by workers that can
    worker: str
    outcome: Outcome
    given_up: bool = False  # the worker has written a dead letter itself


class StreamDialect(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    queue: str
    tasks: str  # the stream of tasks
    own_group: str  # the group in which the server reads
    read: Sequence[str]  # the streams that the server reads in it
    consumed: Sequence[str] = ()  # those of them that it empties: no one else reads them
    kept_ms: Mapping[str, int] = {}  # how long entries stay on streams that are not emptied
    groups: Sequence[tuple[str, str]]  # created if they are missing: stream and name
    # Several groups read each entry, and one of them, it is not known which, does the work. Such an
    # entry carries fields of the task that a claim does not have.
    shared: bool
    serves: Callable[[str], bool]  # whether this group of the stream of tasks does the work
    opened: Callable[[Fields], Fields]  # the fields of an entry, out of its envelope
    entry: Callable[[Claimed, Task | None], Fields]
    answer: Callable[[str, Fields], StreamAnswer | None]
    adopt: Callable[
        [Fields, Instant], Task | None
    ]  # the task of an entry that another program wrote
    flaw: Callable[[Fields], str | None]  # why no worker could do what such an entry asks for
    own: Callable[[str], str] | None = None  # the stream of a single service's tasks, by its name


def _entry(claimed: Claimed, _: Task | None) -> Fields:
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


def _answer(stream: str, fields: Fields) -> StreamAnswer | None:
    task = fields.get("task_id")
    if not task or (stream == DEAD_LETTERS and fields.get("origin") == ORIGIN):
        return None
    return StreamAnswer(
        task,
        count(fields.get("fence", "")) or None,
        fields.get("worker", ""),
        _outcome(stream, fields),
        given_up=stream == DEAD_LETTERS,
    )


def _outcome(stream: str, fields: Fields) -> Outcome:
    if stream == RESULTS and fields.get("status") == "succeeded":
        return succeeded(fields.get("result", "null"))
    retryable: bool | None = {"true": True, "1": True, "false": False, "0": False}.get(
        fields.get("retryable", "").lower()
    )
    after = fields.get("retry_after_ms")
    fault = Fault(
        kind=fields.get("error_type") or "Error",
        message=fields.get("error", "failed"),
        retryable=False if stream == DEAD_LETTERS else retryable,
        retry_after_ms=bounded_delay(count(after)) if after else None,
    )
    return Released(fault) if fields.get("released") == "true" else Failed(fault)


def _adopt(fields: Fields, now: Instant) -> Task | None:
    task = fields.get("task_id", "")
    if not is_id(task):
        return None
    failures = count(fields.get("retry_count", ""))
    return Task(
        id=task,
        type=fields.get("tool_name") or "unknown",
        queue=WORKER_STREAMS.queue,
        profile=WORKER_STREAMS.name,
        payload=kept(fields.get("payload", "null")),
        created_at=now,
        queued_at=now,
        key=fields.get("idempotency_key") or None,
        fence=count(fields.get("fence", "")),
        failures=failures,
        retries=failures,
        overrides=stored(fields.get("traceparent")),
    )


WORKER_STREAMS = StreamDialect(
    name="streams",
    queue="streams",
    tasks=TASKS,
    own_group=OWN_GROUP,
    read=(TASKS, RESULTS, DEAD_LETTERS),
    consumed=(RESULTS,),
    groups=(
        (TASKS, WORKERS_GROUP),
        *((stream, OWN_GROUP) for stream in (TASKS, RESULTS, DEAD_LETTERS)),
    ),
    shared=False,
    serves=lambda group: group == WORKERS_GROUP,
    opened=lambda fields: fields,
    entry=_entry,
    answer=_answer,
    adopt=_adopt,
    flaw=lambda fields: None if fields.get("tool_name") else "an entry without tool_name",
)


def own_streams(
    dialect: StreamDialect, services: Sequence[Declared]
) -> tuple[Sequence[str], Sequence[str]]:
    """Of the services that no other may read with, and of those that may have one."""
    if dialect.own is None:
        return (), ()
    reached = [one for one in services if one.via == dialect.name]
    alone = [dialect.own(service.name) for service in reached if service.sensitive]
    others = [one for one in services if one.sensitive or one in reached]
    return alone, [dialect.own(service.name) for service in others]


def dead_letter_key(task: TaskId, generation: int) -> str:
    """Set once this death is on the stream of dead letters."""
    return f"onward:told:{task}:{generation}"


def is_id(text: str) -> bool:
    return 0 < len(text) <= LONGEST_ID and text.isprintable()


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
    """Text that should be JSON; text that is not becomes a JSON string."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = encode(text)
    except RecursionError:
        pass  # the check below refuses it with our own message
    strict_json.parse(text.encode())  # checked as what callers send is: callers read it
    return text


def kept(text: str) -> Json:
    """The same, and JSON that no ledger could keep becomes a JSON string."""
    try:
        return _json(text)
    except Invalid:
        return encode(text.replace("\x00", "\ufffd"))
