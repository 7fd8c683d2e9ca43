"""The tables of a Postgres ledger: made, or brought up to this version, by one server at a time."""

from __future__ import annotations

import hashlib

import asyncpg

from onward.core.errors import LedgerUnavailable, NotLetIn
from onward.ledgers.postgres.dialect import INDEXES, SCHEMA, VIEWS
from onward.ledgers.sql.schema import TYPES, missing_columns

INDEXES_MARK, VIEWS_MARK = (
    f"onward {hashlib.sha256(text.encode()).hexdigest()[:16]}" for text in (INDEXES, VIEWS)
)
OLDEST = 150_000  # as `server_version_num` has it
VERSION = 1
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended($1, 7))"

WHO = "SELECT quote_ident(current_database()), quote_ident(current_user)"
COLUMNS = """
SELECT column_name FROM information_schema.columns WHERE table_schema = $1 AND table_name = 'task'
"""
BEFORE = """
CREATE SEQUENCE task_number; CREATE SEQUENCE place_number; CREATE SEQUENCE event_number;
CREATE TABLE ledger (version BIGINT NOT NULL);
"""


async def behind_a_pooler(connection: asyncpg.Connection) -> bool:
    """What answered the connection is another process than the one that runs our statements."""
    at_work: int = await connection.fetchval("SELECT pg_backend_pid()")
    return at_work != int(connection.get_server_pid())


async def _create_schema(connection: asyncpg.Connection, schema: str) -> None:
    # Before: once a statement has failed, its transaction answers no other.
    database, user = await connection.fetchrow(WHO)
    try:
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    except asyncpg.InsufficientPrivilegeError as error:
        raise NotLetIn(
            f"Postgres refuses to create the schema {schema}: {error}",
            hint=f"let its owner run: GRANT CREATE ON DATABASE {database} TO {user}",
        ) from error


async def open_schema(connection: asyncpg.Connection, schema: str) -> None:
    found = int(await connection.fetchval("SHOW server_version_num"))
    if found < OLDEST:
        raise LedgerUnavailable(
            f"Postgres {found // 10_000} is too old", hint="use Postgres 15 or newer"
        )
    # It would drop what we set at the start (the tables would be made in another schema), and in
    # transaction mode the notifications by which servers hear of each other.
    if await behind_a_pooler(connection):
        raise LedgerUnavailable(
            "a pooler (pgbouncer) answers in place of Postgres",
            hint="name Postgres itself with --ledger, at its own port",
        )
    async with connection.transaction():
        await connection.execute(LOCK, schema)
        there = [name for (name,) in await connection.fetch(COLUMNS, schema)]
        if not there:
            await _create_schema(connection, schema)
            await connection.execute(BEFORE + SCHEMA)
            await connection.execute("INSERT INTO ledger VALUES ($1)", VERSION)
            there = list(TYPES)
        version = await connection.fetchval("SELECT version FROM ledger")
        if version > VERSION:
            raise LedgerUnavailable(
                f"the ledger was written by a newer Onward (schema {version}, ours is {VERSION})",
                hint="upgrade Onward, or name another database with --ledger",
            )
        for change in missing_columns("task", there, "BIGINT"):
            await connection.execute(change)
        # Not each time: it locks one table after the other, and another server writes to them.
        written = await connection.fetchval("SELECT obj_description(to_regclass('ledger'))")
        if written != INDEXES_MARK:
            await connection.execute(INDEXES)
            await connection.execute(f"COMMENT ON TABLE ledger IS '{INDEXES_MARK}'")
        # Not each time: a person's long query on a view would keep a server from starting.
        written = await connection.fetchval("SELECT obj_description(to_regclass('node_runs'))")
        if written != VIEWS_MARK:
            await connection.execute(VIEWS)
            await connection.execute(f"COMMENT ON VIEW node_runs IS '{VIEWS_MARK}'")
