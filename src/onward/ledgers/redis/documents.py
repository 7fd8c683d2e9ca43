"""Documents, Effects and Sessions on Redis: a hash a kind, a hash an owner, and sorted sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.core.contract import COUNTED, Document, Effect, Page, SessionTally
from onward.core.task import Held, Instant, Json, State
from onward.ledgers.redis.client import Functions
from onward.ledgers.redis.store import SEP, _pairs


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
    """By functions: between a read and a write by two calls another attempt could finish it."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    async def begin(self, task: Held, name: str, *, now: Instant) -> Effect | None:
        found = await self._call("begin_effect", now, task, name, task.fence)
        if found is None:
            return None
        by, fence, value = found
        return Effect(by.decode(), int(fence), value.decode() or None)

    async def finish(self, task: Held, name: str, value: Json, *, fence: int) -> bool:
        return bool(await self._call("finish_effect", 0, task, name, fence, value))

    async def undo(self, task: Held, name: str) -> None:
        await self._call("undo_effect", 0, task, name, task.fence)

    async def _call(self, function: str, now: Instant, task: Held, *request: Any) -> Any:
        return await self._functions.call_plain(
            function, now, task.id, task.key, task.profile, *request
        )


class RedisSessions:
    """A sorted set of them all, and one of each one's tasks."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    async def find(self, *, after: str | None, limit: int) -> Page[SessionTally]:
        rows = await self._functions.call("sessions", 0, after, limit + 1, COUNTED)
        found = [_tally(row) for row in rows]
        more = str(found[limit - 1].place) if len(found) > limit else None
        return Page(found[:limit], more)

    async def get(self, session: str) -> SessionTally | None:
        row = await self._functions.call("session", 0, session, COUNTED)
        return _tally(row) if row else None


def _tally(row: list[Any]) -> SessionTally:
    session, tasks, states, last_at, place = row
    return SessionTally(
        session=session,
        tasks=tasks,
        states={State(state): count for state, count in states.items()},
        last_at=int(last_at),
        place=int(place),
    )
