"""One write on its way into SQLite: counts and numbers come from memory, long texts go aside."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter

from onward.core.contract import Ask, Move, Want
from onward.core.limits import Bound
from onward.core.task import QUEUED, RUNNING, Instant, State, Task
from onward.ledgers.codec import FIELDS, to_row
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.schema import without_empty
from onward.ledgers.sql.turns import Room, Waiting
from onward.ledgers.sql.write_batch import CLAIMED, LaneKey, Plan, WriteBatch
from onward.ledgers.sqlite.claims import RingClaim
from onward.ledgers.sqlite.counters import Counters
from onward.ledgers.sqlite.rings import SqliteRoom
from onward.ledgers.sqlite.texts import LONG, NAMES, is_long, parted

_LONG_OF_CLAIMED = tuple((CLAIMED.index(name) + 4, name) for name in NAMES if name in CLAIMED)
_PAYLOAD, _JOURNAL, _BULK = (at for at, _ in _LONG_OF_CLAIMED)
_TYPE = CLAIMED.index("type") + 4
_place = itemgetter(3)


class SqliteBatch(WriteBatch):
    def __init__(self, counters: Counters, asks: Sequence[Ask], now: Instant) -> None:
        super().__init__(asks, now)
        self._counters = counters
        counters.journal.begin()
        self._long: list[Row] = []  # long texts of new tasks and of applied moves

    def read_depths(self, capped: Collection[str], others: Collection[str]) -> Plan[None]:
        yield from ()  # they are known

    def depth(self, queue: str) -> int:
        return self._counters.depth(queue) + self.queued.get(queue, 0)

    def take(self, ask: Ask) -> Plan[Sequence[tuple[Want, Sequence[Row]]]]:
        found: list[tuple[Want, Sequence[Row]]] = []
        left, leased = ask.limit, ask.lease_ms is not None
        clocks = (self.now, self.now + (ask.lease_ms or 0)) if leased else (None, None)
        claim = (ask.worker, self.now, *clocks)
        taken: dict[LaneKey, int] = {}
        for want in ask.wants:
            limit = min(want.limit, left)
            if limit <= 0:
                break
            key = (want.queue, "queued", want.lane, int(want.priority))
            queued = self._counters.counted(key) + self.changes.get(key, 0)
            if queued <= 0:
                continue
            lane = (want.queue, int(want.priority), str(want.lane))
            if want.bounds or self._counters.rings.get(lane) is not None:
                room = self._room(want.bounds, sum(taken.values()))
                ring_claim = RingClaim(self._counters.rings, room)
                rows = yield from ring_claim.take(
                    want, lane, limit, queued - taken.get(lane, 0), claim
                )
            else:
                rows = yield Step("claim", (*claim, *lane, limit))
                rows.sort(key=_place)
                if self._counters.occupied.known:
                    for row in rows:
                        self._counters.occupied.add(want.queue, row[_TYPE], "", +1)
            if any(LONG in (row[_PAYLOAD], row[_JOURNAL], row[_BULK]) for row in rows):
                rows = yield from self._whole(rows)
            taken[lane] = taken.get(lane, 0) + len(rows)
            found.append((want, rows))
            left -= len(rows)
        return found

    def _whole(self, rows: Sequence[Row]) -> Plan[list[Row]]:
        """With their long texts."""
        found: list[Row] = []
        for row in rows:
            if LONG in (row[_PAYLOAD], row[_JOURNAL], row[_BULK]):
                texts: dict[str, str] = dict((yield Step("long_texts", (row[0],))))
                values = list(row)
                for at, name in _LONG_OF_CLAIMED:
                    if values[at] == LONG:
                        values[at] = texts[name]
                row = tuple(values)
            found.append(row)
        return found

    def new_tasks(self, tasks: Sequence[Task]) -> Plan[Sequence[int]]:
        tids = self._counters.next_tids(len(tasks))
        places = self._counters.next_places(len(tasks))
        rows: list[Row] = []
        for tid, place, task in zip(tids, places, tasks, strict=True):
            row, aside = parted(tid, to_row(task))
            rows.append((tid, place, *row))
            self._long += aside
        fields, rows = without_empty(("tid", "place", *FIELDS), rows)
        yield Step("insert_tasks", rows=rows, fields=fields)
        return tids

    def places(self, count: int) -> Iterable[int]:
        return self._counters.next_places(count)

    def may_go_aside(self, names: Sequence[str]) -> Sequence[int]:
        return [at for at, name in enumerate(names) if name in NAMES]

    def set_aside(self, move: Move, values: list[object], columns: Sequence[int]) -> None:
        for at in columns:
            if is_long(values[at]):
                values[at] = LONG
                self.aside.add(move.task)

    def moved(self, move: Move, tid: int) -> None:
        for name in NAMES:
            if is_long(move.changes.get(name)):
                self._long.append((tid, name, move.changes[name]))

    def purged(self, tids: Sequence[int]) -> Plan[None]:
        yield Step("purge_long_texts", values=tids)

    # Turns and bounds.

    @property
    def watching(self) -> bool:  # type: ignore[override]
        return self._counters.occupied.known

    def look(self, wants: Sequence[Want], waiting: Waiting) -> Plan[None]:
        for want in wants:
            key = (want.queue, "queued", want.lane, int(want.priority))
            queued = self._counters.counted(key)
            if queued <= 0 or waiting.knows(want):
                continue
            lane = (want.queue, int(want.priority), str(want.lane))
            claim = RingClaim(self._counters.rings, self._room(want.bounds))
            yield from claim.look(want, lane, queued, waiting)

    def room(self, bounds: Sequence[Bound], partition: str) -> Plan[Room]:
        yield from ()
        return self._room(bounds)

    def _room(self, bounds: Sequence[Bound], taken: int = 0) -> SqliteRoom:
        """`taken`: by this claim, and not counted yet."""
        started = sum(change for key, change in self.changes.items() if key[1] == RUNNING)
        return self._counters.room(bounds, self.now, started + taken)

    def came(self, task: Task) -> None:
        if task.partition and task.state is QUEUED:
            self.joined((task.queue, int(task.priority), str(task.lane)), task.partition)
        if self.watching and task.occupies:
            self._counters.occupied.add(task.queue, task.type, task.partition, +1)

    def joined(self, lane: LaneKey, partition: str) -> None:
        self._counters.rings.add(lane, partition, +1)

    def went(self, move: Move, lane: LaneKey, type_: str, partition: str, *, again: bool) -> None:
        rings, occupied = self._counters.rings, self._counters.occupied
        if partition and move.expect is not move.to:
            if move.expect is QUEUED:
                rings.add(lane, partition, -1)
            elif move.to is QUEUED:
                rings.add(lane, partition, +1)
        left = _occupies(move.to, again) - _occupies(move.expect, again)
        if left and occupied.known:
            occupied.add(lane[0], type_, partition, left)
        if partition:
            rings.back(partition)

    def forgot(self, rates: Sequence[Row]) -> None:
        self._counters.rates.drop(rates)

    def close(self) -> Plan[None]:
        if self._counters.rates.dirty:
            rates = [(*key, *kept) for key, kept in self._counters.rates.dirty.items()]
            yield Step("save_rates", rows=rates)
            self._counters.rates.dirty.clear()
            self._counters.rates.rated_at = self.now
        if self._long:
            yield Step("put_long_texts", rows=self._long)
        if self.events:
            seqs = self._counters.next_events(len(self.events))
            rows = [(seq, *event) for seq, event in zip(seqs, self.events, strict=True)]
            yield Step("insert_events", rows=rows)
        self._counters.add(self.changes, self.queued)


def _occupies(state: State, again: bool) -> int:
    return state is RUNNING or (state is State.SCHEDULED and again)
