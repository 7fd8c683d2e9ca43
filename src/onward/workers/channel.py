"""One dialect's streams in Redis: what is on them, who has what, and the single steps.

Facts and steps, no decisions; those are in streams.py. Nothing here knows the ledger. A step that
must not be torn is one script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from onward.workers.dialects import Dialect, Fields

BLOCK_MS = 1_000
PAGE = 1_000
READ = 256
OURSELVES = "onward"  # our name in every group


class Lines(msgspec.Struct, frozen=True):
    """Connections: blocking reads have their own, with no time-out under them."""

    calls: Redis
    blocking: Redis


class Row(NamedTuple):
    entry: str
    fields: Fields


class Taken(NamedTuple):
    """An entry of the group's pending list."""

    consumer: str
    idle_ms: int


Order = tuple[int, int]


def order(entry: str) -> Order:
    ms, _, n = entry.partition("-")
    return int(ms), int(n or 0)


# Deleting an entry that somebody has would take it from under them: their next heartbeat fails.
_WITHDRAW = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) > 0 then return 0 end
redis.call('XDEL', KEYS[1], ARGV[2])
return 1
"""

# Between looking and deleting, a consumer might take something; its entry would go with its name.
_DISMISS = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
"""


class Channel:
    def __init__(self, lines: Lines, dialect: Dialect) -> None:
        self.dialect = dialect
        self._redis = lines.calls
        self._blocking = lines.blocking
        self._tasks = dialect.tasks
        self._group = dialect.group

    async def prepare(self) -> None:
        """Groups begin at the start of their stream: what is there already is work too."""
        for stream, group in self.dialect.groups():
            try:
                await self._redis.xgroup_create(stream, group, id="0", mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    # What is there.

    async def entries(self) -> list[Row]:
        found: list[Row] = []
        start = "-"
        while True:
            rows = await self._redis.xrange(self._tasks, start, "+", count=PAGE) or ()
            found += [Row(_text(entry), _fields(fields)) for entry, fields in rows]
            if len(rows) < PAGE:
                return found
            start = "(" + found[-1].entry

    async def length(self) -> int:
        return int(await self._redis.xlen(self._tasks))

    async def pending(self, consumer: str | None = None) -> dict[str, Taken]:
        found: dict[str, Taken] = {}
        start = "-"
        while True:
            rows = await self._redis.xpending_range(
                self._tasks, self._group, start, "+", PAGE, consumername=consumer
            )
            for row in rows:
                taken = Taken(_text(row["consumer"]), int(row["time_since_delivered"]))
                found[_text(row["message_id"])] = taken
            if len(rows) < PAGE:
                return found
            start = "(" + _text(rows[-1]["message_id"])

    async def is_taken(self, entry: str) -> bool:
        rows = await self._redis.xpending_range(self._tasks, self._group, entry, entry, 1)
        return bool(rows)

    async def last_delivered(self) -> Order:
        for group in await self._redis.xinfo_groups(self._tasks):
            if _text(group["name"]) == self._group:
                return order(_text(group["last-delivered-id"]))
        raise ResponseError("NOGROUP somebody has deleted the group")

    # Putting there, and taking away.

    async def add(self, entries: Sequence[Fields]) -> list[str]:
        pipe = self._redis.pipeline(transaction=False)
        for entry in entries:
            fields: dict[Any, Any] = dict(entry)
            _ = pipe.xadd(self._tasks, fields)
        return [_text(entry) for entry in await pipe.execute()]

    async def drop(self, entries: Sequence[str]) -> Sequence[None]:
        pipe = self._redis.pipeline(transaction=True)
        _ = pipe.xack(self._tasks, self._group, *entries)
        _ = pipe.xdel(self._tasks, *entries)
        await pipe.execute()
        return [None] * len(entries)

    async def withdraw(self, entry: str) -> bool:
        """Take it back, unless somebody has it."""
        return bool(await self._script(_WITHDRAW, self._group, entry))

    async def mark(self, key: str, seconds: int) -> None:
        """Leave word for somebody who looks there."""
        await self._redis.set(key, 1, ex=seconds)

    async def unmark(self, key: str) -> None:
        await self._redis.delete(key)

    # Taking over.

    async def claim_idle(self, min_idle_ms: int) -> set[str]:
        """Entries whose consumers have been silent for so long; ours from here on."""
        found: set[str] = set()
        cursor: Any = "0-0"
        try:
            while True:
                # Not JUSTID: the client library drops the cursor from that reply.
                cursor, rows, *_ = await self._redis.xautoclaim(
                    self._tasks, self._group, OURSELVES, min_idle_ms, cursor, count=100
                )
                found.update(_text(entry) for entry, _ in rows if entry is not None)
                # One call looks at a thousand entries: fresh ones would hide a stale one behind.
                if _text(cursor) == "0-0":
                    break
        except ResponseError as error:
            if "unknown command" not in str(error).lower():
                raise
            found |= await self._claim_by_hand(min_idle_ms)
        # And those of a sweep that died after claiming them.
        return found | (await self.pending(consumer=OURSELVES)).keys()

    async def _claim_by_hand(self, min_idle_ms: int) -> set[str]:
        """The same on a server without XAUTOCLAIM."""
        pending = await self.pending()
        idle: list[Any] = [
            entry for entry, taken in pending.items() if taken.idle_ms >= min_idle_ms
        ]
        if not idle:
            return set()
        claimed = await self._redis.xclaim(
            self._tasks, self._group, OURSELVES, min_idle_ms, idle, justid=True
        )
        return {_text(entry) for entry in claimed}

    async def dismiss(self, idle_ms: int) -> None:
        """Forget the names of consumers that own nothing and have not been heard of for so long."""
        for consumer in await self._redis.xinfo_consumers(self._tasks, self._group):
            if consumer["pending"] == 0 and consumer["idle"] >= idle_ms:
                await self._script(_DISMISS, self._group, _text(consumer["name"]))

    # Reading in our own group.

    async def read(self, start: str, *, block: bool) -> list[tuple[str, list[Row]]]:
        streams: dict[Any, Any] = dict.fromkeys(self.dialect.read, start)
        line = self._blocking if block else self._redis
        reply: Any = await line.xreadgroup(
            self.dialect.own_group,
            OURSELVES,
            streams,
            count=READ,
            block=BLOCK_MS if block else None,
        )
        return [
            (_text(stream), [Row(_text(entry), _fields(fields)) for entry, fields in rows])
            for stream, rows in reply or ()
            if rows
        ]

    async def done(self, stream: str, entries: Sequence[str]) -> None:
        """Read and seen to."""
        pipe = self._redis.pipeline(transaction=True)
        _ = pipe.xack(stream, self.dialect.own_group, *entries)
        if stream in self.dialect.consumed:
            _ = pipe.xdel(stream, *entries)
        await pipe.execute()

    async def _script(self, source: str, *arguments: str) -> Any:
        return await self._redis.eval(source, 1, self._tasks, *arguments)


def _text(value: Any) -> str:
    # Foreign bytes: what is no text must not stop the reading of everything behind it.
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _fields(raw: Mapping[Any, Any] | None) -> Fields:
    return {_text(name): _text(value) for name, value in (raw or {}).items()}
