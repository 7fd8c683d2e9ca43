"""What all ledgers do alike: Task ⇄ flat row, pages by bytes, holds of one task merged into one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_args

import msgspec
import structlog

from onward.core.contract import LeaseRenewal
from onward.core.task import STATES, Lane, Priority, Task, TaskId

log = structlog.get_logger("onward.ledger")

T = TypeVar("T")

FIELDS: tuple[str, ...] = Task.__struct_fields__
# A bool and an IntEnum are whole numbers, too.
NUMBERS = frozenset(
    field.name
    for field in msgspec.structs.fields(Task)
    if issubclass((get_args(field.type) or (field.type,))[0], int)
)
LANES = {lane.value: lane for lane in Lane}
PRIORITIES = {int(priority): priority for priority in Priority}

FLAGS = frozenset(field.name for field in msgspec.structs.fields(Task) if field.type is bool)

MOST_ODD = 1_000  # ids remembered of tasks that could not be read

to_row = msgspec.structs.astuple


def from_row(row: tuple[Any, ...]) -> Task:
    # Most fields of most tasks are None, as they are by themselves.
    values = {name: value for name, value in zip(FIELDS, row, strict=False) if value is not None}
    values["state"] = STATES[values["state"]]
    values["lane"] = LANES[values["lane"]]
    values["priority"] = PRIORITIES[values["priority"]]
    for name in FLAGS:
        values[name] = bool(values.get(name))
    return Task(**values)


class RowReader:
    """Rows → tasks. One that this version cannot read is left out, and logged once."""

    def __init__(self) -> None:
        self._odd: set[TaskId] = set()

    def tasks(self, rows: Iterable[tuple[Any, ...]]) -> tuple[list[Task], list[TaskId]]:
        """Those that can be read, and the ids of the others."""
        found: list[Task] = []
        odd: list[TaskId] = []
        for row in rows:
            task = self.task(row)
            if task is None:
                odd.append(row[0])
            else:
                found.append(task)
        return found, odd

    def task(self, row: tuple[Any, ...]) -> Task | None:
        try:
            return from_row(row)
        except (KeyError, TypeError, ValueError) as error:
            if row[0] not in self._odd and len(self._odd) < MOST_ODD:
                self._odd.add(row[0])
                log.error("a task cannot be read and is left out", task=row[0], error=repr(error))
            return None


def text_bytes(values: Iterable[Any]) -> int:
    """What the texts among these take in UTF-8."""
    return sum(
        len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        for value in values
        if type(value) is str
    )


def cut(
    items: Iterable[T], limit: int, most_bytes: int, size: Callable[[T], int]
) -> tuple[list[T], bool]:
    """The first so many, up to the one that takes them past `most_bytes`; are there more?"""
    found: list[T] = []
    spent = 0
    for item in items:
        if len(found) == limit or spent > most_bytes:
            return found, True
        found.append(item)
        spent += size(item)
    return found, False


class Cut:
    """Takes the rows of one page off a cursor."""

    def __init__(self, limit: int, most_bytes: int) -> None:
        self._limit = limit
        self._most_bytes = most_bytes
        self.more = False  # there are rows beyond

    def __call__(self, rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        found, self.more = cut(rows, self._limit, self._most_bytes, text_bytes)
        return found


def merge_renewals(renewals: Sequence[LeaseRenewal]) -> Sequence[LeaseRenewal]:
    """One renewal a task: the latest progress, and the notes of all renewals in order."""
    merged: dict[tuple[TaskId, int], LeaseRenewal] = {}
    for renewal in renewals:
        before = merged.get((renewal.task, renewal.fence))
        if before is not None:
            renewal = msgspec.structs.replace(
                renewal,
                until=max(before.until, renewal.until),
                progress=renewal.progress or before.progress,
                notes=before.notes + renewal.notes,
            )
        merged[renewal.task, renewal.fence] = renewal
    return list(merged.values())
