"""Five vocabularies side by side: what each door calls the phases of a task (core/phase.py)."""

from __future__ import annotations

from collections.abc import Mapping

from onward.core.phase import Phase

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
