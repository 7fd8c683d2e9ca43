"""What a batch is made of in the ledger, and what is shown of it. Records, and reading."""

from __future__ import annotations

import msgspec

from onward.core.task import FINAL, State, Task, TaskId
from onward.wire.batches import BatchView
from onward.wire.tasks import Submit

QUEUE, TYPE = "onward:batches", "onward:batch"


class Terms(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of a batch."""

    name: str | None = None
    on_complete: Submit | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a batch."""

    total: int
    states: dict[State, int]
    on_complete: TaskId | None = None
    error: str | None = None  # why there is no such task


decode_terms = msgspec.json.Decoder(Terms).decode
_decode_ended = msgspec.json.Decoder(Ended).decode


def batch_view(task: Task, states: dict[State, int] | None = None) -> BatchView:
    """With the counts of its end, if the ledger has no others (any more)."""
    ended = None if task.result is None else _decode_ended(task.result)
    if not states and ended is not None:
        states = ended.states
    states = states or {}
    path = f"/api/v2/batches/{task.id}"
    return BatchView(
        id=task.id,
        name=decode_terms(task.payload).name,
        total=sum(states.values()),
        states={state.value: count for state, count in states.items()},
        done=sum(count for state, count in states.items() if state in FINAL),
        created_at=task.created_at,
        finished_at=task.finished_at,
        on_complete=None if ended is None else ended.on_complete,
        owner=task.owner,
        links={"self": path, "tasks": f"/api/v2/tasks?batch={task.id}"},
    )


def is_batch(task: Task) -> bool:
    return task.queue == QUEUE
