"""One dialect's streams in Redis: what is on them, which consumer has what, and the single steps.

Facts and steps, no decisions; those are in feed.py and collect.py. Nothing here knows the ledger. A
step that must be atomic is one script. Where several groups read each entry (docs/adr/0012), it is
under way while it is pending in any of them, and all have let it go once it is pending in none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from onward.core.task import Instant
from onward.wire.streams import Fields, fields_of, text_of
from onward.workers.streams.dialects import Dialect

log = structlog.get_logger("onward.streams")

BLOCK_MS = 1_000
PAGE = 1_000
ENTRIES = 100  # in a page of these: each may hold a payload of a megabyte
READ = 256
CLAIMED = 100  # entries in one call
OURSELVES = "onward"  # the server's consumer name in every group
OCCUPIED_MS = 15_000  # longer than any sweep should take


class StreamConnections(msgspec.Struct, frozen=True):
    """Blocking reads have a connection of their own, without a time-out."""

    calls: Redis
    blocking: Redis
    # Entries published, consumed and acknowledged here, by stream.
    tally: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)


class StreamEntry(NamedTuple):
    entry: str
    fields: Fields
    event: str  # the id in its envelope; without one, the entry's own


class PendingEntry(NamedTuple):
    """An entry of a group's pending list."""

    consumer: str
    idle_ms: int


Order = tuple[int, int]


class ReadPositions(NamedTuple):
    """The last entry that all groups have been given, and the last that any has."""

    all: Order
    any: Order


NOWHERE: Order = (0, 0)


def order(entry: str) -> Order:
    ms, _, n = entry.partition("-")
    return int(ms), int(n or 0)


# Not an entry that a consumer has: its next heartbeat would fail.
_WITHDRAW = """
for group = 2, #ARGV do
  if #redis.call('XPENDING', KEYS[1], ARGV[group], ARGV[1], ARGV[1], 1) > 0 then return 0 end
end
redis.call('XDEL', KEYS[1], ARGV[1])
return 1
"""

