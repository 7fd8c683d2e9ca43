"""A connection that redis-py opens, and that is used without it afterwards.

Connecting, TLS, login and choosing the database are redis-py's. From then on bytes go in and out by
one protocol object and hiredis: its streams and parser cost more than many a reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hiredis import Reader, pack_command
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.exceptions import ConnectionError, InvalidResponse

MESSAGE = b"message"
CLOSED = "the connection was closed"


class RedisConnection(asyncio.Protocol):
    def __init__(self, connection: AbstractConnection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._transport = transport
        self._opener = transport.get_protocol()
        self._reader = Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error)
        self._reply: asyncio.Future[Any] | None = None
        self.on_message: Callable[[bytes, bytes], None] | None = None  # channel and message
        self.lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        transport.set_protocol(self)

    async def ask(self, *arguments: Any) -> Any:
        """One at a time. A caller that leaves in the middle must close it: a reply is under way."""
        if self.lost.done():
            raise self.lost.result()
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(pack_command(arguments))
        try:
            reply = await self._reply
        finally:
            self._reply = None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def cut(self) -> None:
        self._transport.abort()

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._pass_on(reply)
        except InvalidResponse as error:
            self.cut()
            self._end(error)

    def _pass_on(self, reply: Any) -> None:
        if self.on_message is not None and isinstance(reply, list) and reply[0] == MESSAGE:
            self.on_message(reply[1], reply[2])
        elif self._reply is not None and not self._reply.done():
            self._reply.set_result(reply)

    def eof_received(self) -> None:
        self._end(ConnectionError(CLOSED))

    def connection_lost(self, error: Exception | None) -> None:
        self._opener.connection_lost(error)  # redis-py waits for it when it disconnects
        self._end(ConnectionError(CLOSED))

    def _end(self, error: Exception) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
        if not self.lost.done():
            self.lost.set_result(error)


async def open_connection(redis: Redis) -> RedisConnection:
    """Outside of the client's pool."""
    connection: AbstractConnection = redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
    except BaseException:  # canceled while it says hello, redis-py leaves it open
        await connection.disconnect(nowait=True)
        raise
    writer = connection._writer  # noqa: SLF001 there is no other way to its transport
    if writer is None:
        raise ConnectionError(CLOSED)
    return RedisConnection(connection, writer.transport)  # type: ignore[arg-type]
