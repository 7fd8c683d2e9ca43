"""One connection that writes. What waits for it meanwhile goes into its next transaction together.

A transaction with several plans that fails is undone, and each is tried alone: one bad plan never
costs its neighbours anything. Servers may meet at the same rows; a deadlock, or a lock not had in
time, is tried again. If the reply to a COMMIT is lost, the transaction's fate is asked for. A
Postgres that gives no answer in time is left: without a ROLLBACK, and with all that waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import asyncpg

from onward.core.errors import LedgerUnavailable
from onward.ledgers.postgres.batch import EVENTS
from onward.ledgers.postgres.errors import AWAY, away, translated
from onward.ledgers.sql.dialect import Step
from onward.ledgers.sql.write_batch import Plan

T = TypeVar("T")

TRIES = 5
MOST = 8  # plans in one transaction
CLOSE_S = 5.0  # for what is under way, and for the connection's orderly end
MET_ANOTHER = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
)


class InTheWay(LedgerUnavailable):
    """Other servers hold the rows that a transaction wants, again and again."""


class _Waiting(NamedTuple):
    plan: Callable[[], Plan[Any]]
    result: asyncio.Future[Any]
    locks: Sequence[str]  # that it will take


class TransactionWriter:
    def __init__(
        self,
        connect: Callable[[], Awaitable[asyncpg.Connection]],
        bound: Callable[[Step], Sequence[Any]],
        fate: Callable[[str], Awaitable[str | None]],
    ) -> None:
        self._connect = connect
        self._bound = bound
        self._fate = fate
        self._connection: asyncpg.Connection | None = None
        self._waiting: deque[_Waiting] = deque()
        self._running: asyncio.Task[None] | None = None

    async def write(self, plan: Callable[[], Plan[T]], locks: Sequence[str] = ()) -> T:
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        self._waiting.append(_Waiting(plan, result, locks))
        if self._running is None:
            self._running = loop.create_task(self._run())
        return await result  # a caller that goes away changes nothing: it is written all the same

    async def close(self) -> None:
        if (running := self._running) is not None:
            _, late = await asyncio.wait([running], timeout=CLOSE_S)
            if late:
                running.cancel()
                await asyncio.wait([running], timeout=CLOSE_S)
                if self._connection is not None:
                    self._connection.terminate()
        if self._connection is not None:
            with suppress(*AWAY):
                await self._connection.close(timeout=CLOSE_S)

    async def _run(self) -> None:
        group: list[_Waiting] = []
        try:
            while self._waiting:
                group = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
                if not await self._done_together(group):
                    for one in group:
                        await self._done_together([one])
        except LedgerUnavailable as error:  # silent: each of them would wait as long for nothing
            self._fail_all(group, error)
        except BaseException:
            self._fail_all(group, LedgerUnavailable("Postgres did not answer before the end"))
            raise
        finally:
            self._running = None

    def _fail_all(self, group: Sequence[_Waiting], error: LedgerUnavailable) -> None:
        for one in (*group, *self._waiting):
            _fail(one, error)
        self._waiting.clear()

    async def _done_together(self, group: Sequence[_Waiting]) -> bool:
        """False: nothing was written, and each is to be tried alone."""
        try:
            results = await self._transact(group)
        except Exception as error:
            if isinstance(error.__cause__, TimeoutError):
                raise
            # A Postgres that is away fails them all; anything else is the matter of one of them.
            is_away = isinstance(error, LedgerUnavailable) and not isinstance(error, InTheWay)
            if len(group) > 1 and not is_away:
                return False
            for one in group:
                _fail(one, error)
            return True
        for one, result in zip(group, results, strict=True):
            if not one.result.done():
                one.result.set_result(result)
        return True

    async def _transact(self, group: Sequence[_Waiting]) -> list[Any]:
        for _ in range(TRIES):
            with suppress(*MET_ANOTHER):
                return await self._transact_once(group)
        raise InTheWay("other servers are in the way of this transaction")

    async def _transact_once(self, group: Sequence[_Waiting]) -> list[Any]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connect()
        connection, xid = self._connection, None
        results: list[Any] = []
        try:
            await connection.execute("BEGIN")
            locks = {lock for one in group for lock in one.locks}
            if locks and len(group) > 1:
                # In one order before all else: one plan's after another's, two servers would wait
                # for each other.
                await connection.fetch(*self._bound(Step("lock", (sorted(locks),))))
            for one in group:
                result, written = await self._drive(connection, one.plan())
                results.append(result)
                xid = written or xid
        except BaseException as error:
            await self._undo(connection, error)
            raise translated(error) from error
        await self._commit(connection, xid)
        return results

    async def _drive(self, connection: asyncpg.Connection, plan: Plan[T]) -> tuple[T, str | None]:
        xid: str | None = None
        try:
            step = next(plan)
            while True:
                rows = await connection.fetch(*self._bound(step))
                if step.name == EVENTS:
                    ((xid,),) = rows
                step = plan.send(rows)
        except StopIteration as done:
            return done.value, xid

    async def _undo(self, connection: asyncpg.Connection, error: BaseException) -> None:
        # A Postgres that is silent would not answer a ROLLBACK either; and who ends cannot wait.
        if isinstance(error, Exception) and not isinstance(error, TimeoutError):
            with suppress(*AWAY, asyncpg.PostgresError):
                await connection.execute("ROLLBACK")
                return
        connection.terminate()

    async def _commit(self, connection: asyncpg.Connection, xid: str | None) -> None:
        try:
            await connection.execute("COMMIT")
        except AWAY as error:
            connection.terminate()
            # Written, or not? The caller must neither do it twice nor believe it undone.
            if xid is None or await self._fate(xid) != "committed":
                raise away(error) from error


def _fail(one: _Waiting, error: BaseException) -> None:
    if not one.result.done():
        one.result.set_exception(error)
        one.result.exception()  # retrieved: without a caller asyncio would log it
