"""Connections to Redis, and the ledger's functions called over them, never retried.

redis-py retries ten times by default, and a write whose reply was lost would be written again: here
a call that breaks is unknown, and raises as such. The ledger's calls go past its client and pool
(see connection.py): those cost more than the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import msgspec
import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from onward.core.errors import Invalid, LedgerUnavailable, NotLetIn
from onward.core.task import new_id
from onward.ledgers.redis.connection import RedisConnection, open_connection
from onward.ledgers.redis.layout import settle_layout

log = structlog.get_logger("onward.redis")

_HERE = files("onward.ledgers.redis")
PARTS = ("ledger", "limits", "ring", "claims", "turns", "intake", "moves", "effects", "reading")
LIBRARY = "".join((_HERE / f"{part}.lua").read_text() for part in PARTS)
NAME = LIBRARY.splitlines()[0].removeprefix("#!lua name=")
CALL_TIMEOUT_S = 10
MOST_CONNECTIONS = 64
REFUSALS = (AuthenticationError, AuthorizationError, NoPermissionError)
# The same by its words: on a unix socket redis-py makes a broken connection of it.
REFUSED = ("Authentication required", "invalid username-password", "DB index is out of range")
NO_WRITES = (OutOfMemoryError, ReadOnlyError, MasterDownError)
NOT_HERE = (MovedError, AskError, TryAgainError, ClusterDownError)  # while a cluster changes
ALLOW = "allow it to Onward's user: onward redis acl server"
NO_LEDGER = "no ledger here"  # as `begin` in ledger.lua says it
GONE = "the ledger is gone: this Redis came back without it"
OTHER = "the ledger was replaced: this Redis holds another one"
RESTART = "restore the data of this Redis; or restart every server, to go on with what is there"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def connect(url: str, *, timeout_s: float | None = CALL_TIMEOUT_S) -> Redis:
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MOST_CONNECTIONS,
            timeout=CALL_TIMEOUT_S,
            socket_timeout=timeout_s,
            socket_connect_timeout=CALL_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
    except ValueError as error:
        raise Invalid(
            f"this is no address of a Redis: {error}",
            hint="one looks like redis://127.0.0.1:6379/0",
        ) from error
    pool.connection_class = type("Bounded", (_Bounded, pool.connection_class), {})
    return Redis.from_pool(pool)


class _Bounded:
    """A connection whose sends are bounded by `asyncio.timeout`.

    redis-py takes `asyncio.wait_for`, which makes a task for every send, and in Python 3.11 loses a
    cancellation that comes just when the send is done: a caller that was canceled would go on.
    """

    socket_timeout: float | None

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        bound, self.socket_timeout = self.socket_timeout, None
        if bound is None:
            await super().send_packed_command(command, check_health)  # type: ignore[misc]
            return
        try:
            async with asyncio.timeout(bound):
                await super().send_packed_command(command, check_health)  # type: ignore[misc]
        except TimeoutError as error:
            raise RedisTimeoutError("timeout writing to socket") from error
        finally:
            self.socket_timeout = bound


class Functions:
    """The library of ledger.lua, called by name; and plain commands, answered as they come."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._free: list[RedisConnection] = []
        self._closed = False
        self._most = asyncio.Semaphore(MOST_CONNECTIONS)
        self.prefix = prefix
        # Redis refuses CONFIG. Asked again and again, it would fill its log of refusals with us.
        self.hides_settings = False
        self.server = ""  # our id in what we publish; empty while we do not listen
        self._loaded = False
        self._epoch: bytes | None = None  # of the ledger that we began with
        self._lost = ""  # why we do not go on

    async def call(self, name: str, *request: Any) -> Any:
        """A function that answers in msgpack."""
        return _decode(await self.call_plain(name, *request))

    async def prepare(self) -> None:
        """Before anything else is written: what is there must be ours to read."""
        if not self._loaded:
            await self._load()

    async def call_plain(self, name: str, *request: Any) -> Any:
        await self.prepare()
        arguments = ("FCALL", f"{NAME}_{name}", 1, self.prefix, _encode(request), self.server)
        try:
            return await self._send(arguments)
        except ResponseError as error:
            if NO_LEDGER in str(error):
                await self.recognise()
            if "Function not found" not in str(error):
                raise refused(error) from error
            await self._load()  # another client flushed the functions
            return await self.command(*arguments)
        except RedisError as error:
            raise refused(error) from error

    async def command(self, *arguments: Any) -> Any:
        try:
            return await self._send(arguments)
        except RedisError as error:
            raise refused(error) from error

    async def close(self) -> None:
        self._closed = True
        await self._drop_free()

    async def recognise(self) -> None:
        """Is this still the ledger that we began with? Otherwise nothing more is read or written.

        A Redis that came back empty, or another one in its place, would take new tasks as if
        nothing had happened, while everything that was accepted before is gone.
        """
        try:
            found = await self._send_now(("GET", f"{self.prefix}onward:epoch"))
        except RedisError as error:
            raise refused(error) from error
        was, self._lost = self._lost, "" if found == self._epoch else GONE if not found else OTHER
        if self._lost and not was:
            log.error("the ledger was lost", reason=self._lost, hint=RESTART)
        if self._lost:
            raise LedgerUnavailable(self._lost, hint=RESTART)
        if was:
            log.info("the ledger is back")

    async def _send(self, arguments: tuple[Any, ...]) -> Any:
        if self._lost:
            raise LedgerUnavailable(self._lost, hint=RESTART)
        return await self._send_now(arguments)

    async def _send_now(self, arguments: tuple[Any, ...]) -> Any:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S), self._most:
                connection = await self._connection()
                try:
                    reply = await connection.ask(*arguments)
                except ResponseError:
                    await self._put_back(connection)
                    raise
                except BaseException:  # broken, or left in the middle
                    await connection.close()
                    raise
                await self._put_back(connection)
                return reply
        except TimeoutError as error:
            await self._drop_free()  # what hides behind this one is as old, and as dead
            raise RedisTimeoutError("no answer in time") from error

    async def _drop_free(self) -> None:
        while self._free:
            await self._free.pop().close()

    async def _connection(self) -> RedisConnection:
        """One that the other end has not closed meanwhile."""
        while self._free:
            connection = self._free.pop()
            if not connection.lost.done():
                return connection
            await connection.close()
        return await open_connection(self._redis)

    async def _put_back(self, connection: RedisConnection) -> None:
        """For the next call; one that ends after `close` is the last to know of its connection."""
        if self._closed:
            await connection.close()
        else:
            self._free.append(connection)

    async def _load(self) -> None:
        if self._epoch is not None:
            await self.recognise()
        await settle_layout(self)
        await self.command("FUNCTION", "LOAD", "REPLACE", LIBRARY)
        epoch = f"{self.prefix}onward:epoch"
        await self.command("SET", epoch, new_id(), "NX")
        self._epoch = self._epoch or await self.command("GET", epoch)
        await self._rehearse()
        self._loaded = True

    async def _rehearse(self) -> None:
        """A command that is not allowed must not be found out half way through a move."""
        arguments = ("FCALL", f"{NAME}_rehearse", 1, self.prefix, _encode([0]))
        against = (await self.command(*arguments)).decode()
        if against:
            reason = against.partition(" ")[2]
            log.error("redis refuses a command", error=reason)
            raise NotLetIn(f"Redis refuses a command that the ledger needs: {reason}", hint=ALLOW)


