"""What `onward doctor` looks at when the ledger is a Postgres: can it keep what it is given?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from onward.cli.checkup import BAD, GOOD, ODD, Finding, clock, silent_readers
from onward.urls import shown

if TYPE_CHECKING:
    from onward.settings import Settings

SERVERS = 3  # that should find room
DEAD_ROWS, DEAD_SHARE = 100_000, 0.5
OPEN_ODD_S, OPEN_BAD_S = 300, 3_600

_SETTINGS = """
SELECT name, setting FROM pg_settings WHERE name = ANY($1)
"""
_CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_OLDEST = """
SELECT pid, coalesce(nullif(application_name, ''), usename::text, 'an unnamed client'),
    extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE backend_type = 'client backend' AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
ORDER BY xact_start LIMIT 1
"""
_DEAD = """
SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables
WHERE schemaname = $1 AND n_dead_tup > $2 AND n_dead_tup > $3 * (n_live_tup + n_dead_tup)
ORDER BY n_dead_tup DESC
"""


def examine_postgres(settings: Settings) -> Iterator[Finding]:
    async def found() -> list[Finding]:
        return [finding async for finding in _examine(settings.ledger)]

    yield from asyncio.run(found())


async def _examine(url: str) -> AsyncIterator[Finding]:
    from onward.core.errors import LedgerUnavailable, NotLetIn

    try:
        from onward.ledgers.postgres import SCHEMA
        from onward.ledgers.postgres.database import PostgresDatabase
    except ModuleNotFoundError:
        yield Finding(BAD, "ledger", "asyncpg is missing", "pip install 'onward[postgres]'")
        return
    try:
        connection = await PostgresDatabase(url, SCHEMA).connect(application_name="onward doctor")
    except NotLetIn as error:
        todo = "correct user, password and database, or pg_hba.conf"
        yield Finding(BAD, "ledger", f"{shown(url)}: {error}", todo)
        return
    except LedgerUnavailable as error:
        yield Finding(BAD, "ledger", f"{shown(url)}: {error}", _cure(str(error)))
        return
    try:
        async for finding in _look(url, connection):
            yield finding
    finally:
        await connection.close()


def _cure(error: str) -> str:
    if "startup parameter" in error:  # only a pooler has an opinion on those
        return "a pooler answers there: name Postgres itself"
    return "start Postgres (or see why it does not answer), or correct --ledger"


async def _look(url: str, connection: Any) -> AsyncIterator[Finding]:
    names = (
        *("server_version", "server_version_num", "server_encoding", "fsync", "full_page_writes"),
        *("synchronous_commit", "max_connections", "superuser_reserved_connections"),
        "autovacuum",
    )
    settings = dict(await connection.fetch(_SETTINGS, names))
    yield _version(url, settings)
    yield await _pooler(connection)
    yield await _role(connection)
    yield _encoding(settings)
    yield _durability(settings)
    yield await _connections(connection, settings)
    yield await _vacuum(connection, settings)
    yield await _transactions(connection)
    yield await _clock(connection)
    async for finding in _ledger(connection):
        yield finding


def _version(url: str, settings: Mapping[str, str]) -> Finding:
    from onward.ledgers.postgres.migration import OLDEST

    found = f"{shown(url)} is Postgres {settings['server_version']}"
    if int(settings["server_version_num"]) < OLDEST:
        return Finding(BAD, "ledger", found, f"upgrade to Postgres {OLDEST // 10_000} or newer")
    return Finding(GOOD, "ledger", found)


async def _pooler(connection: Any) -> Finding:
    from onward.ledgers.postgres.migration import behind_a_pooler

    if await behind_a_pooler(connection):
        found = "a pooler (pgbouncer) answers in its place: servers would not hear each other"
        return Finding(BAD, "connection", found, "name Postgres itself, at its own port")
    return Finding(GOOD, "connection", "direct")


async def _role(connection: Any) -> Finding:
    if await connection.fetchval("SELECT pg_is_in_recovery()"):
        todo = "name all hosts, and ?target_session_attrs=read-write"
        return Finding(BAD, "role", "a standby: it takes no writes", todo)
    return Finding(GOOD, "role", "primary")


def _encoding(settings: Mapping[str, str]) -> Finding:
    encoding = settings["server_encoding"]
    if encoding != "UTF8":
        todo = "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        return Finding(BAD, "encoding", f"{encoding}: it cannot hold every text", todo)
    return Finding(GOOD, "encoding", encoding)


def _durability(settings: Mapping[str, str]) -> Finding:
    for name in ("fsync", "full_page_writes"):
        if settings[name] == "off":
            found = f"{name} is off: a power cut may destroy the database"
            return Finding(BAD, "durability", found, f"ALTER SYSTEM SET {name} = on, and restart")
    level = settings["synchronous_commit"]
    if level == "off":
        found = "synchronous_commit is off: a crash loses up to a second of accepted tasks"
        todo = "ALTER DATABASE … SET synchronous_commit = on, if that is too much"
        return Finding(ODD, "durability", found, todo)
    found = f"synchronous_commit {level}: a crash loses nothing that was answered"
    return Finding(GOOD, "durability", found)


async def _connections(connection: Any, settings: Mapping[str, str]) -> Finding:
    from onward.ledgers.postgres.database import CONNECTIONS

    used = await connection.fetchval(_CONNECTIONS)
    most = int(settings["max_connections"]) - int(settings["superuser_reserved_connections"])
    free = max(0, most - used)
    found = f"{free} of {most} are free; a server uses up to {CONNECTIONS}"
    todo = "raise max_connections, or see who has the others (pg_stat_activity)"
    if free < CONNECTIONS:
        return Finding(BAD, "connections", found, todo)
    few = free < SERVERS * CONNECTIONS
    return Finding(ODD if few else GOOD, "connections", found, todo if few else "")


async def _vacuum(connection: Any, settings: Mapping[str, str]) -> Finding:
    from onward.ledgers.postgres import SCHEMA

    if settings["autovacuum"] == "off":
        found = "autovacuum is off: dead rows stay, and everything gets slower"
        return Finding(BAD, "vacuum", found, "ALTER SYSTEM SET autovacuum = on, and reload")
    for table, dead, live in await connection.fetch(_DEAD, SCHEMA, DEAD_ROWS, DEAD_SHARE):
        found = f"{SCHEMA}.{table} has {dead:,} dead rows beside {live:,}: autovacuum lags behind"
        todo = f"VACUUM (ANALYZE) {SCHEMA}.{table}; look for old open transactions"
        return Finding(ODD, "vacuum", found, todo)
    return Finding(GOOD, "vacuum", "no table has many dead rows")


async def _transactions(connection: Any) -> Finding:
    row = await connection.fetchrow(_OLDEST)
    if row is None or row[2] < OPEN_ODD_S:
        return Finding(GOOD, "transactions", "none has been open for long")
    pid, whose, seconds = row
    found = (
        f"one of {whose} has been open for {seconds / 60:,.0f} min: until it ends, no dead row goes"
    )
    mark = BAD if seconds > OPEN_BAD_S else ODD
    return Finding(mark, "transactions", found, f"end it: SELECT pg_terminate_backend({pid})")


async def _clock(connection: Any) -> Finding:
    asked = time.time()
    seconds = float(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())"))
    return clock("postgres clock", "Postgres's", seconds - (asked + time.time()) / 2)


async def _ledger(connection: Any) -> AsyncIterator[Finding]:
    from onward.ledgers.postgres import SCHEMA
    from onward.ledgers.postgres.migration import VERSION

    if not await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f"{SCHEMA}.ledger"):
        may = "SELECT has_database_privilege(current_database(), 'CREATE')"
        if await connection.fetchval(may):
            yield Finding(GOOD, "schema", f"{SCHEMA} will be made")
        else:
            todo = f"GRANT CREATE ON DATABASE … TO {await connection.fetchval('SELECT user')}"
            yield Finding(BAD, "schema", f"{SCHEMA} is not there, and cannot be made", todo)
        return
    version = await connection.fetchval(f"SELECT version FROM {SCHEMA}.ledger")  # noqa: S608
    if version > VERSION:
        found = f"version {version}, and this Onward knows {VERSION}"
        yield Finding(BAD, "schema", found, "upgrade Onward, or name another database")
        return
    yield Finding(GOOD, "schema", f"{SCHEMA}, version {version}")
    kinds = "SELECT kind, key, body FROM document WHERE kind IN ('cursor', 'reader')"
    rows = await connection.fetch(kinds)
    names = [key for kind, key, _ in rows if kind == "cursor"]
    for finding in silent_readers(names, [row[1:] for row in rows if row[0] == "reader"]):
        yield finding
