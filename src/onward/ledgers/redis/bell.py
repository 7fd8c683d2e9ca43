"""The bell over pub/sub: what happens on one server reaches all that share the ledger.

Nothing is published from here: the ledger's functions publish what they have done, in the call that
did it. This subscribes to that, and is the bell of our own process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from onward.core.contract import PeerEvents
from onward.core.errors import LedgerUnavailable
from onward.core.task import Ending, Instant, Json, State, TaskId, new_id
from onward.ledgers.local_bell import LocalBell
from onward.ledgers.redis.client import Functions
from onward.ledgers.redis.connection import RedisConnection, open_connection

log = structlog.get_logger("onward.bell")

AGAIN_S = 0.5
ANSWER_S = 5.0  # for a SUBSCRIBE or a PING on the listening connection


class _Ended(msgspec.Struct, array_like=True):
    id: TaskId
    state: State | None = None  # None: its result or error is too long to be sent
    result: Json | None = None
    error: Json | None = None
    at: Instant = 0


class _News(msgspec.Struct, array_like=True):
    """One message, as `ring` in ledger.lua writes it."""

    sender: str
    queues: Sequence[str]  # with new work
    tasks: Sequence[TaskId]  # with new events
    endings: Sequence[_Ended]


_decode = msgspec.msgpack.Decoder(_News).decode


def _ending(ended: _Ended) -> Ending | None:
    if ended.state is None:
        return None
    return Ending(ended.id, ended.state, ended.result, ended.error, ended.at)


class RedisBell(LocalBell):
    def __init__(self, functions: Functions, listening: Redis) -> None:
        super().__init__()
        self._functions = functions
        self._listening = listening
        self._channel = f"{functions.prefix}onward:bell"
        self._id = new_id()
        self._connection: RedisConnection | None = None  # while we listen
        self._asking = asyncio.Lock()  # on that connection
        self._receiving: asyncio.Task[None] | None = None

    def attach(self, peer: PeerEvents) -> None:
        self._receiving = asyncio.get_running_loop().create_task(self._receive(peer))

    async def check(self) -> None:
        """Drop a connection that is dead without either end having noticed (a proxy, a lost route):
        a new one is opened in its place.
        """
        connection = self._connection
        if connection is None:
            return
        try:
            async with asyncio.timeout(ANSWER_S), self._asking:
                await connection.ask("PING")
        except (RedisError, TimeoutError):
            connection.cut()

    async def close(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.wait([self._receiving])

    async def _receive(self, peer: PeerEvents) -> None:
        while True:
            try:
                async with self._subscribed(peer) as connection:
                    raise await connection.lost
            except (RedisError, OSError, LedgerUnavailable) as error:
                log.warning("bell lost", error=repr(error))
            except Exception:  # a fault of ours: without a bell everything would be late for ever
                log.exception("bell lost")
            await asyncio.sleep(AGAIN_S)

    def _pass_on(self, message: bytes, peer: PeerEvents) -> None:
        try:
            news = _decode(message)
        except msgspec.MsgspecError as error:  # of another version, perhaps: a ring may be lost
            log.warning("ring not understood", error=str(error))
            return
        if news.sender != self._id:
            self.ring_for(news.queues, news.tasks)
            endings = {ended.id: _ending(ended) for ended in news.endings}
            peer.on_news(news.queues, news.tasks, endings)

    @asynccontextmanager
    async def _subscribed(self, peer: PeerEvents) -> AsyncIterator[RedisConnection]:
        connection = await open_connection(self._listening)
        connection.on_message = lambda _, message: self._pass_on(message, peer)
        try:
            async with asyncio.timeout(ANSWER_S):
                await connection.ask("SUBSCRIBE", self._channel)
            self._functions.server, self._connection = self._id, connection
            yield connection
        finally:
            self._functions.server, self._connection = "", None
            await connection.close()
