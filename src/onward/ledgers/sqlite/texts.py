"""Long texts of a task: kept beside its row, which is written anew with every change of any column.

A column that holds LONG refers to the row of `long_text` by its own name. Reading goes through the
expressions here; nothing above the store knows the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.ledgers.codec import FIELDS
from onward.ledgers.sqlite.database import Database, Row

LONG = ""  # no JSON text is empty
INLINE = 1_024  # characters; what is longer costs more with each rewriting of its row than aside
NAMES = ("payload", "result", "journal", "bulk")

_PLACES = tuple((FIELDS.index(name), name) for name in NAMES)
_PAYLOAD, _RESULT, _JOURNAL, _BULK = (at for at, _ in _PLACES)


def read_as(name: str) -> str:
    """A field of `task` as it is read, wherever it lies."""
    if name not in NAMES:
        return name
    aside = f"SELECT body FROM long_text l WHERE l.tid = task.tid AND l.field = '{name}'"  # noqa: S608
    return f"CASE {name} WHEN '' THEN ({aside}) ELSE {name} END"


COLUMNS = ", ".join(map(read_as, FIELDS))


class LongTexts:
    """Those of one piece of work, on their way into the file."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def of_row(self, tid: int, row: Row) -> Row:
        """A new task's row, without its long texts."""
        if row[_RESULT] is row[_JOURNAL] is row[_BULK] is None and len(row[_PAYLOAD]) <= INLINE:
            return row  # nearly all
        for at, name in _PLACES:
            text = row[at]
            if text is not None and len(text) > INLINE:
                self._rows.append((tid, name, row[at]))
                row = (*row[:at], LONG, *row[at + 1 :])
        return row

    def of_changes(self, tid: int, changes: Mapping[str, Any]) -> None:
        for name in NAMES:
            text = changes.get(name)
            if isinstance(text, str) and len(text) > INLINE:
                self._rows.append((tid, name, text))

    def write(self, database: Database) -> None:
        database.run_rows("put_long_texts", self._rows)
        self._rows.clear()
