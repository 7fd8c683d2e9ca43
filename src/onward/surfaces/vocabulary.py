"""Five vocabularies side by side: what each door calls the phases of a task.

A phase is what an outsider can tell apart; `phase` is the only function that looks at flags. A door
that needs a finer word gets another phase here, never a condition in its router.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from onward.core.task import FINAL, Lane, State, Task


class Phase(StrEnum):
    SCHEDULED = "scheduled"  # not yet due, never failed
    QUEUED = "queued"
    RETRY_WAIT = "retry_wait"  # failed before, not yet due again
    RETRYING = "retrying"  # failed before, queued again
    REQUEUED = "requeued"  # claimed before and handed back without failing
    OFFERED = "offered"  # on a transport, and nobody has taken it from there yet
    RUNNING = "running"
    OVERDUE = "overdue"  # running past the time at which somebody was told
    CANCELING = "canceling"  # running, and asked to stop
    WAITING_APPROVAL = "waiting_approval"
    PARKED = "parked"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    CANCELED = "canceled"


def phase(task: Task) -> Phase:
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


_TABLE: Mapping[Phase, tuple[str, str, str, str, str]] = {
    #                          sync         streams             agents        tasks        flows
    Phase.SCHEDULED:         ("queued",    "queued",           "pending",    "PENDING",   "pending"),
    Phase.QUEUED:            ("queued",    "queued",           "pending",    "PENDING",   "pending"),
    Phase.RETRY_WAIT:        ("queued",    "queued",           "processing", "FAILED",    "running"),
    Phase.RETRYING:          ("queued",    "queued",           "processing", "PENDING",   "running"),
    Phase.REQUEUED:          ("queued",    "queued",           "pending",    "PENDING",   "running"),
    Phase.OFFERED:           ("queued",    "queued",           "pending",    "PENDING",   "pending"),
    Phase.RUNNING:           ("executing", "running",          "processing", "ACTIVE",    "running"),
    Phase.OVERDUE:           ("executing", "running",          "timeout",    "ACTIVE",    "running"),
    Phase.CANCELING:         ("executing", "running",          "processing", "ACTIVE",    "canceling"),
    Phase.WAITING_APPROVAL:  ("executing", "waiting_approval", "processing", "ACTIVE",    "running"),
    Phase.PARKED:            ("executing", "running",          "processing", "ACTIVE",    "running"),
    Phase.SUCCEEDED:         ("completed", "succeeded",        "completed",  "COMPLETED", "completed"),
    Phase.FAILED:            ("failed",    "failed",           "failed",     "FAILED",    "failed"),
    Phase.DEAD:              ("failed",    "failed",           "failed",     "DLQ",       "failed"),
    Phase.CANCELED:          ("failed",    "failed",           "failed",     "FAILED",    "canceled"),
}  # fmt: skip

SYNC, STREAMS, AGENTS, TASKS, FLOWS = (
    {phase: words[column] for phase, words in _TABLE.items()} for column in range(5)
)

# What the dispatcher door says of the endings that the core itself decides.
SYNC_ERRORS: Mapping[str, str] = {
    "timeout": "Task timeout",
    "worker_lost": "Worker disconnected",
}
SYNC_CANCELED = "Task canceled"
