"""The bell over pub/sub: what happens on one server is heard on all that share the ledger.

Nothing is published from here. The ledger's functions tell what they have done, in the call that
did it; this is the ear for it, and the bell of our own process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec
import structlog
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from onward.backends.local_bell import LocalBell, LocalListener
from onward.backends.redis.client import Functions, new_connection
from onward.core.contract import Hear
from onward.core.task import Ending, Instant, Json, State, TaskId, new_id

log = structlog.get_logger("onward.bell")

AGAIN_S = 0.5


class _Ended(msgspec.Struct, array_like=True):
    id: TaskId
    state: State | None = None  # None: it is too long to be told
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


class RedisBell:
    def __init__(self, functions: Functions, listening: Redis) -> None:
        self._functions = functions
        self._listening = listening
        self._channel = f"{functions.prefix}onward:bell"
        self._local = LocalBell()
        self._me = new_id()
        self._receiving: asyncio.Task[None] | None = None

    def ring(self, *topics: str) -> None:
        self._local.ring(*topics)

    def listen(self, *topics: str) -> AbstractAsyncContextManager[LocalListener]:
        return self._local.listen(*topics)

    def attach(self, hear: Hear) -> None:
        self._receiving = asyncio.get_running_loop().create_task(self._receive(hear))

    async def close(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.wait([self._receiving])

    async def _receive(self, hear: Hear) -> None:
        while True:
            try:
                async with self._subscribed() as line:
                    while True:
                        _, _, said = await line.read_response()
                        self._pass_on(said, hear)
            except (RedisError, OSError) as error:
                log.warning("bell lost", error=repr(error))
                await asyncio.sleep(AGAIN_S)

    def _pass_on(self, said: bytes, hear: Hear) -> None:
        try:
            news = _decode(said)
        except msgspec.MsgspecError as error:  # of another version, perhaps: a ring may be lost
            log.warning("ring not understood", error=str(error))
            return
        if news.sender != self._me:
            topics = [f"queue:{queue}" for queue in news.queues]
            topics += [f"task:{task}" for task in news.tasks]
            self._local.ring(*topics, "log")
            hear(news.queues, {ended.id: _ending(ended) for ended in news.endings})

    @asynccontextmanager
    async def _subscribed(self) -> AsyncIterator[AbstractConnection]:
        """A bare connection: redis-py's PubSub costs more than reading the message does."""
        line = new_connection(self._listening)
        try:
            await line.send_command("SUBSCRIBE", self._channel)
            await line.read_response()
            self._functions.voice = self._me
            yield line
        finally:
            self._functions.voice = ""
            await line.disconnect()
