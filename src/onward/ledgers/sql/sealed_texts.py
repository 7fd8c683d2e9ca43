"""The texts at rest of a SQL ledger, or of an archive, for rotation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from onward.core.errors import Invalid
from onward.ledgers.codec import Cut
from onward.ledgers.sealed.fields import FIELDS
from onward.ledgers.sealed.texts import (
    CLAIMED,
    CLEAR,
    SealedText,
    document_owner,
    effect_owner,
    event_field,
    letter_field,
    owner_of,
)
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.store import Transactions
from onward.ledgers.sql.write_batch import Plan

LEDGER = ("task", "event", "letter", "document", "effect")
ARCHIVE = ("task", "event")

STEP_BYTES = 4 << 20  # read at once, and rewritten in one transaction

# Tables without a number of their own: what their keys are, and one that is before them all.
_KEYED: Mapping[str, tuple[Any, tuple[str | int, ...]]] = {
    "long_text": (tuple[int, str], (-1, "")),
    "document": (tuple[str, str], ("", "")),
    "effect": (tuple[str, str, str], ("", "", "")),
}


class SqlSealedTexts:
    def __init__(self, database: Transactions, tables: Sequence[str]) -> None:
        self._db = database
        self._tables = tables

    async def read(self, after: str, limit: int) -> tuple[Sequence[SealedText], str | None]:
        table, last = self._place(after)
        taken = Cut(limit, STEP_BYTES)
        step = Step(f"texts_of_{table}", (*last, limit + 1), fields=FIELDS)
        rows = await self._db.read(step, taken, far=True)
        texts = [one for row in rows for one in _texts_of(table, row)]
        if taken.more:
            return texts, f"{table}:{msgspec.json.encode(_key(table, rows[-1])).decode()}"
        later = self._tables[self._tables.index(table) + 1 :]
        return texts, f"{later[0]}:" if later else None

    async def rewrite(self, changes: Sequence[tuple[SealedText, str]]) -> int:
        def plan() -> Plan[int]:
            rewritten = 0
            for one, text in changes:
                table, _, field = str(one.place[0]).partition(".")
                args = (text, *one.place[1:], one.text)
                rewritten += len((yield Step(f"rewrite_{table}", args, changes=field)))
            return rewritten

        return await self._db.write(plan)

    def _place(self, after: str) -> tuple[str, tuple[str | int, ...]]:
        table, _, key = (after or f"{self._tables[0]}:").partition(":")
        if table not in self._tables:
            raise Invalid(f"{after!r} is no place to begin at", pointer="/after")
        shape, first = _KEYED.get(table, (tuple[int], (-1,)))
        try:
            return table, msgspec.json.decode(key, type=shape) if key else first
        except msgspec.DecodeError as error:
            raise Invalid(f"{after!r} is no place to begin at", pointer="/after") from error


def _key(table: str, row: Row) -> Row:
    return row[: len(_KEYED[table][1])] if table in _KEYED else row[:1]


def _texts_of(table: str, row: Row) -> Iterable[SealedText]:
    match table:
        case "task":
            yield from _of_task(*row)
        case "long_text":
            number, field, id, body = row
            yield SealedText((table, number, field), owner_of(id), field, body)
        case "event":
            number, id, type_, data = row
            if type_ != CLAIMED:
                yield SealedText((table, number), owner_of(id), event_field(type_), data)
        case "letter":
            number, id, name, body = row
            yield SealedText((table, number), owner_of(id), letter_field(name), body)
        case "document":
            kind, key, body = row
            if kind not in CLEAR:
                yield SealedText((table, kind, key), document_owner(kind), key, body)
        case _:
            scope, key, name, value = row
            yield SealedText((table, scope, key, name), effect_owner(key), name, value)


def _of_task(number: int, id: str, *texts: str | None) -> Iterable[SealedText]:
    for field, text in zip(FIELDS, texts, strict=True):
        if text:  # a long one lies elsewhere
            yield SealedText((f"task.{field}", number), owner_of(id), field, text)
