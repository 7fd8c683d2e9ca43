"""The bell over pub/sub: what happens on one server is heard on all that share the ledger.

Nothing is published from here. The ledger's functions tell what they have done, in the call that
did it; this is the ear for it, and the bell of our own process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError

from onward.core.contract import Ear
from onward.core.errors import LedgerUnavailable
from onward.core.task import Claimed, Ending, Instant, Json, State, TaskId, new_id
from onward.ledgers.local_bell import LocalBell, LocalListener
from onward.ledgers.redis.client import NAME, Functions
from onward.ledgers.redis.line import Line, open_line
from onward.ledgers.redis.store import RedisStore, claimed_of

log = structlog.get_logger("onward.bell")

AGAIN_S = 0.5
ECHO_S = 5.0  # until we hear what we say ourselves, or an answer on the line


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
_decode_row = msgspec.msgpack.Decoder(list[Any]).decode


def _ending(ended: _Ended) -> Ending | None:
    if ended.state is None:
        return None
    return Ending(ended.id, ended.state, ended.result, ended.error, ended.at)


class RedisBell:
    def __init__(self, functions: Functions, listening: Redis, tasks: RedisStore) -> None:
        self._functions = functions
        self._tasks = tasks
        self._listening = listening
        self._channel = f"{functions.prefix}onward:bell"
        self._local = LocalBell()
        self._me = new_id()
        self._mine = f"{self._channel}:{self._me}".encode()
        self._echo = asyncio.Event()
        self._given: dict[str, tuple[TaskId, int]] = {}  # by queue: task and fence, heard of last
        self._known: set[tuple[TaskId, int]] = set()  # while we read what we may not have heard
        self._reading = False
        self._line: Line | None = None  # while we listen
        self._asking = asyncio.Lock()  # on that line
        self._retired = False
        self._receiving: asyncio.Task[None] | None = None

    def ring(self, *topics: str) -> None:
        self._local.ring(*topics)

    def listen(self, *topics: str) -> AbstractAsyncContextManager[LocalListener]:
        return self._local.listen(*topics)

    def attach(self, ear: Ear) -> None:
        self._receiving = asyncio.get_running_loop().create_task(self._receive(ear))

    async def retire(self) -> None:
        self._retired = True
        for queue in self._functions.board.close():
            key = f"{self._functions.prefix}onward:idle:{NAME}:{queue}"
            await self._functions.command("HDEL", key, self._me)
        await self.hears()  # the answer comes after whatever was said before

    async def hears(self) -> bool:
        """Whether we still do. A line may be dead, and both ends not know."""
        line = self._line
        if line is None:
            return False
        try:
            async with asyncio.timeout(ECHO_S), self._asking:
                await line.ask("PING")
        except (RedisError, TimeoutError):
            line.cut()
            return False
        return True

    async def close(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.wait([self._receiving])

    async def _receive(self, ear: Ear) -> None:
        while True:
            try:
                async with self._subscribed(ear) as line:
                    raise await line.lost
            except (RedisError, OSError, LedgerUnavailable) as error:
                log.warning("bell lost", error=repr(error))
            except Exception:  # a fault of ours: without a bell everything would be late for ever
                log.exception("bell lost")
            await asyncio.sleep(AGAIN_S)

    def _heard(self, channel: bytes, said: bytes, ear: Ear) -> None:
        if channel != self._mine:
            self._pass_on(said, ear)
        elif said:
            self._take(_understood(said), ear)
        else:
            self._echo.set()

    def _pass_on(self, said: bytes, ear: Ear) -> None:
        try:
            news = _decode(said)
        except msgspec.MsgspecError as error:  # of another version, perhaps: a ring may be lost
            log.warning("ring not understood", error=str(error))
            return
        if news.sender != self._me:
            topics = [f"queue:{queue}" for queue in news.queues]
            topics += [f"task:{task}" for task in news.tasks]
            self._local.ring(*topics, "log")
            endings = {ended.id: _ending(ended) for ended in news.endings}
            ear.hear(news.queues, news.tasks, endings)

    @asynccontextmanager
    async def _subscribed(self, ear: Ear) -> AsyncIterator[Line]:
        line, board = await open_line(self._listening), self._functions.board
        line.hear = lambda channel, said: self._heard(channel, said, ear)
        try:
            given = await self._hears_itself(line)
            async with asyncio.timeout(ECHO_S):
                await line.ask("SUBSCRIBE", self._channel)
            if given:
                await self._read_given(ear)
                board.doubt()
                board.spare = None if self._retired else ear.spare
            self._functions.voice, self._line = self._me, line
            yield line
        finally:
            self._functions.voice, self._line, board.spare = "", None, None
            await line.close()

    async def _hears_itself(self, line: Line) -> bool:
        """Whether Redis lets us be told, and tell others, on a server's own channel."""
        self._echo.clear()
        try:
            async with asyncio.timeout(ECHO_S):
                await line.ask("SUBSCRIBE", self._mine)
            await self._functions.command("PUBLISH", self._mine, b"")
        except (NoPermissionError, LedgerUnavailable) as error:
            if not isinstance(error.__cause__ or error, NoPermissionError):
                raise
            log.warning(
                "tasks from other servers are fetched, not given",
                error=str(error),
                hint=f"allow the channels {self._channel}*",
            )
            return False
        async with asyncio.timeout(ECHO_S):
            await self._echo.wait()
        return True

    def _take(self, task: Claimed | None, ear: Ear) -> None:
        """A task was put into a hand of ours."""
        if task is None:
            return
        self._functions.board.filled(task.queue)
        gift = task.id, task.fence
        if gift in self._known or self._given.get(task.queue) == gift:
            return
        self._given[task.queue] = gift
        if self._reading:
            self._known.add(gift)
        ear.take(task)

    async def _read_given(self, ear: Ear) -> None:
        """What was given to us while we did not listen any more, and is still ours.

        We listen again: what we hear while we read may be among it, or come after it.
        """
        self._reading, self._known = True, set(self._given.values())
        try:
            key = f"{self._functions.prefix}onward:given:{self._me}"
            rows = (await self._functions.command("HGETALL", key))[1::2]
            given = [task for row in rows if (task := _understood(row)) is not None]
            found = await self._tasks.get([task.id for task in given])
            for task, now in zip(given, found, strict=True):
                if now is not None and now.state is State.RUNNING and now.fence == task.fence:
                    self._take(task, ear)
        finally:
            self._reading, self._known = False, set()


def _understood(said: bytes) -> Claimed | None:
    try:
        return claimed_of(_decode_row(said))
    except Exception as error:  # whatever it is, others come after it; its lease lapses
        log.warning("a task was given that is not understood", error=repr(error))
        return None
