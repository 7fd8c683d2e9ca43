"""What the machine makes of each item of a batch: submissions, outcomes, alarms.

What raises for one item is that item's own failure, and no other's. Pure; nothing here is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import structlog

from onward.core import machine
from onward.core.contract import Key, Move, Submission, UniqueGuard
from onward.core.errors import is_away
from onward.core.outcome import Outcome, Parked, Succeeded, invalid_outcome
from onward.core.policy import Profile
from onward.core.task import Claimed, Ending, Held, Instant, Json, Letter, State, Task, TaskId

log = structlog.get_logger("onward.dispatch")

# From a letter about a child's success, and the result: the parent, and what it does then.
Reader: TypeAlias = Callable[[Letter, Json, Instant], tuple[Claimed, Parked | Succeeded] | None]

MOST_REMEMBERED = 1_000


class Decisions:
    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        self._profiles = profiles
        self.postponed: Counter[str] = Counter()  # alarms that could not be decided, by error
        self._reported: dict[TaskId, None] = {}

    def submission(
        self,
        task: Task,
        cap: int | None = None,
        key: Key | None = None,
        unique: UniqueGuard | None = None,
    ) -> Submission:
        born, events = machine.born(task, self._profiles[task.profile])
        return Submission(born, events, cap, key, unique)

    def settlement(self, task: Claimed | Task, outcome: Outcome, now: Instant) -> Move:
        profile = self._profiles[task.profile]
        try:
            children = self._children(task, outcome) if isinstance(outcome, Parked) else ()
            return machine.settle(task, outcome, now, profile, children)
        except Exception as error:
            log.exception("an outcome cannot be stored", task=task.id)
            return machine.settle(task, invalid_outcome(error), now, profile)

    def _children(self, parent: Held, outcome: Parked) -> tuple[Submission, ...]:
        """What a task spawns belongs to its owner, whatever the executor that spawns it knows."""
        owner = parent.owner
        return tuple(
            [
                self.submission(
                    child if child.owner == owner else msgspec.structs.replace(child, owner=owner)
                )
                for child in outcome.spawn
            ]
        )

    def answered(
        self, moves: Sequence[Move], reader: Reader | None, now: Instant
    ) -> Sequence[Move]:
        """The same moves; a child's success with what its parent does about it, where known."""
        heard = Counter([letter.to for move in moves for letter in move.letters])
        if reader is None or not heard:
            return moves
        # A parent whose children end together reads of all of them in one step, by letters.
        lone = {parent for parent, letters in heard.items() if letters == 1}
        return [
            self._with_answer(move, reader, now)
            if move.to is State.SUCCEEDED and move.letters and move.letters[0].to in lone
            else move
            for move in moves
        ]

    def _with_answer(self, move: Move, reader: Reader, now: Instant) -> Move:
        result = move.changes["result"]
        assert isinstance(result, str)  # noqa: S101 narrows for the type checker
        try:
            heard = reader(move.letters[0], result, now)
            if heard is None:
                return move
            parent, outcome = heard
            profile = self._profiles[parent.profile]
            children = self._children(parent, outcome) if isinstance(outcome, Parked) else ()
            answer = machine.answer(parent, outcome, now, profile, children)
        except Exception:  # the child's end stands: its parent reads of it by letter, and may fail
            log.exception("answer failed", task=move.letters[0].to)
            return move
        return msgspec.structs.replace(move, answer=answer)

    def alarms(self, tasks: Sequence[Task], now: Instant) -> Sequence[Move]:
        """What the clock does to these live tasks."""
        moves: list[Move] = []
        for task in tasks:
            try:
                move = machine.on_due(task, now, self._profiles[task.profile])
            except Exception as error:
                # A newer server's profile, or a row edited by hand: it must not stand before all
                # other alarms at each sweep.
                self.undecided(task.id, error)
                move = machine.postponed(task, now)
            if move is not None:
                moves.append(move)
        return moves

    def undecided(self, task: TaskId, error: Exception) -> None:
        """Counted each time, reported once. Raised if it is not for what the task is."""
        if is_away(error):
            raise error
        self.postponed[type(error).__name__] += 1
        if task not in self._reported:
            self._reported[task] = None
            log.error("the alarm of a task cannot be decided", task=task, error=repr(error))
            if len(self._reported) > MOST_REMEMBERED:
                del self._reported[next(iter(self._reported))]


def ending_of(move: Move, now: Instant) -> Ending:
    result, error = move.changes.get("result"), move.changes.get("error")
    assert result is None or isinstance(result, str)  # noqa: S101 narrows for the type checker
    assert error is None or isinstance(error, str)  # noqa: S101
    return Ending(move.task, move.to, result, error, now)


def queued_counts(tasks: Iterable[Task]) -> Mapping[str, int]:
    """How many of these are born into each queue."""
    return Counter(task.queue for task in tasks if task.state is State.QUEUED)
