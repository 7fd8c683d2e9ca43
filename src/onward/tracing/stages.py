"""A task's events → the stages that become spans: its times in the queue, and its attempts.

Pure. Of what events say only names, numbers and the kind of a fault go on: never a payload, a
result or a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from onward.core.task import FINAL_EVENTS, Event, Instant
from onward.core.trace import QUEUE, RUN

ENDS = FINAL_EVENTS | {"task.retrying", "task.reclaimed"}
OUTCOMES = {
    "task.succeeded": "succeeded",
    "task.failed": "failed",
    "task.canceled": "canceled",
    "task.retrying": "retrying",
    "task.reclaimed": "lost",
}
# After each of these it waits to be taken.
READY = frozenset(
    {"task.created", "task.queued", "task.woken", "task.replayed", "approval.approved", *ENDS}
)
SILENT = frozenset({"task.created", "task.progress", "task.chunk"})
KEPT = ("worker", "attempt", "waiting_for", "run_at", "reason", "from", "generation")


class SpanNote(msgspec.Struct, frozen=True):
    name: str
    at: Instant
    attributes: dict[str, str | int]


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    kind: str  # RUN or QUEUE
    n: int  # the event that ended it
    generation: int
    attempt: int
    start_at: Instant
    end_at: Instant
    worker: str | None = None
    outcome: str | None = None
    fault: str | None = None  # its kind
    notes: tuple[SpanNote, ...] = ()


class _Attempt:
    def __init__(self, event: Event, data: dict[str, Any]) -> None:
        self.generation = event.generation
        self.number = data.get("attempt", 1)
        self.worker = data.get("worker")
        self.claimed_at = event.at
        self.delivered_at: Instant | None = None
        self.notes: list[SpanNote] = []

    def began_at(self, ended_at: Instant) -> Instant:
        """Its delivery, unless that was noticed only by its end: then it began before."""
        if self.delivered_at is None or self.delivered_at >= ended_at:
            return self.claimed_at
        return self.delivered_at


def stages(events: Sequence[Event]) -> Iterator[Stage]:
    """Of one task's events from the first on. An attempt that is not over has none yet."""
    ready_at: Instant | None = None
    attempt: _Attempt | None = None
    number = 0
    for at, event in enumerate(events):
        data = _data(event)
        if event.type == "task.claimed" and attempt is None:
            attempt = _Attempt(event, data)
            number = attempt.number
        elif attempt is not None and event.type not in SILENT:
            _go_on(attempt, event, data)
        if event.type in ENDS:
            dead = event.type == "task.failed" and _dies(events[at + 1 :])
            yield from _ended(attempt, event, data, ready_at, dead, number)
            attempt = None
        if event.type in READY and attempt is None:
            ready_at = event.at


def _go_on(attempt: _Attempt, event: Event, data: dict[str, Any]) -> None:
    if event.type == "task.delivered":
        # It was on a stream until now, which is a queue, too.
        attempt.delivered_at = event.at
    if event.type in ("task.claimed", "task.delivered", "task.sent"):
        attempt.worker = data.get("worker", attempt.worker)
    attributes = {name: data[name] for name in KEPT if isinstance(data.get(name), str | int)}
    attempt.notes.append(SpanNote(event.type, event.at, attributes))


def _ended(
    attempt: _Attempt | None,
    event: Event,
    data: dict[str, Any],
    ready_at: Instant | None,
    dead: bool,
    number: int,
) -> Iterator[Stage]:
    outcome = "dead" if dead else OUTCOMES[event.type]
    error = data.get("error")
    fault = error.get("kind") if isinstance(error, dict) else None
    if attempt is None:  # it was never taken: it ended where it waited
        if ready_at is not None:
            yield Stage(
                kind=QUEUE,
                n=event.n,
                generation=event.generation,
                attempt=number + 1,
                start_at=ready_at,
                end_at=event.at,
                outcome=outcome,
                fault=fault,
            )
        return
    began_at = attempt.began_at(event.at)
    if ready_at is not None:
        yield Stage(
            kind=QUEUE,
            n=event.n,
            generation=attempt.generation,
            attempt=attempt.number,
            start_at=ready_at,
            end_at=began_at,
        )
    notes = [*attempt.notes, SpanNote("task.dlq", event.at, {})] if dead else attempt.notes
    yield Stage(
        kind=RUN,
        n=event.n,
        generation=attempt.generation,
        attempt=attempt.number,
        start_at=began_at,
        end_at=event.at,
        worker=attempt.worker,
        outcome=outcome,
        fault=fault,
        notes=tuple(notes),
    )


def _dies(after: Sequence[Event]) -> bool:
    return bool(after) and after[0].type == "task.dlq"


def _data(event: Event) -> dict[str, Any]:
    if event.data is None or event.type in SILENT:
        return {}
    data = msgspec.json.decode(event.data)
    return data if isinstance(data, dict) else {}
