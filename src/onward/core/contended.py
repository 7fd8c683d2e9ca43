"""Of several tasks with one key only one counts: what becomes of a submission that met another.

Unique: the other's id is the answer, or the new one is refused, or it takes the other's place.
Debounce: the other, which has not started, becomes the new one. Pure: intake.py reads and applies.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from onward.core import machine, moves
from onward.core.contract import Move, Submission, UniqueGuard
from onward.core.policy import Profile
from onward.core.task import FINAL, QUEUED, Instant, State, Task

PREDECESSOR = "predecessor"  # what a task waits for that starts once another one is over
LIVE = frozenset(State) - FINAL
STATES: dict[str, frozenset[State]] = {
    "live": LIVE,
    "queued": LIVE - {State.RUNNING},
    "running": frozenset({State.RUNNING}),
}
# What stays of a task whose place a newer one takes: what it is found by, and its history.
_KEPT = frozenset(
    {
        "id", "type", "created_at", "state", "lane", "fence", "rev", "generation", "events",
        "attempt", "failures", "retries", "lost", "due_at", "queued_at", "owner", "parent",
        "session", "batch", "debounce_key", "debounce_by", "predecessor", "successor", "run_at",
    }
)  # fmt: skip
_TAKEN = tuple(name for name in Task.__struct_fields__ if name not in _KEPT)

Then = Literal["return", "refuse", "replace"]


class UniqueRule(msgspec.Struct, frozen=True):
    """What a submission says about others with its unique key."""

    states: frozenset[State]
    then: Then

    def for_ledger(self) -> UniqueGuard:
        return UniqueGuard(self.states, returns=self.then == "return")


def waits_for_its_time(task: Task) -> bool:
    """Not for a retry: a debounced task that has started is not put off any more."""
    return task.state is State.SCHEDULED and not task.fence


def superseded(found: Task, newer: Submission, now: Instant, profile: Profile) -> Move | None:
    """The task that waits becomes the newer one, and waits anew. None: it waits no longer."""
    task = newer.task
    if not waits_for_its_time(found) or found.debounce_key != task.debounce_key:
        return None
    run_at = moves.earliest(task.run_at, found.debounce_by)
    return moves.of_task(
        found,
        moves.earliest(run_at, moves.age_limit(profile, task.expires_at)),
        changes={**{name: getattr(task, name) for name in _TAKEN}, "run_at": run_at},
        events=(("task.superseded", None),),
        keys=() if newer.key is None else (newer.key,),
    )


def replaced(found: Task, newer: Submission, now: Instant, profile: Profile) -> Move | None:
    """It is canceled, and the newer one is born with that; it starts when the other is over.

    None: the other is over already.
    """
    if found.state in FINAL:
        return None
    newer = msgspec.structs.replace(newer, unique=None)  # it takes the place of the one it met
    move = machine.cancel(found, now, profile)
    if move is not None and move.to in FINAL:
        if found.waiting_for == PREDECESSOR and found.due_at is not None:
            newer = _behind(newer, found.predecessor, found.due_at)
        return msgspec.structs.replace(move, spawn=(newer,))
    # Asked to stop, it is over at `cancel_by` at the latest: the newer one's alarm rings just then,
    # should the letter that it waits for never come.
    if move is None:
        move = moves.of_task(found, found.due_at, changes={}, front=True)
    cancel_by = move.changes.get("cancel_by", found.cancel_by)
    until = int(cancel_by or now) + 1
    return msgspec.structs.replace(
        move,
        changes={**move.changes, "successor": newer.task.id},
        spawn=(_behind(newer, found.id, until),),
    )


def pointed_at(found: Task, successor: str) -> Move | None:
    """The newest is the one that starts when this task is over. None: it is over."""
    if found.state in FINAL:
        return None
    return moves.of_task(found, found.due_at, changes={"successor": successor}, front=True)


def _behind(newer: Submission, predecessor: str | None, until: Instant) -> Submission:
    task = msgspec.structs.replace(newer.task, predecessor=predecessor)
    if task.state is QUEUED:
        task = msgspec.structs.replace(
            task,
            state=State.WAITING,
            waiting_for=PREDECESSOR,
            due_at=moves.earliest(until, task.due_at),
        )
    elif task.state is State.SCHEDULED:
        run_at = max(task.run_at or until, until)
        task = msgspec.structs.replace(task, run_at=run_at, due_at=moves.earliest(run_at))
    return msgspec.structs.replace(newer, task=task)
