"""One dialect's streams in Redis: what is on them, which consumer has what, and the single steps.

Facts and steps, no decisions; those are in feed.py and collect.py. Nothing here knows the ledger. A
step that must be atomic is one script. Where several groups read each entry (docs/adr/0012), it is
under way while it is pending in any of them, and all have let it go once it is pending in none.
Tasks may be on several streams, a service's own among them (docs/adr/0080): each on one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from onward.core.task import Instant
from onward.wire.streams import Fields, fields_of, text_of
from onward.workers.streams.dialects import StreamDialect

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


Order = tuple[int, int]


class EntryId(NamedTuple):
    stream: str
    id: str

    @property
    def order(self) -> Order:
        ms, _, n = self.id.partition("-")
        return int(ms), int(n or 0)


class StreamEntry(NamedTuple):
    entry: EntryId
    fields: Fields
    event: str  # the id in its envelope; without one, the entry's own


class PendingEntry(NamedTuple):
    """An entry of a group's pending list."""

    consumer: str
    idle_ms: int


NOWHERE: Order = (0, 0)


class ReadPositions(NamedTuple):
    """By stream: the last entry that all groups have been given, and the last that any has."""

    last: Mapping[str, tuple[Order, Order]]

    def all_had(self, entry: EntryId) -> bool:
        return entry.order <= self.last.get(entry.stream, (NOWHERE, NOWHERE))[0]

    def any_had(self, entry: EntryId) -> bool:
        return entry.order <= self.last.get(entry.stream, (NOWHERE, NOWHERE))[1]


class StreamReaders(NamedTuple):
    """Who does the work of a stream of tasks, as last read."""

    groups: Sequence[str]
    lively: bool  # one of them has a consumer


