"""Postgres' words, and its way of writing batches of rows: an array for each column."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from onward.ledgers.codec import FIELDS
from onward.ledgers.sql import schema
from onward.ledgers.sql.dialect import Row, Statements, ledger_tables, load
from onward.ledgers.sql.write_batch import CLAIMED, FOREVER

WORDS: Mapping[str, str] = {
    "number": "BIGINT",
    "next_tid": " DEFAULT nextval('task_number')",
    "next_place": " DEFAULT nextval('place_number')",
    "next_seq": " DEFAULT nextval('event_number')",
    "table": "",
    "keyed_table": "",
    "task_columns": schema.columns("BIGINT"),
    "table_of_tasks": "task",
    "task_key": "tid",
    "task_fields": ", ".join(FIELDS),
    "claimed_fields": ", ".join(f"task.{name}" for name in CLAIMED),
    "payload": "payload",
    "approval_status": "(approval::json ->> 'status')",
    "never": str(FOREVER),
    "least": "least",
    "greatest": "greatest",
    "instr": "strpos",
    "place_after": "nextval('place_number') + ",
    "lock": " FOR UPDATE",
    "by_line": "",
    "tags_hold": "tags::jsonb @> ",
    "tags_held": "::jsonb",
    "tags_index": "USING gin ((tags::jsonb) jsonb_path_ops)",
    "separator": "chr(31)",
    "bytewise": 'key COLLATE "C"',
}


Shape = tuple[bool, ...]  # of each column of a batch: whether it is an array


def bound(rows: Sequence[Row]) -> tuple[Shape, list[Any]]:
    """A batch as it is sent: a column that is the same in all rows once, any other as an array.

    Of what a server settles at once nearly everything is the same but the ids.
    """
    shape: list[bool] = []
    columns: list[Any] = []
    for column in zip(*rows, strict=True):
        varies = column.count(column[0]) < len(rows)
        shape.append(varies)
        columns.append(list(column) if varies else column[0])
    if len(rows) > 1 and not any(shape):  # then an array must say how many there are
        shape[0], columns[0] = True, [row[0] for row in rows]
    return tuple(shape), columns


def together(text: str, also: Sequence[tuple[str, int]], before: int) -> str:
    """One statement that does what several do: one trip instead of one for each.

    `also`: those whose rows are not wanted, and how many arguments each has; theirs come after the
    `before` of the statement itself.
    """
    parts: list[str] = []
    for nth, (other, arguments) in enumerate(also):
        parts.append(f"also_{nth} AS ({_shifted(other, before)})")
        before += arguments
    rest = text.removeprefix("WITH ")
    return f"WITH {', '.join(parts)}{', ' if rest != text else ' '}{rest}"


def _shifted(text: str, by: int) -> str:
    return re.sub(r"\$(\d+)", lambda found: f"${int(found[1]) + by}", text)


class PostgresDialect:
    words = WORDS

    def rows(self, types: Sequence[str], shape: Shape) -> str:
        columns = list(enumerate(zip(types, shape, strict=True), start=1))
        arrays = ", ".join(f"${at}::{type_}[]" for at, (type_, varies) in columns if varies)
        values = ", ".join(
            f"c{at}" if varies else f"${at}::{type_}" for at, (type_, varies) in columns
        )
        if not arrays:
            return f"SELECT {values}"
        names = ", ".join(f"c{at}" for at, (_, varies) in columns if varies)
        return f"SELECT {values} FROM unnest({arrays}) AS r ({names})"  # noqa: S608

    def values(self, type_: str, shape: Shape, before: int) -> str:
        return f"= ANY(${before + 1}::{type_}[])"

    def numbered(self, text: str) -> str:
        numbers = count(1)
        text = re.sub(r"\?(\d+)", r"$\1", text)
        return re.sub(r"\?", lambda _: f"${next(numbers)}", text)


def _own(name: str) -> str:
    return load("onward.ledgers.postgres", name)


STATEMENTS = Statements(PostgresDialect(), _own("queries.sql"))
SCHEMA, INDEXES = ledger_tables(WORDS, _own("schema.sql"), _own("batches.sql") + _own("rings.sql"))
VIEWS = _own("views.sql")
