"""The stages of a task that an outsider can distinguish; computed, never stored.

`phase` is the only function that looks at flags. A door that needs a finer word gets another phase
here, never a condition in its router.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from onward.core.task import FINAL, Lane, State, Task


class Phase(StrEnum):
    SCHEDULED = "scheduled"  # not yet due, never failed
    QUEUED = "queued"
    RETRY_WAIT = "retry_wait"  # failed before, not yet due again
    RETRYING = "retrying"  # failed before, queued again
    REQUEUED = "requeued"  # claimed before and handed back without failing
    OFFERED = "offered"  # on a transport, and no worker has taken it from there yet
    RUNNING = "running"
    OVERDUE = "overdue"  # running past the time at which its session was notified
    CANCELING = "canceling"  # running, and asked to stop
    WAITING_APPROVAL = "waiting_approval"
    PARKED = "parked"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    CANCELED = "canceled"


def phase(task: Task) -> Phase:  # noqa: C901 one branch a state
    if task.cancel_by is not None and task.state not in FINAL:
        return Phase.CANCELING
    match task.state:
        case State.SCHEDULED:
            return Phase.RETRY_WAIT if task.failures else Phase.SCHEDULED
        case State.QUEUED:
            if task.lane is Lane.RETRY:
                return Phase.RETRYING
            return Phase.REQUEUED if task.fence else Phase.QUEUED
        case State.RUNNING:
            if task.offered:
                return Phase.OFFERED
            return Phase.OVERDUE if task.overdue else Phase.RUNNING
        case State.WAITING:
            approval = task.waiting_for == "approval"
            return Phase.WAITING_APPROVAL if approval else Phase.PARKED
        case State.SUCCEEDED | State.FAILED | State.DEAD | State.CANCELED:
            return Phase(task.state.value)


LIVE = frozenset(State) - FINAL
# In any live state a task may be CANCELING as well.
_PHASES: Mapping[State, Sequence[Phase]] = {
    State.SCHEDULED: (Phase.SCHEDULED, Phase.RETRY_WAIT, Phase.CANCELING),
    State.QUEUED: (Phase.QUEUED, Phase.RETRYING, Phase.REQUEUED, Phase.CANCELING),
    State.RUNNING: (Phase.OFFERED, Phase.RUNNING, Phase.OVERDUE, Phase.CANCELING),
    State.WAITING: (Phase.WAITING_APPROVAL, Phase.PARKED, Phase.CANCELING),
    **{state: (Phase(state.value),) for state in FINAL},
}


def states_of(word: str, words: Mapping[Phase, str]) -> frozenset[State]:
    """The states in which a task may be in a phase that `words` calls so."""
    meant = {found for found, name in words.items() if name == word}
    return frozenset(state for state, phases in _PHASES.items() if not meant.isdisjoint(phases))