NO_READERS = StreamReaders((), lively=False)


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
    def __init__(self, connections: StreamConnections, dialect: StreamDialect) -> None:
        self.dialect = dialect
        self._redis = connections.calls
        self._blocking = connections.blocking
        self._tally = connections.tally
        self._occupied = f"onward:fed:{dialect.name}"
        self._own: Sequence[str] = ()  # streams of single services that are fed and read, too
        self._readers: Mapping[str, StreamReaders] = {}
        self._signatures: set[str] = set()  # names in answers that are no consumer's

    async def prepare(self) -> None:
        """Groups begin at the start of their stream: what is there already is to be done too."""
        for stream, group in self.dialect.groups:
            await self._create_group(stream, group)
        for stream in self._own:
            await self._create_group(stream, self.dialect.own_group)
        await self.delivered()

    async def _create_group(self, stream: str, group: str) -> None:
        try:
            await self._redis.xgroup_create(stream, group, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    # Which streams there are.

    @property
    def task_streams(self) -> Sequence[str]:
        return [self.dialect.tasks, *self._own]

    def readers(self, stream: str) -> StreamReaders:
        return self._readers.get(stream, NO_READERS)

    async def join_own(self, needed: Iterable[str], wanted: Iterable[str]) -> None:
        """From now on these are fed and read, too: all that are needed, and those of the wanted
        ones that a service has made, or that were joined before."""
        streams = dict.fromkeys(needed, True) | dict.fromkeys(self._own, True)
        asked = [stream for stream in wanted if stream not in streams]
        pipe = self._redis.pipeline(transaction=False)
        for stream in asked:
            _ = pipe.exists(stream)
        made = await pipe.execute() if asked else []
        streams |= {stream: True for stream, is_there in zip(asked, made, strict=True) if is_there}
        for stream in streams:
            if stream not in self._own:
                await self._create_group(stream, self.dialect.own_group)
        self._own = list(streams)

    async def occupy(self, ledger: str) -> str | None:
        """Takes the streams for this ledger for a while, or returns the ledger that has them."""
        by = await self._redis.eval(_OCCUPY, 1, self._occupied, ledger, str(OCCUPIED_MS))
        return None if by is None else text_of(by)

    async def vacate(self, ledger: str) -> None:
        await self._redis.eval(_VACATE, 1, self._occupied, ledger)

    # Reading what is there.

    async def entries(self) -> AsyncIterator[Sequence[StreamEntry]]:
        """A page at a time: a stream may be longer than fits into memory."""
        for stream in self.task_streams:
            start = "-"
            while True:
                rows = await self._redis.xrange(stream, start, "+", count=ENTRIES) or ()
                found = [self._row(stream, entry, fields) for entry, fields in rows]
                yield found
                if len(found) < ENTRIES:
                    break
                start = "(" + found[-1].entry.id

    async def row(self, entry: EntryId) -> StreamEntry | None:
        rows = await self._redis.xrange(entry.stream, entry.id, entry.id) or ()
        return next((self._row(entry.stream, *row) for row in rows), None)

    async def length(self) -> int:
        pipe = self._redis.pipeline(transaction=False)
        for stream in self.task_streams:
            _ = pipe.xlen(stream)
        return sum(await pipe.execute())

    async def pending(self) -> dict[EntryId, PendingEntry]:
        """By entry, the consumer with the latest heartbeat; the server if there is no other."""
        found: dict[EntryId, PendingEntry] = {}
        for stream, group in self._groups():
            for entry, taken in (await self._pending(stream, group)).items():
                other = found.get(entry)
                if other is None or _rank(taken) < _rank(other):
                    found[entry] = taken
        return found

    async def _pending(
        self, stream: str, group: str, consumer: str | None = None
    ) -> dict[EntryId, PendingEntry]:
        found: dict[EntryId, PendingEntry] = {}
        start = "-"
        while True:
            rows = await self._redis.xpending_range(
                stream, group, start, "+", PAGE, consumername=consumer
            )
            found.update(_taken(stream, rows))
            if len(rows) < PAGE:
                return found
            start = "(" + text_of(rows[-1]["message_id"])

    async def is_taken(self, entry: EntryId) -> bool:
        for group in self.readers(entry.stream).groups:
            if await self._redis.xpending_range(entry.stream, group, entry.id, entry.id, 1):
                return True
        return False

    async def had_it_last(self, entry: EntryId, worker: str) -> bool:
        """Whether this consumer has the entry, or may have been the one that acknowledged it. A
        worker may sign its answers with another name than its consumer's."""
        if worker in self._signatures:
            return False
        groups = self.readers(entry.stream).groups
        names: set[str] = set()
        for group in groups:
            rows = await self._redis.xpending_range(entry.stream, group, entry.id, entry.id, 1)
            if rows:
                return text_of(rows[0]["consumer"]) == worker
            consumers = await self._redis.xinfo_consumers(entry.stream, group)
            names.update(text_of(consumer["name"]) for consumer in consumers)
        if worker not in names:
            if len(self._signatures) >= PAGE:
                self._signatures.clear()
            self._signatures.add(worker)
        return worker in names

    async def was_read(self, entry: EntryId) -> bool:
        """Whether a consumer has it, or has acknowledged it."""
        if await self.is_taken(entry):
            return True
        reach = await self.delivered()
        # On a stream that all services read, it counts only once each of them has read so far.
        return reach.all_had(entry) if self.dialect.shared else reach.any_had(entry)

    async def delivered(self) -> ReadPositions:
        """How far the groups have read; also reads again which groups there are."""
        streams = self.task_streams
        pipe = self._redis.pipeline(transaction=False)
        for stream in streams:
            _ = pipe.xinfo_groups(stream)
        replies: Sequence[Any] = await pipe.execute()
        readers: dict[str, StreamReaders] = {}
        last: dict[str, tuple[Order, Order]] = {}
        for stream, reply in zip(streams, replies, strict=True):
            infos = [info for info in reply if self.dialect.serves(text_of(info["name"]))]
            if not infos and not self.dialect.shared:
                raise ResponseError("NOGROUP the group was deleted")
            # A group without consumers is a service that is gone, or not started yet.
            lively = [info for info in infos if info["consumers"]]
            readers[stream] = StreamReaders([text_of(info["name"]) for info in infos], bool(lively))
            ends = [
                EntryId(stream, text_of(info["last-delivered-id"])).order
                for info in lively or infos
            ]
            last[stream] = min(ends, default=NOWHERE), max(ends, default=NOWHERE)
        self._readers = readers
        return ReadPositions(last)

    def _groups(self) -> Iterator[tuple[str, str]]:
        for stream, readers in self._readers.items():
            for group in readers.groups:
                yield stream, group

    # Writing and deleting.

    async def add(self, entries: Sequence[tuple[str, Fields]]) -> list[EntryId]:
        """Each on the stream that it names."""
        pipe = self._redis.pipeline(transaction=False)
        for stream, entry in entries:
            fields: dict[Any, Any] = dict(entry)
            _ = pipe.xadd(stream, fields)
        added: list[EntryId] = []
        for (stream, entry), id in zip(entries, await pipe.execute(), strict=True):
            added.append(EntryId(stream, text_of(id)))
            self._tally[stream, "published"] += 1
            name = entry.get("event_id", added[-1].id)
            log.debug("Event published", stream=stream, event_id=name)
        return added

    async def drop(self, entries: Sequence[EntryId]) -> Sequence[None]:
        by_stream: dict[str, list[str]] = {}
        for entry in entries:
            by_stream.setdefault(entry.stream, []).append(entry.id)
        pipe = self._redis.pipeline(transaction=True)
        for stream, ids in by_stream.items():
            for group in self.readers(stream).groups:
                _ = pipe.xack(stream, group, *ids)
            _ = pipe.xdel(stream, *ids)
        await pipe.execute()
        return [None] * len(entries)

    async def withdraw(self, entry: EntryId) -> bool:
        """Deletes it, unless a consumer has it."""
        groups = self.readers(entry.stream).groups
        return bool(await self._script(entry.stream, _WITHDRAW, entry.id, *groups))

    async def mark(self, key: str, seconds: int) -> None:
        """Sets a key that a worker looks for."""
        await self._redis.set(key, 1, ex=seconds)

    async def unmark(self, key: str) -> None:
        await self._redis.delete(key)

    # Reclaiming.

    async def claim_idle(self, min_idle_ms: int) -> dict[EntryId, PendingEntry]:
        """Claims the entries of consumers that have been silent for so long, and returns what these
        were. OURSELVES: a sweep ended after claiming it, and the consumer before is not known."""
        found: dict[EntryId, PendingEntry] = {}
        for stream, group in self._groups():
            claimed = await self._claim_idle(stream, group, min_idle_ms)
            for entry, taken in (await self._pending(stream, group, OURSELVES)).items():
                before = claimed.get(entry, taken)
                if entry not in found or _rank(before) < _rank(found[entry]):
                    found[entry] = before
        if found and self.dialect.shared:  # idle in one group, under way in another
            held = await self.pending()
            found = {
                entry: before
                for entry, before in found.items()
                if entry in held and held[entry].consumer == OURSELVES
            }
        return found

    async def _claim_idle(
        self, stream: str, group: str, min_idle_ms: int
    ) -> dict[EntryId, PendingEntry]:
        found: dict[EntryId, PendingEntry] = {}
        cursor: Any = "0-0"
        try:
            while True:
                # One transaction: were this process to stand still between a look and the claim, a
                # worker could take an entry and fall silent meanwhile, and would not be seen.
                pipe = self._redis.pipeline(transaction=True)
                _ = pipe.xpending_range(
                    stream, group, text_of(cursor), "+", CLAIMED, idle=min_idle_ms
                )
                # Not JUSTID: redis-py drops the cursor from that reply.
                _ = pipe.xautoclaim(stream, group, OURSELVES, min_idle_ms, cursor, count=CLAIMED)
                before, (cursor, *_) = await pipe.execute()
                found.update(_taken(stream, before))
                # One call looks at 1,000 entries: an idle one may stand behind as many fresh ones.
                if text_of(cursor) == "0-0":
                    return found
        except ResponseError as error:
            if "unknown command" not in str(error).lower():
                raise
            return {**found, **await self._claim_listed(stream, group, min_idle_ms)}

    async def _claim_listed(
        self, stream: str, group: str, min_idle_ms: int
    ) -> dict[EntryId, PendingEntry]:
        """The same with XPENDING and XCLAIM, on a server without XAUTOCLAIM (S1-6)."""
        pending = await self._pending(stream, group)
        idle: list[Any] = [
            entry.id for entry, taken in pending.items() if taken.idle_ms >= min_idle_ms
        ]
        if not idle:
            return {}
        # An entry that a consumer has touched since is no longer idle, and stays with it.
        claimed = await self._redis.xclaim(stream, group, OURSELVES, min_idle_ms, idle, justid=True)
        named = [EntryId(stream, text_of(entry)) for entry in claimed]
        return {entry: pending[entry] for entry in named}

    # Cleaning up.

    async def dismiss(self, idle_ms: int) -> None:
        """Deletes consumers that have no entry and have been silent for so long."""
        for stream, group in self._groups():
            for consumer in await self._redis.xinfo_consumers(stream, group):
                if consumer["pending"] == 0 and consumer["idle"] >= idle_ms:
                    await self._script(stream, _DISMISS, group, text_of(consumer["name"]))

    async def trim(self, now: Instant) -> None:
        """By age, and never the stream of tasks: a bound on length would delete pending entries."""
        for stream, kept_ms in self.dialect.kept_ms.items():
            await self._redis.xtrim(stream, minid=now - kept_ms, approximate=False)

    # Reading in the server's own group.

    async def read(self, start: str, *, block: bool) -> list[tuple[str, list[StreamEntry]]]:
        streams: dict[Any, Any] = dict.fromkeys([*self.dialect.read, *self._own], start)
        redis = self._blocking if block else self._redis
        reply: Any = await redis.xreadgroup(
            self.dialect.own_group,
            OURSELVES,
            streams,
            count=READ,
            block=BLOCK_MS if block else None,
        )
        found = [
            (name, [self._row(name, entry, fields) for entry, fields in rows])
            for name, rows in ((text_of(stream), rows) for stream, rows in reply or ())
            if rows
        ]
        for stream, rows in found:
            self._tally[stream, "consumed"] += len(rows)
            for row in rows:
                log.debug("Event consumed", stream=stream, event_id=row.event, consumer=OURSELVES)
        return found

    async def done(self, stream: str, rows: Sequence[StreamEntry]) -> None:
        """Acknowledges them, and deletes them where no one else reads the stream."""
        entries = [row.entry.id for row in rows]
        pipe = self._redis.pipeline(transaction=True)
        _ = pipe.xack(stream, self.dialect.own_group, *entries)
        if stream in self.dialect.consumed:
            _ = pipe.xdel(stream, *entries)
        await pipe.execute()
        self._tally[stream, "acknowledged"] += len(rows)
        for row in rows:
            log.debug("Event acknowledged", stream=stream, event_id=row.event)

    def _row(self, stream: str, entry: Any, fields: Any) -> StreamEntry:
        id, plain = text_of(entry), fields_of(fields)
        event = plain.get("event_id", id)
        return StreamEntry(EntryId(stream, id), self.dialect.opened(plain), event)

    async def _script(self, stream: str, source: str, *arguments: str) -> Any:
        return await self._redis.eval(source, 1, stream, *arguments)


def _taken(stream: str, rows: Iterable[Mapping[str, Any]]) -> dict[EntryId, PendingEntry]:
    return {
        EntryId(stream, text_of(row["message_id"])): PendingEntry(
            text_of(row["consumer"]), int(row["time_since_delivered"])
        )
        for row in rows
    }


def _rank(taken: PendingEntry) -> tuple[bool, int]:
    return taken.consumer == OURSELVES, taken.idle_ms