def refused(error: RedisError) -> Exception:
    """The error for a caller; a fault in a script is ours and goes through as it is."""
    text = str(error)
    if isinstance(error, REFUSALS) or text.startswith(REFUSED):
        log.error("redis refuses us", error=text)
        return NotLetIn(f"Redis refuses us: {text}")
    if isinstance(error, (ConnectionError, RedisTimeoutError, BusyLoadingError, *NOT_HERE)):
        log.warning("redis does not answer", error=text)
        return LedgerUnavailable("the ledger does not answer")
    # Of some errors redis-py keeps the code in the class, of others in the text.
    if isinstance(error, NO_WRITES) or text.startswith(("MISCONF", "BUSY", "NOREPLICAS")):
        log.error("redis refuses writes", error=text)
        return LedgerUnavailable("the ledger takes no writes now")
    return error


_TELL_ONCE = """
if redis.call('SET', KEYS[2], 1, 'NX', 'EX', ARGV[1]) then
  redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
end
"""


async def tell_once(
    redis: Redis, stream: str, marker: str, seconds: int, fields: Mapping[str, str]
) -> None:
    """Append an entry unless this marker says that it was appended before: both or neither."""
    flat = [part for pair in fields.items() for part in pair]
    await redis.eval(_TELL_ONCE, 2, stream, marker, str(seconds), *flat)
