"""The bell over pub/sub: what rings here is heard on every server that shares the ledger.

Rings of one turn of the loop go out as one message, and only while somebody else listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from onward.backends.local_bell import LocalBell, LocalListener
from onward.core.task import new_id

log = structlog.get_logger("onward.bell")

ALONE_FOR_S = 1.0  # how long "nobody else listens" is believed


class RedisBell:
    def __init__(self, redis: Redis, listening: Redis, prefix: str) -> None:
        self._redis = redis
        self._listening = listening
        self._channel = f"{prefix}onward:bell"
        self._local = LocalBell()
        self._me = new_id()
        self._topics: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._hear: Callable[[Sequence[str]], None] = lambda topics: None
        self._others = True
        self._publishing = False

    def ring(self, *topics: str) -> None:
        self._local.ring(*topics)
        if not self._others:
            return
        self._topics.update(topics)
        if not self._publishing:
            self._publishing = True
            self._spawn(self._publish())

    def listen(self, *topics: str) -> AbstractAsyncContextManager[LocalListener]:
        return self._local.listen(*topics)

    def attach(self, hear: Callable[[Sequence[str]], None]) -> None:
        self._hear = hear
        self._spawn(self._receive())
        self._spawn(self._count())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _publish(self) -> None:
        try:
            while self._topics:
                topics, self._topics = self._topics, set()
                message = msgspec.msgpack.encode([self._me, list(topics)])
                with suppress(RedisError, OSError):  # a lost ring costs latency, nothing else
                    await self._redis.publish(self._channel, message)
        finally:
            self._publishing = False

    async def _receive(self) -> None:
        while True:
            try:
                async with self._subscribed() as messages:
                    async for data in messages:
                        sender, topics = msgspec.msgpack.decode(data)
                        if sender != self._me:
                            self._others = True
                            self._local.ring(*topics)
                            self._hear(topics)
            except (RedisError, OSError) as error:
                log.warning("bell lost", error=repr(error))
                await asyncio.sleep(0.5)

    @asynccontextmanager
    async def _subscribed(self) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._listening.pubsub(ignore_subscribe_messages=True) as pubsub:
            await pubsub.subscribe(self._channel)

            async def messages() -> AsyncIterator[bytes]:
                async for message in pubsub.listen():
                    yield message["data"]

            yield messages()

    async def _count(self) -> None:
        while True:
            with suppress(RedisError, OSError):
                counted = await self._redis.pubsub_numsub(self._channel)
                self._others = counted[0][1] > 1
            await asyncio.sleep(ALONE_FOR_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
