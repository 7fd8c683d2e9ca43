"""The texts at rest of one SQLite file, ledger or archive, for rotation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any

import msgspec

from onward.backends.codec import Cut
from onward.backends.sealed.cells import (
    CLAIMED,
    CLEAR,
    Cell,
    document_owner,
    effect_owner,
    event_field,
    letter_field,
    owner_of,
)
from onward.backends.sealed.fields import FIELDS
from onward.backends.sqlite.database import Row, Take, named
from onward.core.errors import Invalid

Statement = tuple[str, tuple[Any, ...]]
Read = Callable[[str, Any, Take], Awaitable[Sequence[Row]]]
Write = Callable[[Sequence[Statement]], Awaitable[int]]  # returns how many rows were changed

LEDGER = ("task", "event", "letter", "document", "effect")
ARCHIVE = ("archived_task", "event_log")

STEP_BYTES = 4 << 20  # read at once, and rewritten in one transaction

_SQL = named((files("onward.backends.sqlite") / "cells.sql").read_text())
_PAIRS = frozenset({"document", "effect"})  # tables without a number of their own


class SqlCells:
    def __init__(self, read: Read, write: Write, tables: Sequence[str]) -> None:
        self._read = read
        self._write = write
        self._tables = tables

    async def read(self, after: str, limit: int) -> tuple[Sequence[Cell], str | None]:
        table, last = self._place(after)
        taken = Cut(limit, STEP_BYTES)
        rows = await self._read(_SQL[table], (*last, limit + 1), taken)
        cells = [cell for row in rows for cell in _cells(table, row)]
        if taken.more:
            return cells, f"{table}:{msgspec.json.encode(_key(table, rows[-1])).decode()}"
        later = self._tables[self._tables.index(table) + 1 :]
        return cells, f"{later[0]}:" if later else None

    async def rewrite(self, changes: Sequence[tuple[Cell, str]]) -> int:
        return await self._write(
            [(_statement(cell), (text, *cell.place[1:], cell.text)) for cell, text in changes]
        )

    def _place(self, after: str) -> tuple[str, tuple[str | int, ...]]:
        table, _, key = (after or f"{self._tables[0]}:").partition(":")
        if table not in self._tables:
            raise Invalid(f"{after!r} is no place to begin at", pointer="/after")
        shape = tuple[str, str] if table in _PAIRS else tuple[int]
        try:
            return table, msgspec.json.decode(key, type=shape) if key else _first(table)
        except msgspec.DecodeError as error:
            raise Invalid(f"{after!r} is no place to begin at", pointer="/after") from error


def _first(table: str) -> tuple[str | int, ...]:
    return ("", "") if table in _PAIRS else (-1,)


def _key(table: str, row: Row) -> Row:
    return row[:2] if table in _PAIRS else row[:1]


def _cells(table: str, row: Row) -> Iterable[Cell]:
    match table:
        case "task" | "archived_task":
            yield from _of_task(table, *row)
        case "event" | "event_log":
            number, id, type_, data = row
            if type_ != CLAIMED:
                yield Cell((table, number), owner_of(id), event_field(type_), data)
        case "letter":
            number, id, name, body = row
            yield Cell((table, number), owner_of(id), letter_field(name), body)
        case "document":
            kind, key, body = row
            if kind not in CLEAR:
                yield Cell((table, kind, key), document_owner(kind), key, body)
        case _:
            key, name, value = row
            yield Cell((table, key, name), effect_owner(key), name, value)


def _of_task(table: str, number: int, id: str, *texts: str | None) -> Iterable[Cell]:
    for field, text in zip(FIELDS, texts, strict=True):
        if text is not None:
            yield Cell((f"{table}.{field}", number), owner_of(id), field, text)


def _statement(cell: Cell) -> str:
    table, _, field = str(cell.place[0]).partition(".")
    return _SQL[f"rewrite_{table}"].replace("{field}", field)
