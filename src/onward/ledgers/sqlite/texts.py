"""Long texts of a task: kept beside its row, which is written anew with every change of any column.

A column that holds LONG refers to the row of `long_text` by its own name. Reading goes through the
expressions here; nothing above the store knows the difference.
"""

from __future__ import annotations

from operator import itemgetter

from onward.ledgers.codec import FIELDS
from onward.ledgers.sql.dialect import Row

LONG = ""  # no JSON text is empty
INLINE = 1_024  # characters; what is longer costs more with each rewriting of its row than aside
NAMES = ("payload", "result", "journal", "bulk")

_PLACES = {name: FIELDS.index(name) for name in NAMES}
_texts = itemgetter(*_PLACES.values())


def read_as(name: str) -> str:
    """A field of `task` as it is read, wherever it lies."""
    if name not in NAMES:
        return name
    aside = f"SELECT body FROM long_text l WHERE l.tid = task.tid AND l.field = '{name}'"  # noqa: S608
    return f"CASE {name} WHEN '' THEN ({aside}) ELSE {name} END"


def is_long(text: object) -> bool:
    return isinstance(text, str) and len(text) > INLINE


def parted(tid: int, row: Row) -> tuple[Row, list[Row]]:
    """A new task's row without its long texts, and those."""
    payload, result, journal, bulk = texts = _texts(row)
    if (
        len(payload) <= INLINE
        and result is bulk is None
        and (journal is None or len(journal) <= INLINE)
    ):
        return row, []  # nearly all
    aside = [(tid, name, text) for name, text in zip(NAMES, texts, strict=True) if is_long(text)]
    values = list(row)
    for _, name, _ in aside:
        values[_PLACES[name]] = LONG
    return tuple(values), aside
