"""The schema of a Postgres ledger, read as a whole or written as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg

from onward.core.errors import Invalid
from onward.ledgers.postgres import SCHEMA
from onward.ledgers.postgres.database import PostgresDatabase
from onward.ledgers.postgres.dialect import WORDS, PostgresDialect
from onward.ledgers.postgres.errors import AWAY, away
from onward.ledgers.postgres.migration import open_schema
from onward.ledgers.sql.dialect import Row
from onward.ledgers.sql.portable import TALLY, SqlPortable, Transaction

_SEQUENCES = """
SELECT setval('task_number', coalesce(max(tid), 0) + 1, false),
    setval('place_number', greatest(max(place), 0) + 1, false),
    setval('event_number', (SELECT coalesce(max(seq), 0) FROM event) + 1, false)
FROM task
"""
_RINGS = """
INSERT INTO ring (queue, priority, lane, partition, turn)
SELECT queue, priority, lane, partition, nextval('turn_number') FROM (
    SELECT queue, priority, lane, partition FROM task
    WHERE state = 'queued' AND partition <> '' GROUP BY 1, 2, 3, 4 ORDER BY min(place)
) AS parted
"""


def postgres_portable(url: str) -> SqlPortable:
    database = PostgresDatabase(url, SCHEMA)
    return SqlPortable(
        partial(_reading, database), partial(_writing, database), WORDS["task_fields"], "enqueued"
    )


@asynccontextmanager
async def _reading(database: PostgresDatabase) -> AsyncIterator[Transaction]:
    async with (
        _connection(database) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        yield _PostgresTransaction(connection)


@asynccontextmanager
async def _writing(database: PostgresDatabase) -> AsyncIterator[Transaction]:
    async with _connection(database) as connection:
        await open_schema(connection, SCHEMA)
        async with connection.transaction():
            yield _PostgresTransaction(connection)
            await connection.execute(TALLY)
            await connection.execute(_SEQUENCES)
            await connection.execute(_RINGS)
        await connection.execute("ANALYZE task, event, letter, document")


@asynccontextmanager
async def _connection(database: PostgresDatabase) -> AsyncIterator[asyncpg.Connection]:
    connection = await database.connect(application_name="onward db")
    try:
        yield connection
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        raise Invalid(
            f"this database holds no ledger of this version: {error}",
            hint="start a server of this version on it once: it brings it up to date",
        ) from error
    except AWAY as error:
        raise away(error) from error
    finally:
        connection.terminate()


class _PostgresTransaction:
    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._numbered = PostgresDialect().numbered

    async def select(self, statement: str, *arguments: Any) -> list[Row]:
        rows = await self._connection.fetch(self._numbered(statement), *arguments)
        return [tuple(row) for row in rows]

    async def insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        await self._connection.copy_records_to_table(
            table, schema_name=SCHEMA, columns=columns, records=rows
        )
