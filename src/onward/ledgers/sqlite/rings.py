"""What the SQLite ledger remembers of turns and bounds: rings, what is occupied, what is paid off.

In memory, as the counters are. It changes at once, with what one piece of work does; if that fails,
the journal takes it back. A lane without partitions has no ring, and a ledger that has seen no
bound counts nothing.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from onward.core.limits import Bound, Micros
from onward.core.task import Instant
from onward.ledgers.sql.turns import (
    Head,
    LaneBounds,
    RateKey,
    Room,
    WaitingFor,
    applying,
    forget_at,
    rate_key,
)
from onward.ledgers.sql.write_batch import LaneKey


class Journal:
    """What takes back the work that is under way."""

    def __init__(self) -> None:
        self._back: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def begin(self) -> None:
        self._back.clear()

    def add(self, back: Callable[..., object], *args: Any) -> None:
        self._back.append((back, args))

    def undo(self) -> None:
        while self._back:
            back, args = self._back.pop()
            back(*args)


class Ring:
    """The partitions of one lane that have something queued. Those that wait are out of it."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}  # queued, by partition; without the partition ""
        self.named = 0  # all of these together
        self.turns: OrderedDict[str, None] = OrderedDict()  # the first is next
        self.out: dict[str, WaitingFor] = {}
        self._typed: set[str] = set()  # of these, whose types wait for bounds of all partitions
        self._bounds: tuple[Bound, ...] = ()  # under which they were put out
        self._full: tuple[Bound, ...] = ()  # of those by type, which nothing may start under
        self._until: list[tuple[Instant, str]] = []  # a heap; some are back already

    def add(self, partition: str, change: int) -> None:
        count = self.counts.get(partition, 0) + change
        self.named += change
        if count:
            self.counts[partition] = count
            self.back(partition)
        else:
            self.counts.pop(partition, None)
            self.turns.pop(partition, None)
            self.out.pop(partition, None)
            self._typed.discard(partition)

    def back(self, partition: str) -> None:
        self.out.pop(partition, None)
        self._typed.discard(partition)
        if partition not in self.turns:
            self.turns[partition] = None

    def served(self, partition: str) -> None:
        if partition in self.turns:
            self.turns.move_to_end(partition)

    def put_out(self, partition: str, waits: WaitingFor, *, typed: bool = False) -> None:
        del self.turns[partition]
        self.out[partition] = waits
        if typed:
            self._typed.add(partition)
        if waits.until is not None:
            heappush(self._until, (waits.until, partition))

    def under(self, bounds: tuple[Bound, ...], full: tuple[Bound, ...], now: Instant) -> None:
        """Those are back that do not wait any more, as far as bounds and time go."""
        if self._bounds != bounds:
            self._bounds = bounds
            for partition in list(self.out):
                self.back(partition)
        if self._full != full:
            self._full = full
            for partition in list(self._typed):
                self.back(partition)
        while self._until and self._until[0][0] <= now:
            until, partition = heappop(self._until)
            waits = self.out.get(partition)
            if waits is not None and waits.until == until:
                self.back(partition)

    def first_back(self) -> WaitingFor | None:
        """What the first of those waits for that wait for an instant."""
        while self._until:
            until, partition = self._until[0]
            waits = self.out.get(partition)
            if waits is not None and waits.until == until:
                return waits
            heappop(self._until)
        return None


class Rings:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lanes: dict[LaneKey, Ring] = {}
        self._out: defaultdict[str, set[LaneKey]] = defaultdict(set)  # where a partition is out

    def recall(self, rows: list[Any]) -> None:
        self._lanes.clear()
        self._out.clear()
        for queue, priority, lane, partition, count in rows:
            self._change((queue, priority, lane), partition, count)

    def get(self, lane: LaneKey) -> Ring | None:
        return self._lanes.get(lane)

    def add(self, lane: LaneKey, partition: str, change: int) -> None:
        """So many more tasks of this partition are queued."""
        self._change(lane, partition, change)
        self._journal.add(self._change, lane, partition, -change)

    def _change(self, lane: LaneKey, partition: str, change: int) -> None:
        ring = self._lanes.get(lane)
        if ring is None:
            ring = self._lanes[lane] = Ring()
        ring.add(partition, change)
        if not ring.counts:
            del self._lanes[lane]

    def put_out(
        self, lane: LaneKey, ring: Ring, partition: str, waits: WaitingFor, *, typed: bool = False
    ) -> None:
        ring.put_out(partition, waits, typed=typed)
        self._out[partition].add(lane)
        self._journal.add(self.back, partition)

    def back(self, partition: str) -> None:
        """It may have room again: wherever it waits, it is looked at again."""
        for lane in self._out.pop(partition, ()):
            ring = self._lanes.get(lane)
            if ring is not None and partition in ring.out:
                ring.back(partition)


