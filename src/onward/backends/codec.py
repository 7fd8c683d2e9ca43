"""What all ledgers do alike: Task ⇄ flat row, and holds of one task merged into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from onward.core.contract import Hold
from onward.core.task import STATES, Lane, Priority, Task, TaskId

FIELDS: tuple[str, ...] = Task.__struct_fields__
LANES = {lane.value: lane for lane in Lane}
PRIORITIES = {int(priority): priority for priority in Priority}

_STATE, _LANE = FIELDS.index("state"), FIELDS.index("lane")
_PRIORITY, _OVERDUE = FIELDS.index("priority"), FIELDS.index("overdue")

to_row = msgspec.structs.astuple


def from_row(row: tuple[Any, ...]) -> Task:
    values = list(row[: len(FIELDS)])
    values[_STATE] = STATES[values[_STATE]]
    values[_LANE] = LANES[values[_LANE]]
    values[_PRIORITY] = PRIORITIES[values[_PRIORITY]]
    values[_OVERDUE] = bool(values[_OVERDUE])
    return Task(**dict(zip(FIELDS, values, strict=True)))


def merge_holds(holds: Sequence[Hold]) -> Sequence[Hold]:
    """One hold a task: the last word on progress, everybody's notes in order."""
    merged: dict[tuple[TaskId, int], Hold] = {}
    for hold in holds:
        before = merged.get((hold.task, hold.fence))
        if before is not None:
            hold = Hold(
                hold.task,
                hold.fence,
                max(before.until, hold.until),
                hold.progress or before.progress,
                before.notes + hold.notes,
            )
        merged[hold.task, hold.fence] = hold
    return list(merged.values())
