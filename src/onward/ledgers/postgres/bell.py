"""The bell over LISTEN/NOTIFY: what happens on one server reaches all that share the ledger.

A notification is sent after the commit, on a connection of its own: in the transaction it would
make all servers' commits wait for each other. So one may be lost with its server, as any ring may.
Nothing is sent while no other server has been heard of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

import asyncpg
import msgspec
import structlog

from onward.core.contract import ENQUEUED, PeerEvents
from onward.core.errors import LedgerUnavailable
from onward.core.task import TaskId, new_id
from onward.ledgers.local_bell import LocalBell
from onward.ledgers.postgres.database import PostgresDatabase
from onward.ledgers.postgres.errors import AWAY

log = structlog.get_logger("onward.bell")

NOTIFY = "SELECT pg_notify($1, $2)"
MESSAGE_BYTES = 7_900  # Postgres refuses a message of 8,000
PEER_S = 5.0  # a server that was not heard for so long is gone
ANSWER_S = 5.0


class _News(msgspec.Struct, array_like=True):
    sender: str
    queues: Sequence[str] = ()  # with new work
    tasks: Sequence[TaskId] = ()  # with new events, but not ended
    ended: Sequence[TaskId] = ()
    unnamed: bool = False  # something has happened whose name no message can hold


_decode = msgspec.json.Decoder(_News).decode


class PostgresBell(LocalBell):
    def __init__(self, database: PostgresDatabase) -> None:
        super().__init__()
        self._db = database
        self._channel = f"{database.schema}_bell"
        self._id = new_id()
        self._peer: PeerEvents | None = None
        self._connection: asyncpg.Connection | None = None
        self._heard_at = float("-inf")  # another server, by the monotonic clock
        self._queues: set[str] = set()  # to be sent next
        self._tasks: dict[TaskId, bool] = {}  # and whether it has ended
        self._sending: asyncio.Task[None] | None = None
        # Without it `check` would find the connection busy with what is being sent, and drop it.
        self._notifying = asyncio.Lock()

    def attach(self, peer: PeerEvents) -> None:
        self._peer = peer

    def publish(self, queues: Collection[str], tasks: Mapping[TaskId, bool]) -> None:
        """Soon: what is published while a message is on its way goes with the next."""
        alone = self._peer is not None and time.monotonic() - self._heard_at > PEER_S
        if alone or not (queues or tasks):
            return
        self._queues.update(queues)
        self._tasks.update(tasks)
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def check(self) -> None:
        """Once a second: listen, if that was lost, and let the others know that we do."""
        if self._peer is None:
            return
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._notify(self._messages((), ()))
        except (*AWAY, asyncpg.PostgresError, LedgerUnavailable) as error:
            log.warning("bell lost", error=repr(error))
            self._drop()

    async def close(self) -> None:
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=ANSWER_S)
        self._drop()

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            # What a NOTIFY writes need not survive a power cut: its commit waits for no disk.
            connection = await self._db.connect(ANSWER_S, synchronous_commit="off")
            await connection.add_listener(self._channel, self._pass_on)
            self._connection = connection
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _send(self) -> None:
        try:
            while self._queues or self._tasks:
                queues, self._queues = self._queues, set()
                tasks, self._tasks = self._tasks, {}
                await self._notify(self._messages([*queues], [*tasks.items()]))
        except (*AWAY, asyncpg.PostgresError, LedgerUnavailable) as error:
            log.warning("ring lost", error=repr(error))
            self._drop()
        finally:
            self._sending = None

    async def _notify(self, messages: Iterator[bytes]) -> None:
        async with self._notifying:
            connection = await self._connected()
            texts = [(self._channel, message.decode()) for message in messages]
            await connection.executemany(NOTIFY, texts)

    def _messages(
        self, queues: Sequence[str], tasks: Sequence[tuple[TaskId, bool]]
    ) -> Iterator[bytes]:
        """One, or as many as it takes for each to fit."""
        going_on = [task for task, has_ended in tasks if not has_ended]
        ended = [task for task, has_ended in tasks if has_ended]
        message = msgspec.json.encode(_News(self._id, queues, going_on, ended))
        if len(message) <= MESSAGE_BYTES:
            yield message
        elif len(queues) + len(tasks) > 1:
            at, task_at = (len(queues) + 1) // 2, len(tasks) // 2
            yield from self._messages(queues[:at], tasks[:task_at])
            yield from self._messages(queues[at:], tasks[task_at:])
        else:
            yield msgspec.json.encode(_News(self._id, unnamed=True))

    def _pass_on(self, _: object, __: int, ___: str, message: object) -> None:
        try:
            news = _decode(str(message))
        except msgspec.MsgspecError as error:  # of another version, perhaps: a ring may be lost
            log.warning("ring not understood", error=str(error))
            return
        if news.sender == ENQUEUED:
            self.ring(ENQUEUED)
            return
        if news.sender == self._id or self._peer is None:
            return
        self._heard_at = time.monotonic()
        tasks = list(dict.fromkeys((*news.tasks, *news.ended)))
        if news.queues or tasks or news.unnamed:  # else: it is there
            self.ring_for(news.queues, tasks)
            self._peer.on_news(news.queues, tasks, dict.fromkeys(news.ended))
