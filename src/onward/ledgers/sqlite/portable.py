"""The file of a SQLite ledger, read as a whole or written as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import Any

import apsw

from onward.core.errors import Invalid
from onward.ledgers.codec import FIELDS
from onward.ledgers.sql.dialect import Row
from onward.ledgers.sql.portable import TALLY, SqlPortable, Transaction
from onward.ledgers.sqlite.database import DISK_ERRORS, LEDGER, open_schema
from onward.ledgers.sqlite.dialect import WORDS
from onward.ledgers.sqlite.files import cannot_open, take
from onward.ledgers.sqlite.texts import parted

_COUNTERS = """
UPDATE counter SET
    tid = (SELECT coalesce(max(tid), 0) FROM task),
    place = (SELECT coalesce(max(max(place), max(tid)), 0) FROM task),
    event = (SELECT coalesce(max(seq), 0) FROM event)
"""


def sqlite_portable(path: str) -> SqlPortable:
    return SqlPortable(partial(_reading, path), partial(_writing, path), WORDS["task_fields"])


@asynccontextmanager
async def _reading(path: str) -> AsyncIterator[Transaction]:
    """Beside a running server: it does not wait for readers, nor they for it."""
    with _explained(path):
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        with closing(connection):
            connection.execute("BEGIN")
            yield _SqliteTransaction(connection)


@asynccontextmanager
async def _writing(path: str) -> AsyncIterator[Transaction]:
    with take(path), _explained(path), closing(apsw.Connection(path)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        open_schema(connection, LEDGER, path, "name another file")
        with connection:
            yield _SqliteTransaction(connection)
            connection.execute(TALLY)
            connection.execute(_COUNTERS)


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except apsw.SQLError as error:
        raise Invalid(
            f"{path} is no ledger of this version: {error}",
            hint="start a server of this version on it once: it brings it up to date",
        ) from error
    except DISK_ERRORS as error:
        raise cannot_open(path, error) from error


class _SqliteTransaction:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    async def select(self, statement: str, *arguments: Any) -> list[Row]:
        return self._connection.execute(statement, arguments).fetchall()

    async def insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        if table == "task":
            rows, aside = _parted(columns, rows)
            if aside:
                await self.insert("long_text", ("tid", "field", "body"), aside)
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        statement = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608 our own words
        self._connection.executemany(statement, rows)


def _parted(columns: Sequence[str], rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The rows without their long texts, and those."""
    own = len(columns) - len(FIELDS)
    whole: list[Row] = []
    aside: list[Row] = []
    for row in rows:
        fields, long = parted(row[0], row[own:])
        whole.append((*row[:own], *fields))
        aside += long
    return whole, aside