class Occupied:
    """How many tasks occupy what bounds count, from the first bound on."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.known = False
        self._queues: dict[str, int] = {}
        self._types: dict[str, dict[str, int]] = {}  # by queue
        self._lines: dict[tuple[str, str], int] = {}  # by queue and partition
        self._typed_lines: dict[tuple[str, str], dict[str, int]] = {}  # type, partition: by queue

    def recall(self, rows: list[Any]) -> None:
        self.forget()
        self.known = True
        for row in rows:
            self._change(*row)
        self._journal.add(self.forget)  # what was read may be taken back with this work

    def forget(self) -> None:
        self.known = False
        self._queues.clear()
        self._types.clear()
        self._lines.clear()
        self._typed_lines.clear()

    def add(self, queue: str, type_: str, partition: str, change: int) -> None:
        self._change(queue, type_, partition, change)
        self._journal.add(self._change, queue, type_, partition, -change)

    def _change(self, queue: str, type_: str, partition: str, change: int) -> None:
        add(self._queues, queue, change)
        add(self._lines, (queue, partition), change)
        _add_below(self._types, type_, queue, change)
        _add_below(self._typed_lines, (type_, partition), queue, change)

    def used(self, bound: Bound, partition: str) -> int:
        if bound.each:
            used = sum(self._lines.get((queue, partition), 0) for queue in bound.queues)
            by_queue = [self._typed_lines.get((type_, partition)) for type_ in bound.types]
        else:
            used = sum(self._queues.get(queue, 0) for queue in bound.queues)
            by_queue = [self._types.get(type_) for type_ in bound.types]
        return used + sum(
            count
            for counts in by_queue
            if counts
            for queue, count in counts.items()
            if queue not in bound.queues
        )


class Rates:
    """When what has started under each rate is paid off."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._paid: dict[RateKey, Micros] = {}
        self.dirty: dict[RateKey, tuple[Micros, Instant]] = {}  # and when it may be forgotten
        self.rated_at: Instant = 0  # when one was last used; 0: not since they were tidied up

    def recall(self, rows: list[Any]) -> None:
        self.dirty.clear()
        self._paid = {row[:3]: row[3] for row in rows}

    def get(self, key: RateKey) -> Micros:
        return self._paid.get(key, 0)

    def set(self, key: RateKey, paid_at: Micros, forget_at: Instant) -> None:
        self._journal.add(self._reset, key, self._paid.get(key), self.dirty.get(key))
        self._paid[key] = paid_at
        self.dirty[key] = (paid_at, forget_at)

    def _reset(
        self, key: RateKey, paid_at: Micros | None, dirty: tuple[Micros, Instant] | None
    ) -> None:
        self._paid.pop(key, None)
        self.dirty.pop(key, None)
        if paid_at is not None:
            self._paid[key] = paid_at
        if dirty is not None:
            self.dirty[key] = dirty

    def drop(self, keys: Sequence[Any]) -> None:
        for key in keys:
            self._paid.pop(key, None)


class SqliteRoom(Room):
    def __init__(self, occupied: Occupied, rates: Rates, now: Instant) -> None:
        super().__init__(now)
        self._occupied = occupied
        self._rates = rates

    def used(self, bound: Bound, partition: str) -> int:
        return self._occupied.used(bound, partition)

    def paid_at(self, key: RateKey) -> Micros:
        return self._rates.get(key)

    def start(self, queue: str, partition: str, head: Head, bounds: LaneBounds) -> None:
        for bound in applying(bounds, head.type):
            if (rate := bound.rate) is not None:
                paid_at = self.paid(bound, rate, partition, head.costs)
                key = rate_key(bound, partition)
                self._rates.set(key, paid_at, forget_at(rate, paid_at))
        if self._occupied.known:
            self._occupied.add(queue, head.type, partition, +1)


def add(counts: dict[Any, int], key: Any, change: int) -> None:
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)


def _add_below(counts: dict[Any, dict[str, int]], key: Any, queue: str, change: int) -> None:
    below = counts.setdefault(key, {})
    add(below, queue, change)
    if not below:
        del counts[key]
