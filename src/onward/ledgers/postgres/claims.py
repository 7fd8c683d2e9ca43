"""A claim from lanes with partitions or bounds, over all servers: a few statements at any length.

One claim at a time changes the ring of a queue, or adds to what a bound counts: locks see to that,
taken by name in their order. Those that queue tasks, or free something, lock nothing. They leave a
note (`ring_news`, `ring_freed`), which becomes visible with their transaction, and the next claim
reads it before it looks and counts: so nothing it does not see can be lost by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from zlib import crc32

import msgspec

from onward.core.contract import Want
from onward.core.limits import Bound, Micros
from onward.core.task import Instant
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.turns import (
    Head,
    LaneBounds,
    LaneChoice,
    RateKey,
    Room,
    Waiting,
    WaitingFor,
    applying,
    choose,
    forget_at,
    lane_bounds,
    rate_key,
)
from onward.ledgers.sql.write_batch import LaneKey, Plan

NEWS = 1_000  # notes read at once
WIDE = 512  # heads read of one lane at once, beside those that its limit needs


class Prepared:
    """What the asks of one write have locked and read so far: it is theirs until the commit.

    A server has an ask for each of its workers. Without this a rate that lets nothing start would
    be found out anew for every one of them.
    """

    def __init__(self) -> None:
        self.paid: dict[RateKey, Micros] = {}
        self._done: set[object] = set()

    def first(self, *step: object) -> bool:
        """Whether none of them has done this before."""
        before = len(self._done)
        self._done.add(step)
        return len(self._done) > before


class PostgresRoom(Room):
    """As it was read under the locks of its bounds."""

    def __init__(
        self, now: Instant, queues: Iterable[str] = (), prepared: Prepared | None = None
    ) -> None:
        super().__init__(now)
        self._queues = sorted(queues)
        self._used: dict[tuple[Bound, str], int] = {}
        self._paid = (prepared or Prepared()).paid
        self.dirty: dict[RateKey, tuple[Micros, Instant]] = {}

    def used(self, bound: Bound, partition: str) -> int:
        return self._used[bound, partition if bound.each else ""]

    def paid_at(self, key: RateKey) -> Micros:
        return self._paid.get(key, 0)

    def start(self, queue: str, partition: str, head: Head, bounds: LaneBounds) -> None:
        for bound in applying(bounds, head.type):
            if (rate := bound.rate) is not None:
                paid_at = self.paid(bound, rate, partition, head.costs)
                key = rate_key(bound, partition)
                self._paid[key] = paid_at
                self.dirty[key] = (paid_at, forget_at(rate, paid_at))
            if bound.most is not None:
                self._used[bound, partition if bound.each else ""] += 1

    def read(self, pairs: Iterable[tuple[Bound, str]], *, whole: bool = False) -> Plan[None]:
        """What is used of these bounds in these partitions. `whole`: also beyond what they let."""
        asked = dict.fromkeys((one, partition if one.each else "") for one, partition in pairs)
        counted = [pair for pair in asked if whole or pair[0].most is not None]
        missing = [pair for pair in counted if pair not in self._used]
        if missing:
            bounds = list(dict.fromkeys(bound for bound, _ in missing))
            numbers = {bound: nth for nth, bound in enumerate(bounds)}
            nths, partitions = [numbers[bound] for bound, _ in missing], [p for _, p in missing]
            step = Step("used", (_encoded(bounds, whole=whole), nths, partitions, self._queues))
            for nth, partition, used in (yield step):
                self._used[bounds[nth], partition] = used
        keys = {rate_key(bound, partition) for bound, partition in asked if bound.rate is not None}
        keys -= self._paid.keys()
        if keys:
            columns = [list(column) for column in zip(*keys, strict=True)]
            self._paid |= dict.fromkeys(keys, 0)
            for *key, paid_at in (yield Step("paid", columns)):
                self._paid[key[0], key[1], key[2]] = paid_at

    def save(self) -> Plan[None]:
        if self.dirty:
            yield Step("save_rates", rows=[(*key, *kept) for key, kept in self.dirty.items()])
            self.dirty.clear()


def _encoded(bounds: Sequence[Bound], *, whole: bool) -> str:
    return msgspec.json.encode(
        [
            {
                "nth": nth,
                "each": bound.each,
                "most": None if whole else bound.most,
                "queues": bound.queues,
                "types": bound.types,
            }
            for nth, bound in enumerate(bounds)
        ]
    ).decode()


def locks_of(queues: Iterable[str], bounds: Iterable[Bound]) -> list[str]:
    """In the order in which everybody takes them."""
    return sorted({*(f"ring {queue}" for queue in queues), *(f"bound {b.name}" for b in bounds)})


class _Lane:
    """One lane, while it is claimed from."""

    def __init__(self, want: Want, nth: int) -> None:
        self.key: LaneKey = (want.queue, int(want.priority), str(want.lane))
        self.nth = nth
        self.bounds = lane_bounds(want.bounds, want.queue)
        self.full: tuple[Bound, ...] = ()  # bounds by type that nothing may start under
        self.over = False  # nothing more of it, in this claim
        self.plain_waits = False  # the partition "" does, which never leaves the ring
        self.ring: list[str] = []
        self.begin(())

    def begin(self, ring: Iterable[str]) -> None:
        """With the partitions whose turn is next; the partition "" need not be in the ring."""
        self.ring = list(ring)
        self.cut = False  # whether it has more
        self.placed = False  # whether the partition "" is in it
        self.lines: dict[str, list[Head]] = {}
        self.passed: dict[str, str] = {}  # types that may not start, by partition
        self.deep: set[str] = set()  # partitions of which more may be queued than was read
        self.depth = 0
        self.served: dict[str, None] = {}
        self.waits: dict[str, WaitingFor] = {}
        self.gone: set[str] = set()

    def read(self, room: Room, limit: int) -> list[Row]:
        """What is to be read: so many heads of each partition that may start any."""
        self.cut = len(self.ring) >= limit
        # The partition "" comes with any ring that it is not in; in one it waits for its turn.
        members = self.ring if self.placed or self.plain_waits else [*self.ring, ""]
        for partition in members:
            most = room.most_of(partition, self.bounds)
            if isinstance(most, WaitingFor):
                self.waits[partition] = most
            else:
                self.lines[partition] = []
                self.passed[partition] = room.held_up(partition, self.bounds)
        many = len(self.lines)
        self.depth = limit if many * limit <= WIDE else 2 * limit // many + 1
        return [
            (self.nth, *self.key, partition, self.passed[partition], self.depth)
            for partition in self.lines
        ]

    def was_read(self) -> None:
        self.deep = {name for name, line in self.lines.items() if len(line) == self.depth}

    def choose(self, limit: int, room: Room, *, start: bool = True) -> LaneChoice:
        chosen = choose(self.lines, limit, room, self.key[0], self.bounds, start=start)
        self.waits |= chosen.waits
        self.over |= chosen.stopped is not None
        came = set(chosen.partitions)
        for partition, line in list(self.lines.items()):
            if partition in chosen.waits or partition in came or chosen.stopped is not None:
                continue
            if (line and partition in chosen.passed) or (not line and self.passed[partition]):
                self.waits[partition] = self._first_typed(room, partition, chosen)
            elif not line and partition not in self.served:
                self.gone.add(partition)
        taken = {head.tid for _, head in chosen.heads}
        for partition in chosen.partitions:  # its turn is over
            line = self.lines.pop(partition)
            self.lines[partition] = [head for head in line if head.tid not in taken]
            self.served.pop(partition, None)
            self.served[partition] = None
        for partition in self.waits:
            self.lines.pop(partition, None)
        return chosen

    def _first_typed(self, room: Room, partition: str, chosen: LaneChoice) -> WaitingFor:
        waits = [
            *chosen.passed.get(partition, ()),
            *(room.wait(bound, partition) for bound in self.bounds.typed),
        ]
        until = [one.until for one in waits if one is not None and one.until is not None]
        return WaitingFor(min(until, default=None))

    @property
    def more(self) -> bool:
        """Whether there may be more to claim than was read."""
        return not self.over and (
            self.cut or any(not self.lines.get(partition) for partition in self.deep)
        )

    def drain(self) -> None:
        """All that was chosen is claimed: of some partitions nothing is left."""
        self.gone |= {
            partition
            for partition in self.served
            if self.lines.get(partition) == []
            and partition not in self.deep
            and not self.passed[partition]
        }

    def turns(self) -> Iterable[Row]:
        """What its ring is to hold of those that had their turn, or wait."""
        others = self.cut or any(self.ring)
        typed = bool(self.bounds.typed)
        for partition in self.served | dict.fromkeys(self.waits):
            if partition in self.gone or not (partition or others):
                continue
            waits = self.waits.get(partition)
            if waits is None or not partition:
                yield (*self.key, partition, 0, None, 0)
            else:
                yield (*self.key, partition, 1, waits.until, self.hash(typed=typed))

    def joins(self) -> Iterable[Row]:
        """The partition "" joins a ring when it is first seen beside others."""
        if self.ring and not self.placed and self.lines.get("") and "" not in self.served:
            yield (*self.key, "")

    def drops(self) -> Iterable[Row]:
        for partition in self.ring:
            if partition in self.gone:
                yield (*self.key, partition, 0)
            elif self.ring == [""]:
                yield (*self.key, partition, 1)

    def hash(self, *, typed: bool) -> int:
        """Under which bounds one of it was put out."""
        return crc32(repr((self.bounds, self.full) if typed else self.bounds).encode())


class RingClaims:
    def __init__(
        self,
        wants: Sequence[Want],
        now: Instant,
        queues: Iterable[str],
        claim: tuple[object, ...] = (),
        prepared: Prepared | None = None,
    ) -> None:
        """`queues`: in which this transaction may have claimed already. `claim`: worker and clocks
        of those that are claimed.
        """
        self._wants = wants
        self._claim = claim
        self._prepared = prepared or Prepared()
        self._room = PostgresRoom(now, queues, self._prepared)
        self.ringed: set[str] = set()  # queues in which there are partitions
        self.rated = False  # whether something has started under a rate
        self._lanes: dict[LaneKey, _Lane] = {}
        for want in wants:
            key = (want.queue, int(want.priority), str(want.lane))
            if key not in self._lanes:
                self._lanes[key] = _Lane(want, len(self._lanes))
        self._queues = sorted({want.queue for want in wants})
        self._bounds = dict.fromkeys(bound for want in wants for bound in want.bounds)

    def take(self, limit: int) -> Plan[Sequence[tuple[Want, Sequence[Row]]]]:
        yield from self._prepare()
        found: list[list[Row]] = [[] for _ in self._wants]
        left, at = limit, 0
        while left > 0 and at < len(found):
            yield from self._read(left)
            chosen, at = self._choose(found, at, left)
            tids = [head.tid for _, head in chosen]
            claimed = (yield Step("claim_these", self._claim, values=tids)) if tids else []
            rows = {row[0]: row for row in claimed}
            for nth, head in chosen:
                if head.tid in rows:
                    found[nth].append(rows[head.tid])
            left -= len(rows)
            if len(rows) == len(tids):
                for lane in self._lanes.values():
                    lane.drain()
            yield from self._turn()
        self.rated = bool(self._room.dirty)
        yield from self._room.save()
        return [(want, rows) for want, rows in zip(self._wants, found, strict=True) if rows]

    def _choose(
        self, found: Sequence[Sequence[Row]], at: int, limit: int
    ) -> tuple[list[tuple[int, Head]], int]:
        """Want by want, up to one of which not all has been read that it may take."""
        chosen: list[tuple[int, Head]] = []
        for nth in range(at, len(found)):
            want = self._wants[nth]
            lane = self._lanes[want.queue, int(want.priority), str(want.lane)]
            most = min(want.limit - len(found[nth]), limit - len(chosen))
            if most <= 0 or lane.over:
                continue
            heads = lane.choose(most, self._room).heads
            chosen += [(nth, head) for _, head in heads]
            if len(heads) < most and lane.more:
                return chosen, nth
        return chosen, len(found)

    def look(self, waiting: Waiting) -> Plan[None]:
        """What the next of these wait for."""
        yield from self._prepare(waiting)
        while any(not lane.over for lane in self._lanes.values()):
            yield from self._read(1)
            for lane in self._lanes.values():
                if lane.over:
                    continue
                queue = lane.key[0]
                chosen = lane.choose(1, self._room, start=False)
                waiting.add(queue, chosen.stopped)
                waiting.add(queue, lane.waits.get(""))
                if chosen.heads:
                    waiting.ready(queue)
                    lane.served.clear()  # it was only looked at
                lane.over |= bool(chosen.heads) or not lane.cut
            yield from self._turn()
        for queue, until in (yield Step("first_back", (self._queues,))):
            waiting.add(queue, WaitingFor(until))

    # Before.

    def _prepare(self, waiting: Waiting | None = None) -> Plan[None]:
        if self._prepared.first("hear", frozenset(self._queues), frozenset(self._bounds)):
            yield Step("lock", (locks_of(self._queues, self._bounds),))
            yield from self._hear()
        room, lanes = self._room, list(self._lanes.values())
        yield from room.read(
            (bound, "")
            for lane in lanes
            for bound in (*lane.bounds.total, *lane.bounds.typed)
            if not bound.each
        )
        for lane in lanes:
            for bound in lane.bounds.total:
                waits = room.wait(bound, "")
                lane.over |= waits is not None
                if waiting is not None:
                    waiting.add(lane.key[0], waits)
            lane.full = tuple(
                bound
                for bound in lane.bounds.typed
                if not bound.each and room.wait(bound, "") is not None
            )
        hashes = {lane.key[0]: (lane.hash(typed=False), lane.hash(typed=True)) for lane in lanes}
        if self._prepared.first("ring_back", frozenset(hashes.items())):
            columns = [list(column) for column in zip(*hashes.values(), strict=True)]
            yield Step("ring_back", (list(hashes), *columns, room.now))

    def _hear(self) -> Plan[None]:
        """Read the notes of those who have queued or freed something."""
        queues = {*self._queues, *(queue for bound in self._bounds for queue in bound.queues)}
        types = {type_ for bound in self._bounds for type_ in bound.types}
        heard = NEWS
        while heard >= NEWS:
            step = Step("hear", (self._queues, sorted(queues), sorted(types), NEWS))
            rows = sorted((yield step), key=lambda row: row[0])
            joined = dict.fromkeys(tuple(row[1:]) for row in rows if row[0])
            freed = [row[4] for row in rows if not row[0]]
            if joined:
                yield Step("join_ring", rows=list(joined))
            if freed:
                yield Step("free_ring", (self._queues, freed))
                yield Step("free_others", (self._queues, freed))
            heard = max(len(rows) - len(freed), len(freed))

    def _read(self, limit: int) -> Plan[None]:
        """The heads of the partitions whose turn is next."""
        lanes = {lane.nth: lane for lane in self._lanes.values() if not lane.over}
        if not lanes:
            return
        keys = [
            list(column)
            for column in zip(*((*one.key, one.nth) for one in lanes.values()), strict=True)
        ]
        members = yield Step("members", (*keys, limit + 1))
        for nth, lane in lanes.items():
            mine = [row for row in members if row[0] == nth]
            lane.begin([row[1] for row in mine if row[1] or not lane.plain_waits][:limit])
            lane.placed = any(row[2] for row in mine)
            self.ringed |= {lane.key[0]} if mine else set()
        yield from self._room.read(
            (bound, partition)
            for lane in lanes.values()
            for partition in ("", *lane.ring)
            for bound in (*lane.bounds.each, *lane.bounds.typed)
        )
        rows = [row for lane in lanes.values() for row in lane.read(self._room, limit)]
        if rows:
            for nth, partition, *head in (yield Step("heads", rows=rows)):
                lanes[nth].lines[partition].append(Head(*head))
        for lane in lanes.values():
            lane.was_read()

    def _turn(self) -> Plan[None]:
        """The ring as it is from now on."""
        lanes = [lane for lane in self._lanes.values() if lane.ring or lane.lines or lane.waits]
        drops = [row for lane in lanes for row in lane.drops()]
        turns = [row for lane in lanes for row in lane.turns()]
        joins = [row for lane in lanes for row in lane.joins()]
        if joins:
            yield Step("join_ring", rows=joins)
        if turns:
            yield Step("save_turns", rows=turns)
        if drops:
            yield Step("drop_turns", rows=drops)
        for lane in lanes:
            lane.plain_waits |= "" in lane.waits
            waits = any(lane.waits) or ("" in lane.waits and lane.cut)
            if not (lane.served or waits or lane.gone.intersection(lane.ring)):
                lane.over = True  # another look would find the same
            lane.begin(())
