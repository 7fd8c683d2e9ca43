"""The connections to one Postgres: two that write, a few that read. Decides nothing about tasks.

New and queued tasks are one writer's, moves of tasks that are held or wait the other's: so the two
never wait for the same rows, and one claims while the other settles.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeVar

import asyncpg

from onward.core.errors import LedgerUnavailable
from onward.ledgers.codec import text_bytes
from onward.ledgers.postgres.dialect import STATEMENTS, bound, together
from onward.ledgers.postgres.errors import AWAY, away
from onward.ledgers.postgres.migration import open_schema
from onward.ledgers.postgres.writer import TransactionWriter
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.store import Take
from onward.ledgers.sql.write_batch import Plan, TallyKey

T = TypeVar("T")

READERS = 4
CONNECTIONS = READERS + 3  # of one server: two that write, one that listens
CONNECT_S = 5.0
ANSWER_S = 35.0  # to a statement: above `statement_timeout`, by which a Postgres that lives answers
RESOLVE_S = 10.0  # for the fate of a transaction whose COMMIT was not answered
PART = 64  # rows of a large read at once
READ_BYTES = 8 << 20  # of a large read: no page is longer

SETTINGS = {
    "application_name": "onward",
    "jit": "off",
    "statement_timeout": "30s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "30s",
    # Every statement of ours goes by an index. A plan that is made while a table is empty, and
    # kept, must not be one that reads all of it.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
WRITER = SETTINGS | {"plan_cache_mode": "force_generic_plan"}


class PostgresDatabase:
    def __init__(self, url: str, schema: str) -> None:
        self.url = url
        self.schema = schema
        self._intake, self._moves = (
            TransactionWriter(self._connect_writer, self._bound, self._fate) for _ in range(2)
        )
        self._opening = asyncio.Lock()
        self._readers: asyncpg.Pool | None = None

    # Connections.

    async def connect(self, answer_s: float | None = None, **settings: str) -> asyncpg.Connection:
        """A connection of its own, for as long as the caller wants it. Without `answer_s` a
        statement may take any time, and a host that has gone silent is waited for.
        """
        try:
            return await asyncpg.connect(
                self.url,
                timeout=CONNECT_S,
                command_timeout=answer_s,
                statement_cache_size=1_024,
                max_cached_statement_lifetime=0,
                max_cacheable_statement_size=0,
                server_settings={"search_path": self.schema, **settings},
            )
        except (*AWAY, asyncpg.PostgresError) as error:
            raise away(error) from error

    async def prepare(self) -> asyncpg.Pool:
        """Connect, and see to the tables."""
        async with self._opening:
            if self._readers is not None:
                return self._readers
            connection = await self.connect(ANSWER_S, **SETTINGS)
            try:
                await open_schema(connection, self.schema)
            except AWAY as error:
                raise away(error) from error
            finally:
                connection.terminate()
            self._readers = await asyncpg.create_pool(
                min_size=0,
                max_size=READERS,
                connect=lambda *_, **__: self.connect(ANSWER_S, **SETTINGS),
                reset=_leave_as_it_is,
                max_inactive_connection_lifetime=60,
            )
            return self._readers

    # Writing.

    async def write(
        self, plan: Callable[[], Plan[T]], *, intake: bool = False, locks: Sequence[str] = ()
    ) -> T:
        return await (self._intake if intake else self._moves).write(plan, locks)

    async def _connect_writer(self) -> asyncpg.Connection:
        await self.prepare()
        return await self.connect(ANSWER_S, **WRITER)

    async def _fate(self, xid: str) -> str | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(RESOLVE_S):
                while True:
                    with suppress(LedgerUnavailable):
                        ((fate,),) = await self.read(Step("fate", (xid,)))
                        if fate != "in progress":
                            return str(fate)
                    await asyncio.sleep(0.2)
        return None

    def _bound(self, step: Step) -> tuple[Any, ...]:
        text, *given = _bound_alone(step)
        if not step.also:
            return text, *given
        others = [_bound_alone(one) for one in step.also]
        also = tuple((other, len(args)) for other, *args in others)
        return _together(text, also, len(given)), *given, *(a for _, *args in others for a in args)

    # Reading.

    async def read(self, step: Step, take: Take = list, *, far: bool = False) -> list[Row]:
        try:
            async with self._reader() as connection:
                if not far:
                    return take(iter(await connection.fetch(*self._bound(step))))
                async with connection.transaction(readonly=True):
                    with _cut_if_silent(connection):
                        cursor = await connection.cursor(*self._bound(step))
                        return take(iter(await _rows_within(cursor, READ_BYTES)))
        except AWAY as error:
            raise away(error) from error
        except asyncpg.CharacterNotInRepertoireError:
            return take(iter(()))  # asked for a text with a NUL, which no row here can have

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[asyncpg.Connection]:
        readers = self._readers or await self.prepare()
        async with readers.acquire(timeout=CONNECT_S) as connection:
            with _cut_if_silent(connection):
                yield connection

    async def kept(self) -> None:
        """What can be read is committed, and on disk as far as this Postgres is set to be sure."""

    async def tally(self) -> Collection[tuple[TallyKey, int]]:
        return [(tuple(row[:4]), row[4]) for row in await self.read(Step("tallies"))]

    async def compact(self, most: int) -> None:
        """Add up the changes of counts if there are more than so many."""
        try:
            async with self._reader() as connection:
                done = await connection.execute(*self._bound(Step("compact", (most,))))
                if done != "INSERT 0 0":
                    await connection.execute("VACUUM tally")  # it is small, and read often
                await connection.execute(*self._bound(Step("compact_batches", (most,))))
        except AWAY as error:
            raise away(error) from error

    async def close(self) -> None:
        await asyncio.gather(self._intake.close(), self._moves.close())
        if self._readers is not None:
            self._readers.terminate()


@contextmanager
def _cut_if_silent(connection: asyncpg.Connection) -> Iterator[None]:
    """A ROLLBACK, or the pool, would wait once more for the answer that does not come."""
    try:
        yield
    except TimeoutError:
        connection.terminate()
        raise


async def _rows_within(cursor: Any, most_bytes: int) -> list[Row]:
    """As many rows as fit, and one beyond: whether there are more must be seen."""
    found: list[Row] = []
    spent = 0
    while True:
        wanted = PART if spent <= most_bytes else 1
        part = await cursor.fetch(wanted)
        found += part
        if len(part) < wanted or spent > most_bytes:
            return found
        spent += text_bytes(value for row in part for value in row)


def _bound_alone(step: Step) -> tuple[Any, ...]:
    """Its text and its arguments."""
    if step.rows is not None:
        shape, columns = bound(step.rows)
        return STATEMENTS.text(step, shape), *columns
    text = STATEMENTS.text(step, ())
    if step.values is not None:
        return text, *step.args, list(step.values)
    return text, *step.args


_together = lru_cache(maxsize=1_024)(together)


async def _leave_as_it_is(_: asyncpg.Connection) -> None:
    """A reader leaves nothing behind that the next would have to be rid of."""
