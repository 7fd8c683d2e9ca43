"""Views written into Redis: many tasks in one call, by one server at a time.

Writes what it is handed and decides nothing. A server that was overtaken, and comes back with what
it read before, is refused by the script: Superseded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog

from onward.core.task import TaskId, new_id
from onward.doors.tasks.view import BY_STATE, DEAD, DEPTHS, PENDING, SCHEDULED
from onward.wire.streams import fields_of, text_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger("onward.views")

_HERE = files("onward.doors.redis_views")
_BEGIN, _SHOW, _NOTICE = (
    (_HERE / name).read_text() for name in ("begin.lua", "show.lua", "notice.lua")
)
MOST_BYTES = 1 << 20  # of one call; a single task may be larger
PAGE = 128  # ids noticed in one call
REST, LONGEST_REST_S = 10, 1.0  # for Redis, after a call that took long: so many times as long
SEP = b"\x1f"
# What the scripts write under the seeds' names, after the prefix; * stands for an id or a session.
TASK, SESSION, LETTER = "task:*", "session:*:tasks", "dlq:task:*"
SEEDS_KEYS = (TASK, SESSION, LETTER, f"{PENDING}:*", SCHEDULED, DEAD, DEPTHS, BY_STATE)

_encode = msgspec.msgpack.Encoder().encode


class Superseded(Exception):
    """Another server writes the views by now."""


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What stands in Redis of one task. Without fields: nothing."""

    id: TaskId
    fields: Sequence[str] | None = None  # of `task:{id}`, names and values by turns
    life_ms: int = 0  # 0: it stays
    place: str = ""  # the list or sorted set that has its id
    since: int = 0  # when it came there
    score: float = 0.0  # in `tasks:scheduled`
    front: bool = False  # to the head of its list
    letter: Sequence[str] = ()  # of `dlq:task:{id}`
    result: str | None = None  # `task:{id}:result`
    session: str | None = None
    again: bool = False  # look at it once more in a few seconds


class Foreign(NamedTuple):
    """An id that another program put into a list."""

    entry: bytes  # as it is kept until it was adopted
    since: int  # when it was noticed, on Redis' clock
    list: str
    raw: bytes  # the id as it stood there


class Noticed(NamedTuple):
    foreign: Sequence[Foreign]
    look: Mapping[TaskId, str]  # ids to look at, and the instants that they were asked for

    @property
    def more(self) -> bool:
        return len(self.look) >= PAGE


class ViewWriter:
    def __init__(self, redis: Redis, prefix: str, *, beside_ledger: bool) -> None:
        """`beside_ledger`: the ledger lies in this Redis."""
        self._redis = redis
        self._beside_ledger = beside_ledger
        self._prefix = prefix
        self._begin = redis.register_script(_BEGIN)
        self._show = redis.register_script(_SHOW)
        self._notice = redis.register_script(_NOTICE)
        self._mark = ""

    def step_down(self) -> None:
        """From now on another program may have written; the next call begins anew."""
        self._mark = ""

    async def write(self, items: Sequence[Item]) -> None:
        packed = [_encode(item) for item in items]
        while packed:
            many, size = 0, 0
            while many < len(packed) and (many == 0 or size + len(packed[many]) <= MOST_BYTES):
                size += len(packed[many])
                many += 1
            done, aside, took_us = await self._call(self._show, _array(packed[:many]))
            self._report(aside)
            del packed[:done]
            # An id in the middle of a very long list is searched for: the others come first.
            await asyncio.sleep(min(REST * took_us / 1_000_000, LONGEST_REST_S))

    async def notice(
        self,
        lists: Sequence[str],
        counts: Mapping[str, Sequence[str]],
        seen: Mapping[TaskId, str],
    ) -> Noticed:
        request = {"lists": lists, "counts": counts, "seen": list(seen.items()), "page": PAGE}
        waiting, look, aside = await self._call(self._notice, _encode(request))
        self._report(aside)
        foreign = [
            Foreign(entry, int(since), text_of(name), raw)
            for entry in waiting
            for since, name, raw in [entry.split(SEP, 2)]
        ]
        pairs = zip(look[::2], look[1::2], strict=True)
        return Noticed(foreign, {text_of(id): text_of(score) for id, score in pairs})

    async def hashes(self, ids: Sequence[bytes]) -> Sequence[Mapping[str, str]]:
        """`task:{id}` of each, as another program wrote it; empty: no hash has that name."""
        pipe = self._redis.pipeline(transaction=False)
        for id in ids:
            _ = pipe.hgetall(self._key(b"task:" + id))
        replies = await pipe.execute(raise_on_error=False)
        return [fields_of(reply) if isinstance(reply, dict) else {} for reply in replies]

    async def adopted(self, foreign: Sequence[Foreign]) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for one in foreign:
            entry: Any = one.entry
            _ = pipe.lrem(self._name("onward:view:adopting"), 1, entry)
        await pipe.execute()

    async def look_at(self, ids: Sequence[TaskId]) -> None:
        """From any server: something changed that the log does not hold."""
        if ids:
            await self._redis.zadd(self._name("onward:view:look"), dict.fromkeys(ids, 0))

    async def _call(self, script: Any, request: bytes) -> Any:
        if not self._mark:
            mark, places = new_id(), [self._name("onward:epoch"), self._name("onward:view:writer")]
            if not await self._begin(keys=places, args=[mark, int(self._beside_ledger)]):
                raise Superseded("this Redis has lost its ledger")
            self._mark = mark
        reply = await script(keys=[self._prefix], args=[self._mark, request])
        if reply[0] == -1:
            self._mark = ""
            raise Superseded("another server writes the views, or the keys were flushed")
        return reply

    def _report(self, aside: Sequence[bytes]) -> None:
        for name in aside:
            log.warning(
                "a foreign key was set aside",
                key=self._prefix + text_of(name),
                kept_as=f"{self._prefix}onward:set-aside:{text_of(name)}",
            )

    def _name(self, name: str) -> str:
        return self._prefix + name

    def _key(self, name: bytes) -> bytes:
        return self._prefix.encode() + name


def _array(packed: Sequence[bytes]) -> bytes:
    """These as one msgpack array, without encoding any of them twice."""
    return b"\xdd" + len(packed).to_bytes(4, "big") + b"".join(packed)
