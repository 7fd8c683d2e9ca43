"""Documents and Effects on Redis: a hash a kind, a hash a key."""

from __future__ import annotations

from collections.abc import Sequence

from onward.backends.redis.client import Functions
from onward.backends.redis.store import SEP, _pairs
from onward.core.contract import Document, Effect
from onward.core.task import Instant, Json


class RedisDocuments:
    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    async def put(
        self,
        kind: str,
        key: str,
        body: Json,
        *,
        now: Instant,
        expect: int | None = None,
        expires_at: Instant | None = None,
    ) -> Document | None:
        version = await self._functions.call_plain(
            "put_document", now, kind, key, body, expect, expires_at
        )
        return Document(key, body, version) if version else None

    async def get(self, kind: str, key: str, *, now: Instant) -> Document | None:
        value = await self._functions.command("HGET", self._name(kind), key)
        return None if value is None else _document(key, value, now)

    async def list(self, kind: str, *, now: Instant) -> Sequence[Document]:
        flat = await self._functions.command("HGETALL", self._name(kind))
        found = [_document(key.decode(), value, now) for key, value in _pairs(flat)]
        alive = [document for document in found if document is not None]
        return sorted(alive, key=lambda document: document.key)

    async def delete(self, kind: str, key: str, *, expect: int | None = None) -> bool:
        if expect is not None:
            return bool(await self._functions.call_plain("delete_document", 0, kind, key, expect))
        return bool(await self._functions.command("HDEL", self._name(kind), key))

    def _name(self, kind: str) -> str:
        return f"{self._functions.prefix}onward:doc:{kind}"


def _document(key: str, value: bytes, now: Instant) -> Document | None:
    version, expires_at, body = value.decode().split(SEP, 2)
    if expires_at and int(expires_at) <= now:
        return None
    return Document(key, body, int(version))


class RedisEffects:
    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    async def begin(self, key: str, name: str, *, fence: int, now: Instant) -> Effect | None:
        begun = await self._functions.command("HSETNX", self._name(key), name, f"{fence}{SEP}")
        if begun:
            return None
        found = await self._functions.command("HGET", self._name(key), name)
        if found is None:  # undone between the two: ours to try after all
            return await self.begin(key, name, fence=fence, now=now)
        by, value = found.decode().split(SEP, 1)
        return Effect(int(by), value or None)

    async def finish(self, key: str, name: str, value: Json) -> None:
        found = await self._functions.command("HGET", self._name(key), name)
        if found is not None and found.endswith(SEP.encode()):  # the first who knows has the word
            await self._functions.command("HSET", self._name(key), name, found + value.encode())

    async def undo(self, key: str, name: str) -> None:
        found = await self._functions.command("HGET", self._name(key), name)
        if found is not None and found.endswith(SEP.encode()):
            await self._functions.command("HDEL", self._name(key), name)

    def _name(self, key: str) -> str:
        return f"{self._functions.prefix}onward:effects:{key}"
