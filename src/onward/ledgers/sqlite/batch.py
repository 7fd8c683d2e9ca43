"""One write on its way into SQLite: counts and numbers come from memory, long texts go aside."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter

from onward.core.contract import Ask, Move, Want
from onward.core.task import Instant, Task
from onward.ledgers.codec import FIELDS, to_row
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.schema import without_empty
from onward.ledgers.sql.write_batch import CLAIMED, Plan, WriteBatch
from onward.ledgers.sqlite.counters import Counters
from onward.ledgers.sqlite.texts import LONG, NAMES, is_long, parted

_LONG_OF_CLAIMED = tuple((CLAIMED.index(name) + 4, name) for name in NAMES if name in CLAIMED)
_PAYLOAD, _JOURNAL, _BULK = (at for at, _ in _LONG_OF_CLAIMED)
_place = itemgetter(3)


class SqliteBatch(WriteBatch):
    def __init__(self, counters: Counters, asks: Sequence[Ask], now: Instant) -> None:
        super().__init__(asks, now)
        self._counters = counters
        self._long: list[Row] = []  # long texts of new tasks and of applied moves

    def read_depths(self, capped: Collection[str], others: Collection[str]) -> Plan[None]:
        yield from ()  # they are known

    def depth(self, queue: str) -> int:
        return self._counters.depth(queue) + self.queued.get(queue, 0)

    def take(self, ask: Ask) -> Plan[Sequence[tuple[Want, Sequence[Row]]]]:
        found: list[tuple[Want, Sequence[Row]]] = []
        left, leased = ask.limit, ask.lease_ms is not None
        clocks = (self.now, self.now + (ask.lease_ms or 0)) if leased else (None, None)
        for want in ask.wants:
            limit = min(want.limit, left)
            if limit <= 0:
                break
            key = (want.queue, "queued", want.lane, int(want.priority))
            if self._counters.counted(key) + self.changes.get(key, 0) <= 0:
                continue
            lane = (want.queue, int(want.priority), str(want.lane), limit)
            rows = yield Step("claim", (ask.worker, self.now, *clocks, *lane))
            rows.sort(key=_place)
            if any(LONG in (row[_PAYLOAD], row[_JOURNAL], row[_BULK]) for row in rows):
                rows = yield from self._whole(rows)
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

    def close(self) -> Plan[None]:
        if self._long:
            yield Step("put_long_texts", rows=self._long)
        if self.events:
            seqs = self._counters.next_events(len(self.events))
            rows = [(seq, *event) for seq, event in zip(seqs, self.events, strict=True)]
            yield Step("insert_events", rows=rows)
        self._counters.add(self.changes, self.queued)
