"""The columns of a task in SQL, from the fields of core.task.Task.

A new field needs no more than its line there: every ledger and archive adds the column when it is
opened next. `database` decides how.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import NoneType
from typing import Any, get_args

import msgspec

from onward.core.task import Task
from onward.ledgers.codec import FIELDS, NUMBERS

Row = tuple[Any, ...]

TEXT, NUMBER = "text", "bigint"


_FIELDS = msgspec.structs.fields(Task)
TYPES: Mapping[str, str] = {
    **dict.fromkeys(FIELDS, TEXT),
    **dict.fromkeys((*NUMBERS, "tid", "place"), NUMBER),
}


def _column(field: msgspec.structs.FieldInfo, number: str) -> str:
    kind = number if TYPES[field.name] == NUMBER else "TEXT"
    if NoneType in get_args(field.type):
        return f"{field.name} {kind}"
    if field.default is msgspec.NODEFAULT:
        return f"{field.name} {kind} NOT NULL"
    value = int(field.default) if TYPES[field.name] == NUMBER else f"'{field.default}'"
    return f"{field.name} {kind} NOT NULL DEFAULT {value}"


def columns(number: str) -> str:
    """For CREATE TABLE; `number` is the database's word for a whole one."""
    return ",\n".join(f"    {_column(field, number)}" for field in _FIELDS)


def missing_columns(table: str, there: Collection[str], number: str) -> Sequence[str]:
    """What a table of an earlier version lacks."""
    return [
        f"ALTER TABLE {table} ADD COLUMN {_column(field, number)}"
        for field in _FIELDS
        if field.name not in there
    ]


_OPTIONAL = frozenset(field.name for field in _FIELDS if NoneType in get_args(field.type))


def without_empty(names: Sequence[str], rows: Sequence[Row]) -> tuple[tuple[str, ...], list[Row]]:
    """The same rows without the optional columns that none of them has: of a batch nearly all."""
    columns = list(zip(*rows, strict=True))
    used = [
        at
        for at, name in enumerate(names)
        if name not in _OPTIONAL or columns[at].count(None) < len(rows)
    ]
    kept = zip(*(columns[at] for at in used), strict=True)
    return tuple(names[at] for at in used), list(kept)
