"""The vocabularies side by side: what each door calls the phases of a task (core/phase.py).

In MCP a tool that failed has a result, too, which says isError: its task is completed.
"""

from __future__ import annotations

from collections.abc import Mapping

from onward.core.phase import Phase

_TABLE: Mapping[Phase, tuple[str, str, str, str, str, str]] = {
    #                          sync         streams             agents        tasks        flows        mcp
    Phase.SCHEDULED:         ("queued",    "queued",           "pending",    "PENDING",   "pending",    "working"),
    Phase.QUEUED:            ("queued",    "queued",           "pending",    "PENDING",   "pending",    "working"),
    Phase.RETRY_WAIT:        ("queued",    "queued",           "processing", "FAILED",    "running",    "working"),
    Phase.RETRYING:          ("queued",    "queued",           "processing", "PENDING",   "running",    "working"),
    Phase.REQUEUED:          ("queued",    "queued",           "pending",    "PENDING",   "running",    "working"),
    Phase.OFFERED:           ("queued",    "queued",           "pending",    "PENDING",   "pending",    "working"),
    Phase.RUNNING:           ("executing", "running",          "processing", "ACTIVE",    "running",    "working"),
    Phase.OVERDUE:           ("executing", "running",          "timeout",    "ACTIVE",    "running",    "working"),
    Phase.CANCELING:         ("executing", "running",          "processing", "ACTIVE",    "canceling",  "working"),
    Phase.WAITING_APPROVAL:  ("executing", "waiting_approval", "processing", "ACTIVE",    "running",    "working"),
    Phase.PARKED:            ("executing", "running",          "processing", "ACTIVE",    "running",    "working"),
    Phase.SUCCEEDED:         ("completed", "succeeded",        "completed",  "COMPLETED", "completed",  "completed"),
    Phase.FAILED:            ("failed",    "failed",           "failed",     "FAILED",    "failed",     "completed"),
    Phase.DEAD:              ("failed",    "failed",           "failed",     "DLQ",       "failed",     "completed"),
    Phase.CANCELED:          ("failed",    "failed",           "failed",     "FAILED",    "canceled",   "cancelled"),
}  # fmt: skip

SYNC, STREAMS, AGENTS, TASKS, FLOWS, MCP = (
    {phase: words[column] for phase, words in _TABLE.items()} for column in range(6)
)

# What the dispatcher door says of the endings that the core itself decides.
SYNC_ERRORS: Mapping[str, str] = {
    "timeout": "Task timeout",
    "worker_lost": "Worker disconnected",
}
SYNC_CANCELED = "Task canceled"
