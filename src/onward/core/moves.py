"""How a move is put together: endings, failures, retries and returns, each in one place.

machine.py decides which of these it is; nothing here looks at a task's state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import TypedDict, Unpack

from msgspec import UNSET

from onward.core.contract import Key, Move, Submission
from onward.core.outcome import Parked
from onward.core.policy import (
    Overrides,
    Profile,
    fingerprint,
    retry_delay_ms,
)
from onward.core.task import (
    DEAD,
    Held,
    Instant,
    Json,
    Lane,
    Letter,
    Note,
    State,
    Task,
    encode,
    weight,
)
from onward.faults import Fault

MOST_NOTES = 1_000  # of one move
MOST_NOTE_BYTES = 1 << 20
LAST_NOTES = 4
SETTLED = "settled"  # the name of the letter to a successor
CHILDREN = "children"  # what a task with unfinished children waits for
NOTHING: Mapping[str, str | int | None] = {}
SHORTEST_PUT_OFF_MS, LONGEST_PUT_OFF_MS = 1_000, 60_000


class MoveFields(TypedDict, total=False):
    """Fields that few moves have."""

    front: bool
    ahead: bool
    seen: int | None
    spawn: tuple[Submission, ...]
    letters: tuple[Letter, ...]
    keys: tuple[Key, ...]


def earliest(*instants: Instant | None) -> Instant | None:
    """The nearest clock of those that are set."""
    nearest: Instant | None = None
    for instant in instants:
        if instant is not None and (nearest is None or instant < nearest):
            nearest = instant
    return nearest


def guarded(
    held: Held,
    expect: State,
    *,
    to: State,
    due_at: Instant | None,
    changes: Mapping[str, str | int | None],
    events: tuple[Note, ...],
    **more: Unpack[MoveFields],
) -> Move:
    """A move that holds only for the task as it was read: its state, its fence and its rev."""
    return Move(
        task=held.id,
        expect=expect,
        fence=held.fence,
        rev=held.rev,
        to=to,
        due_at=due_at,
        changes=changes,
        events=events if len(events) <= LAST_NOTES else bounded(events),
        service=held.type,
        queue=held.queue,
        started_at=held.started_at,
        **more,
    )


def bounded(notes: tuple[Note, ...]) -> tuple[Note, ...]:
    """The same if they are few and small; else what is too much is counted in one note.

    The first stay, and the last ones, which name the move.
    """
    if len(notes) <= LAST_NOTES:
        return notes
    kept, room = 0, MOST_NOTE_BYTES
    head, tail = notes[:-LAST_NOTES], notes[-LAST_NOTES:]
    for _, data in head[: MOST_NOTES - LAST_NOTES]:
        room -= weight(data)
        if room < 0:
            break
        kept += 1
    dropped = head[kept:]
    if not dropped:
        return notes
    types = Counter(type_ for type_, _ in dropped)
    note = ("task.notes_dropped", encode({"count": len(dropped), "types": types}))
    return (*head[:kept], note, *tail)


def age_limit(profile: Profile, expires_at: Instant | None) -> Instant | None:
    """When work that is not running must be looked at for its age. Where age only writes an event,
    that can wait until it runs.
    """
    return None if profile.notifies_at_expiry else expires_at


def patience(
    profile: Profile, lane: Lane, start_by: Instant | None, expires_at: Instant | None
) -> Instant | None:
    """The alarm of queued work: when it has waited too long, or is an old retry to be put ahead."""
    limit = age_limit(profile, expires_at)
    if limit is None or lane is not Lane.RETRY or profile.promote_ms is None:
        return earliest(start_by, limit)
    return earliest(start_by, limit - profile.promote_ms)


def of_task(
    task: Task,
    due_at: Instant | None,
    *,
    to: State | None = None,
    changes: Mapping[str, str | int | None] = NOTHING,
    events: tuple[Note, ...] = (),
    **more: Unpack[MoveFields],
) -> Move:
    """A task that was read: it stays in its state, and as it is, but for what is named here."""
    return guarded(
        task, task.state, to=to or task.state, due_at=due_at, changes=changes, events=events, **more
    )


def end(
    held: Held,
    expect: State,
    to: State,
    now: Instant,
    profile: Profile,
    changes: dict[str, str | int | None],
    *events: Note,
) -> Move:
    changes["finished_at"] = now
    kept_ms = profile.dead_ms if to is DEAD else profile.retention_ms
    return guarded(
        held,
        expect,
        to=to,
        due_at=None if kept_ms is None else now + kept_ms,
        changes=changes,
        events=events,
        letters=_letters(held, to, changes.get("result") or changes.get("error")),
    )


def _letters(held: Held, to: State, result: str | int | None) -> tuple[Letter, ...]:
    # An attempt does not know its successor: the move that named one has raised `rev`, so what
    # ends the attempt is decided on the task as it was read.
    if isinstance(held, Task) and held.successor is not None:
        settled = Letter(to=held.successor, name=SETTLED, body=encode({"task": held.id}))
        return (*_to_parent(held, to, result), settled)
    return _to_parent(held, to, result)


def _to_parent(held: Held, to: State, result: str | int | None) -> tuple[Letter, ...]:
    if held.parent is None:
        return ()
    # The result stays in the child; a letter has only the child's id, how it ended and how long
    # its result is.
    size = len(result) if isinstance(result, str) else 0
    body = encode({"child": held.id, "ok": to is State.SUCCEEDED, "state": to, "size": size})
    return (Letter(to=held.parent, name="child", body=body),)


def fail(
    held: Held,
    expect: State,
    fault: Fault,
    now: Instant,
    profile: Profile,
    more: Mapping[str, str | int | None] | None = None,
    notes: tuple[Note, ...] = (),
) -> Move:
    note: Note = ("task.failed", encode({"error": fault, "attempt": held.attempt}))
    changes: dict[str, str | int | None] = {
        "error": fault.encode(),
        "fingerprint": fingerprint(fault),
        **(more or {}),
    }
    if profile.dead_letters:
        dead: Note = ("task.dlq", encode({"reason": fault.kind}))
        return end(held, expect, State.DEAD, now, profile, changes, *notes, note, dead)
    return end(held, expect, State.FAILED, now, profile, changes, *notes, note)


def retry(
    held: Held,
    fault: Fault,
    now: Instant,
    profile: Profile,
    overrides: Overrides,
    more: Mapping[str, str | int | None],
    notes: tuple[Note, ...],
) -> Move:
    delay = retry_delay_ms(profile, overrides, fault, task=held.id, retry=held.retries)
    run_at = now + delay
    # In strict order it stays in its lane: the tasks behind it would overtake it from the other.
    lane = held.lane if held.strict else Lane.RETRY
    if delay > 0:
        to, due_at = State.SCHEDULED, earliest(run_at, age_limit(profile, held.expires_at))
    else:
        to, due_at = State.QUEUED, patience(profile, lane, None, held.expires_at)
    return guarded(
        held,
        State.RUNNING,
        to=to,
        due_at=due_at,
        changes={
            "error": fault.encode(),
            "failures": held.failures + 1,
            "retries": held.retries + 1,
            "lost": 0,
            "lane": lane,
            "run_at": run_at,
            "queued_at": now,
            "start_by": None,
            **more,
        },
        events=(
            *notes,
            (
                "task.retrying",
                encode({"error": fault, "attempt": held.attempt, "run_at": run_at}),
            ),
        ),
        ahead=held.strict and to is State.QUEUED,
    )


def requeue(
    held: Held, now: Instant, profile: Profile, changes: dict[str, str | int | None], note: Note
) -> Move:
    """Back to the place in the queue that it came from."""
    return guarded(
        held,
        State.RUNNING,
        to=State.QUEUED,
        due_at=patience(profile, held.lane, None, held.expires_at),
        changes={**changes, "worker": None, "queued_at": now, "start_by": None},
        events=(note,),
        front=True,
    )


def release(held: Held, fault: Fault | None, now: Instant, profile: Profile) -> Move:
    """No attempt is counted. With a fault, its worker cannot do it: it is queued again later."""
    if fault is None:
        return requeue(held, now, profile, {"attempt": held.attempt - 1}, ("task.released", None))
    # Longer for an older task, so that one which no worker ever can do costs little.
    delay = min(max((now - held.created_at) // 4, SHORTEST_PUT_OFF_MS), LONGEST_PUT_OFF_MS)
    run_at = now + delay
    data = {"error": fault, "worker": held.worker, "run_at": run_at}
    return guarded(
        held,
        State.RUNNING,
        to=State.SCHEDULED,
        due_at=earliest(run_at, age_limit(profile, held.expires_at)),
        changes={
            "error": fault.encode(),
            "attempt": held.attempt - 1,
            "run_at": run_at,
            "queued_at": now,
            "start_by": None,
        },
        events=(("task.released", encode(data)),),
    )


def park(
    held: Held,
    parked: Parked,
    now: Instant,
    profile: Profile,
    children: tuple[Submission, ...],
) -> Move:
    return guarded(
        held,
        State.RUNNING,
        to=State.WAITING,
        due_at=earliest(parked.until, age_limit(profile, held.expires_at)),
        changes={
            **_memory(parked),
            "waiting_for": parked.waiting_for,
            "attempt": held.attempt - 1,  # once woken it goes on with the same attempt
            "lost": 0,
            "worker": None,
            "queued_at": now,
            "start_by": None,
        },
        events=(*parked.notes, _parked_note(parked.waiting_for)),
        seen=parked.seen,
        spawn=children,
    )


def park_again(
    held: Held, parked: Parked, profile: Profile, children: tuple[Submission, ...]
) -> Move:
    """From one wait into the next; the one before was for children, or no answer would come."""
    again = parked.waiting_for == CHILDREN
    return guarded(
        held,
        State.WAITING,
        to=State.WAITING,
        due_at=earliest(parked.until, age_limit(profile, held.expires_at)),
        changes=_memory(parked) | ({} if again else {"waiting_for": parked.waiting_for}),
        events=parked.notes if again else (*parked.notes, _parked_note(parked.waiting_for)),
        spawn=children,
    )


def _memory(parked: Parked) -> dict[str, str | int | None]:
    if parked.bulk is UNSET:
        return {"journal": parked.journal}
    return {"journal": parked.journal, "bulk": parked.bulk}


def last_memory(journal: Json | None) -> dict[str, str | int | None]:
    """Of a task that is over: whole, in its journal."""
    return {} if journal is None else {"journal": journal, "bulk": None}


@lru_cache(maxsize=64)
def _parked_note(waiting_for: str) -> Note:
    return ("task.parked", encode({"waiting_for": waiting_for}))
