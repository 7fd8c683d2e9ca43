"""Task ⇄ flat row, shared by all ledgers: a row holds the fields of Task, in their order."""

from __future__ import annotations

from typing import Any

import msgspec

from onward.core.task import STATES, Lane, Priority, Task

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