# One script: a consumer that takes an entry between the look and the deletion would lose it.
_DISMISS = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
"""

# Two ledgers on the same streams would adopt, and run, each other's tasks.
_OCCUPY = """
local by = redis.call('GET', KEYS[1])
if by and by ~= ARGV[1] then return by end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
"""

_VACATE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""


class Channel:
    def __init__(self, connections: StreamConnections, dialect: Dialect) -> None:
        self.dialect = dialect
        self._redis = connections.calls
        self._blocking = connections.blocking
        self._tally = connections.tally
        self._tasks = dialect.tasks
        self._occupied = f"onward:fed:{dialect.name}"
        self.groups: Sequence[str] = ()  # those that do the work, as last read

    async def prepare(self) -> None:
        """Groups begin at the start of their stream: what is there already is to be done too."""
        for stream, group in self.dialect.groups:
            try:
                await self._redis.xgroup_create(stream, group, id="0", mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
        await self.delivered()

    async def occupy(self, ledger: str) -> str | None:
        """Takes the streams for this ledger for a while, or returns the ledger that has them."""
        by = await self._redis.eval(_OCCUPY, 1, self._occupied, ledger, str(OCCUPIED_MS))
        return None if by is None else text_of(by)

    async def vacate(self, ledger: str) -> None:
        await self._redis.eval(_VACATE, 1, self._occupied, ledger)

    # Reading what is there.

    async def entries(self) -> AsyncIterator[Sequence[StreamEntry]]:
        """A page at a time: a stream may be longer than fits into memory."""
        start = "-"
        while True:
            rows = await self._redis.xrange(self._tasks, start, "+", count=ENTRIES) or ()
            found = [self._row(entry, fields) for entry, fields in rows]
            yield found
            if len(found) < ENTRIES:
                return
            start = "(" + found[-1].entry

    async def row(self, entry: str) -> StreamEntry | None:
        rows = await self._redis.xrange(self._tasks, entry, entry) or ()
        return next((self._row(*row) for row in rows), None)

    async def length(self) -> int:
        return int(await self._redis.xlen(self._tasks))

    async def pending(self) -> dict[str, PendingEntry]:
        """By entry, the consumer with the latest heartbeat; the server if there is no other."""
        found: dict[str, PendingEntry] = {}
        for group in self.groups:
            for entry, taken in (await self._pending(group)).items():
                other = found.get(entry)
                if other is None or _rank(taken) < _rank(other):
                    found[entry] = taken
        return found

    async def _pending(self, group: str, consumer: str | None = None) -> dict[str, PendingEntry]:
        found: dict[str, PendingEntry] = {}
        start = "-"
        while True:
            rows = await self._redis.xpending_range(
                self._tasks, group, start, "+", PAGE, consumername=consumer
            )
            found.update(_taken(rows))
            if len(rows) < PAGE:
                return found
            start = "(" + text_of(rows[-1]["message_id"])

    async def is_taken(self, entry: str) -> bool:
        for group in self.groups:
            if await self._redis.xpending_range(self._tasks, group, entry, entry, 1):
                return True
        return False

    async def was_read(self, entry: str) -> bool:
        """Whether a consumer has it, or has acknowledged it."""
        if await self.is_taken(entry):
            return True
        reach = await self.delivered()
        # On a stream that all services read, it counts only once each of them has read so far.
        return order(entry) <= (reach.all if self.dialect.shared else reach.any)

    async def delivered(self) -> ReadPositions:
        """How far the groups have read; also reads again which groups there are."""
        infos = [
            info
            for info in await self._redis.xinfo_groups(self._tasks)
            if self.dialect.serves(text_of(info["name"]))
        ]
        self.groups = [text_of(info["name"]) for info in infos]
        if not infos and not self.dialect.shared:
            raise ResponseError("NOGROUP the group was deleted")
        # A group without consumers is a service that is gone, or not started yet.
        lively = [info for info in infos if info["consumers"]] or infos
        ends = [order(text_of(info["last-delivered-id"])) for info in lively]
        return ReadPositions(min(ends, default=NOWHERE), max(ends, default=NOWHERE))

    # Writing and deleting.

    async def add(self, entries: Sequence[Fields]) -> list[str]:
        pipe = self._redis.pipeline(transaction=False)
        for entry in entries:
            fields: dict[Any, Any] = dict(entry)
            _ = pipe.xadd(self._tasks, fields)
        added = [text_of(entry) for entry in await pipe.execute()]
        self._tally[self._tasks, "published"] += len(added)
        for entry, id in zip(entries, added, strict=True):
            log.debug("Event published", stream=self._tasks, event_id=entry.get("event_id", id))
        return added

    async def drop(self, entries: Sequence[str]) -> Sequence[None]:
        pipe = self._redis.pipeline(transaction=True)
        for group in self.groups:
            _ = pipe.xack(self._tasks, group, *entries)
        _ = pipe.xdel(self._tasks, *entries)
        await pipe.execute()
        return [None] * len(entries)

    async def withdraw(self, entry: str) -> bool:
        """Deletes it, unless a consumer has it."""
        return bool(await self._script(_WITHDRAW, entry, *self.groups))

    async def mark(self, key: str, seconds: int) -> None:
        """Sets a key that a worker looks for."""
        await self._redis.set(key, 1, ex=seconds)

    async def unmark(self, key: str) -> None:
        await self._redis.delete(key)

    # Reclaiming.

    async def claim_idle(self, min_idle_ms: int) -> dict[str, PendingEntry]:
        """Claims the entries of consumers that have been silent for so long, and returns what these
        were. OURSELVES: a sweep ended after claiming it, and the consumer before is not known."""
        found: dict[str, PendingEntry] = {}
        for group in self.groups:
            claimed = await self._claim_idle(group, min_idle_ms)
            for entry, taken in (await self._pending(group, OURSELVES)).items():
                before = claimed.get(entry, taken)
                if entry not in found or _rank(before) < _rank(found[entry]):
                    found[entry] = before
        if found and len(self.groups) > 1:  # idle in one group, under way in another
            held = await self.pending()
            found = {
                entry: before
                for entry, before in found.items()
                if entry in held and held[entry].consumer == OURSELVES
            }
        return found

    async def _claim_idle(self, group: str, min_idle_ms: int) -> dict[str, PendingEntry]:
        found: dict[str, PendingEntry] = {}
        cursor: Any = "0-0"
        try:
            while True:
                # One transaction: were this process to stand still between a look and the claim, a
                # worker could take an entry and fall silent meanwhile, and would not be seen.
                pipe = self._redis.pipeline(transaction=True)
                _ = pipe.xpending_range(
                    self._tasks, group, text_of(cursor), "+", CLAIMED, idle=min_idle_ms
                )
                # Not JUSTID: redis-py drops the cursor from that reply.
                _ = pipe.xautoclaim(
                    self._tasks, group, OURSELVES, min_idle_ms, cursor, count=CLAIMED
                )
                before, (cursor, *_) = await pipe.execute()
                found.update(_taken(before))
                # One call looks at 1,000 entries: an idle one may stand behind as many fresh ones.
                if text_of(cursor) == "0-0":
                    return found
        except ResponseError as error:
            if "unknown command" not in str(error).lower():
                raise
            return {**found, **await self._claim_listed(group, min_idle_ms)}

    async def _claim_listed(self, group: str, min_idle_ms: int) -> dict[str, PendingEntry]:
        """The same with XPENDING and XCLAIM, on a server without XAUTOCLAIM (S1-6)."""
        pending = await self._pending(group)
        idle: list[Any] = [
            entry for entry, taken in pending.items() if taken.idle_ms >= min_idle_ms
        ]
        if not idle:
            return {}
        # An entry that a consumer has touched since is no longer idle, and stays with it.
        claimed = await self._redis.xclaim(
            self._tasks, group, OURSELVES, min_idle_ms, idle, justid=True
        )
        return {text_of(entry): pending[text_of(entry)] for entry in claimed}

    # Cleaning up.

    async def dismiss(self, idle_ms: int) -> None:
        """Deletes consumers that have no entry and have been silent for so long."""
        for group in self.groups:
            for consumer in await self._redis.xinfo_consumers(self._tasks, group):
                if consumer["pending"] == 0 and consumer["idle"] >= idle_ms:
                    await self._script(_DISMISS, group, text_of(consumer["name"]))

    async def trim(self, now: Instant) -> None:
        """By age, and never the stream of tasks: a bound on length would delete pending entries."""
        for stream, kept_ms in self.dialect.kept_ms.items():
            await self._redis.xtrim(stream, minid=now - kept_ms, approximate=False)

    # Reading in the server's own group.

    async def read(self, start: str, *, block: bool) -> list[tuple[str, list[StreamEntry]]]:
        streams: dict[Any, Any] = dict.fromkeys(self.dialect.read, start)
        redis = self._blocking if block else self._redis
        reply: Any = await redis.xreadgroup(
            self.dialect.own_group,
            OURSELVES,
            streams,
            count=READ,
            block=BLOCK_MS if block else None,
        )
        found = [
            (text_of(stream), [self._row(entry, fields) for entry, fields in rows])
            for stream, rows in reply or ()
            if rows
        ]
        for stream, rows in found:
            self._tally[stream, "consumed"] += len(rows)
            for row in rows:
                log.debug("Event consumed", stream=stream, event_id=row.event, consumer=OURSELVES)
        return found

    async def done(self, stream: str, rows: Sequence[StreamEntry]) -> None:
        """Acknowledges them, and deletes them where no one else reads the stream."""
        entries = [row.entry for row in rows]
        pipe = self._redis.pipeline(transaction=True)
        _ = pipe.xack(stream, self.dialect.own_group, *entries)
        if stream in self.dialect.consumed:
            _ = pipe.xdel(stream, *entries)
        await pipe.execute()
        self._tally[stream, "acknowledged"] += len(rows)
        for row in rows:
            log.debug("Event acknowledged", stream=stream, event_id=row.event)

    def _row(self, entry: Any, fields: Any) -> StreamEntry:
        name, plain = text_of(entry), fields_of(fields)
        return StreamEntry(name, self.dialect.opened(plain), plain.get("event_id", name))

    async def _script(self, source: str, *arguments: str) -> Any:
        return await self._redis.eval(source, 1, self._tasks, *arguments)


def _taken(rows: Iterable[Mapping[str, Any]]) -> dict[str, PendingEntry]:
    return {
        text_of(row["message_id"]): PendingEntry(
            text_of(row["consumer"]), int(row["time_since_delivered"])
        )
        for row in rows
    }


def _rank(taken: PendingEntry) -> tuple[bool, int]:
    return taken.consumer == OURSELVES, taken.idle_ms
