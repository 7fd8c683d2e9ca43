"""`onward.enqueue`: hand work in inside a transaction of the caller's own, on a Postgres ledger.

The connection is the caller's: psycopg, asyncpg or SQLAlchemy, plain or async. What is handed in is
rolled back with the transaction; a server takes it over after the commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import uuid_utils

from onward.client.api import encode
from onward.client.submitting import call_of
from onward.errors import OnwardError
from onward.wire.base import MAX_BODY
from onward.wire.problems import fault_of
from onward.wire.tasks import TOO_LARGE, Submit

TABLE = "onward.enqueued"
LOOK = f"SELECT 1 WHERE to_regclass('{TABLE}') IS NOT NULL"
INSERT = f"INSERT INTO {TABLE} (id, body) VALUES ({{}}, {{}})"  # noqa: S608

Run = Callable[[str, tuple[str, ...]], Any]


def enqueue(connection: Any, type_: str, payload: Any = None, /, **options: Any) -> Any:
    """Returns the task's id; on an async connection, await it.

    Options are those of `Client.submit`, but for `idempotency_key` and `wait`: a transaction
    happens once, and nothing runs before it is committed.
    """
    for name in ("idempotency_key", "wait", "wait_ms"):
        if name in options:
            raise TypeError(f"enqueue() takes no {name}")
    body = call_of(type_, (payload,), options, {}).body
    text = _checked(encode(body))
    run, insert, is_async = _way_of(connection)
    return _later(run, insert, text) if is_async else _now(run, insert, text)


def _checked(body: bytes) -> str:
    """Here, where the caller can still mend it: after the commit it can only be a dead letter."""
    if len(body) > MAX_BODY:
        raise ValueError(TOO_LARGE)
    try:
        msgspec.json.decode(body, type=Submit)
    except msgspec.ValidationError as error:
        wrong = fault_of(str(error), Submit)
        raise ValueError(f"{wrong.pointer.removeprefix('/')}: {wrong.message}") from None
    return body.decode()


def _now(run: Run, insert: str, body: str) -> str:
    _check(run(LOOK, ()))
    id = str(uuid_utils.uuid7())
    run(insert, (id, body))
    return id


async def _later(run: Callable[..., Awaitable[Any]], insert: str, body: str) -> str:
    _check(await run(LOOK, ()))
    id = str(uuid_utils.uuid7())
    await run(insert, (id, body))
    return id


def _check(found: int | None) -> None:
    """Before the INSERT: one that fails would end the caller's transaction."""
    if not found:
        raise OnwardError(
            "this connection is to a database that holds no Onward ledger",
            hint="use the database of the servers' --ledger; a server's first start prepares it",
        )


def _way_of(connection: Any) -> tuple[Run, str, bool]:
    """How to run a statement, which returns whether it found a row; the INSERT with this driver's
    placeholders; and whether all of it is awaited.
    """
    kinds = {kind.__module__.partition(".")[0]: kind for kind in type(connection).__mro__}
    if "asyncpg" in kinds:
        insert = INSERT.format("$1", "$2")
        return lambda text, values: connection.fetchval(text, *values), insert, True
    is_async = "async" in type(connection).__name__.lower()
    if "sqlalchemy" in kinds:
        run = partial(_by_sqlalchemy_async if is_async else _by_sqlalchemy, connection)
        return run, INSERT.format(":v0", ":v1"), is_async
    run = partial(_by_cursor_async if is_async else _by_cursor, connection)
    return run, INSERT.format("%s", "%s"), is_async


def _by_cursor(connection: Any, text: str, values: tuple[str, ...]) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(text, values)
        return cursor.rowcount  # not a row: a connection may have rows of any type


async def _by_cursor_async(connection: Any, text: str, values: tuple[str, ...]) -> Any:
    async with connection.cursor() as cursor:
        await cursor.execute(text, values)
        return cursor.rowcount


def _by_sqlalchemy(connection: Any, text: str, values: tuple[str, ...]) -> Any:
    return _value(connection.execute(*_named(text, values)))


async def _by_sqlalchemy_async(connection: Any, text: str, values: tuple[str, ...]) -> Any:
    return _value(await connection.execute(*_named(text, values)))


def _named(text: str, values: tuple[str, ...]) -> tuple[Any, dict[str, str]]:
    from sqlalchemy import text as sql

    return sql(text), {f"v{at}": value for at, value in enumerate(values)}


def _value(result: Any) -> Any:
    return result.scalar() if result.returns_rows else None
