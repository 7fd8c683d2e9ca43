"""What may be decided on a task as it was read, and when that is a Conflict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from onward.core import machine
from onward.core.approval import Decision, approval_of
from onward.core.contract import FRESH, FULL, Fate, Move, Receipt
from onward.core.errors import (
    Conflict,
    KeyReused,
    NextStep,
    NotFound,
    QueueFull,
    Step,
    Unreadable,
)
from onward.core.policy import Profile
from onward.core.task import Instant, Json, State, Task, TaskId

NO_TASK = "no such task"
Decide: TypeAlias = Callable[[Task, Instant], Move | None]
Guards: TypeAlias = Callable[[Task], bool]  # whether its service requires an approval


async def unguarded() -> Guards:
    return lambda _: False


class DecideReplay:
    """Decides on one generation only: of two who replay the same death, one is refused."""

    def __init__(
        self,
        profiles: Mapping[str, Profile],
        payloads: Mapping[TaskId, Json],  # of those that are replayed with another one
        guards: Guards,
        starts: Mapping[TaskId, Instant] | None = None,
        generations: Mapping[TaskId, int] | None = None,
    ) -> None:
        self._profiles = profiles
        self._payloads = payloads
        self._guards = guards
        self._starts = starts or {}
        self._seen: dict[TaskId, int] = dict(generations or {})

    def __call__(self, found: Task, now: Instant) -> Move:
        if self._seen.setdefault(found.id, found.generation) != found.generation:
            raise Conflict("it has been replayed meanwhile")
        move = machine.replay(
            found,
            now,
            self._profiles[found.profile],
            payload=self._payloads.get(found.id),
            run_at=self._starts.get(found.id),
            guarded=self._guards(found),
        )
        if move is None:
            raise Conflict(f"a task that is {found.state} cannot be retried")
        return move


def dead_only(decide: Decide) -> Decide:
    def guarded(found: Task, now: Instant) -> Move | None:
        if found.state is not State.DEAD:
            raise Conflict(f"a task that is {found.state} is no dead letter")
        return decide(found, now)

    return guarded


def check_same_request(found: Task, decision: Decision, move: Move | None) -> Move:
    """The move, if the task is still the one that the decision was about."""
    asked = approval_of(found)
    if asked is None:
        raise NotFound("this task has never needed an approval")
    if decision.generation not in (None, found.generation):
        raise Conflict("the task has been replayed since: this approval is over")
    if move is None:
        by = f" by {asked.by}" if asked.by else ""
        raise Conflict(
            f"it was already {asked.status}{by}" if asked.decided_at else "its time is over"
        )
    if decision.digest not in (None, asked.digest):
        raise Conflict("the payload is not the one that was shown", hint="look at it again")
    return move


def accepted(receipt: Receipt, task: Task, cap: int | None) -> Receipt:
    if receipt.fate is FRESH:
        return receipt
    if receipt.fate is FULL:
        raise QueueFull(task.queue, cap or 0)
    if receipt.fate is Fate.REFUSED:
        raise Conflict(
            "what the ledger holds under this key cannot be read", step=NextStep(Step.CHECK_LEDGER)
        )
    if receipt.fate is Fate.REUSED:
        raise KeyReused(
            "this idempotency key was used before, with another body",
            hint="use a new key for a new request",
        )
    return receipt


def move_or_why(decide: Decide, found: Task | Exception | None, now: Instant) -> Move | str:
    """What is decided on one task among many; text: why nothing is."""
    try:
        if isinstance(found, Exception):
            raise found
        return (None if found is None else decide(found, now)) or NO_TASK
    except (Conflict, Unreadable) as error:
        return str(error)
