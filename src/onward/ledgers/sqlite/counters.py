"""What the SQLite ledger counts, and the numbers it hands out.

Held in memory as it stands in the file, because this process is the file's only writer. What one
piece of work changes counts from its end on: if it fails, nothing was counted.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

from onward.core.limits import Bound
from onward.core.task import QUEUED, RUNNING, Instant
from onward.ledgers.sql.dialect import Step
from onward.ledgers.sql.write_batch import TallyKey
from onward.ledgers.sqlite.database import SqliteDatabase
from onward.ledgers.sqlite.rings import Journal, Occupied, Rates, Rings, SqliteRoom, add

AHEAD = 1_000  # numbers reserved at once: a page less in nearly every commit


class Counters:
    def __init__(self, database: SqliteDatabase) -> None:
        self._db = database
        self.tally: dict[TallyKey, int] = {}  # those of no task are left out
        self._queued: dict[str, int] = {}  # the tally of queued tasks, by queue alone
        self._dirty: set[TallyKey] = set()
        self._tid = self._place = self._event = 0
        self._reserved = (0, 0, 0)  # numbers up to these are given out without writing them down
        self.journal = Journal()
        self.rings = Rings(self.journal)
        self.occupied = Occupied(self.journal)
        self.rates = Rates(self.journal)
        database.run(Step("drop_empty_tallies"))
        self._recall()
        database.tallies = lambda: self.tally
        database.before_commit = self._save
        database.after_undo = self.journal.undo
        database.after_rollback = self._recall

    def add(self, changes: Mapping[TallyKey, int], queued: Mapping[str, int]) -> None:
        for key, change in changes.items():
            if change:
                add(self.tally, key, change)
                self._dirty.add(key)
        for queue, change in queued.items():
            add(self._queued, queue, change)

    def room(self, bounds: Sequence[Bound], now: Instant, started: int) -> SqliteRoom:
        """`started`: how many more run by the work that is under way, which the tally lacks."""
        if bounds and not self.occupied.known:  # from now on it is counted
            running = sum(count for key, count in self.tally.items() if key[1] == RUNNING)
            running += started
            ((offered,),) = self._db.run(Step("count_offered"))
            self.occupied.recall(self._db.run(Step("occupied", (running - offered,))))
        return SqliteRoom(self.occupied, self.rates, now)

    def next_tids(self, count: int) -> range:
        self._tid += count
        return range(self._tid - count + 1, self._tid + 1)

    def next_places(self, count: int) -> range:
        self._place += count
        return range(self._place - count + 1, self._place + 1)

    def next_events(self, count: int) -> range:
        self._event += count
        return range(self._event - count + 1, self._event + 1)

    def counted(self, key: TallyKey) -> int:
        return self.tally.get(key, 0)

    def depth(self, queue: str) -> int:
        return self._queued.get(queue, 0)

    def _save(self) -> None:
        if self._dirty:
            kept = [(*key, self.tally[key]) for key in self._dirty if key in self.tally]
            self._db.run(Step("save_tallies", rows=kept))
            # Those of a queue that is used once must not stay for ever, each read every second.
            gone = self._dirty - self.tally.keys()
            self._db.run(Step("drop_tallies", rows=list(gone)))
            self._dirty.clear()
        given = (self._tid, self._place, self._event)
        if any(map(operator.gt, given, self._reserved)):
            # Written before any of them is used: after a crash counting goes on behind them all.
            self._reserved = (given[0] + AHEAD, given[1] + AHEAD, given[2] + AHEAD)
            self._db.run(Step("save_counters", self._reserved))

    def _recall(self) -> None:
        self._dirty.clear()
        ((tid, place, event),) = self._db.run(Step("counters"))
        self._reserved = (tid, place, event)
        self._tid, self._place, self._event = self._reserved
        self.tally = {row[:4]: row[4] for row in self._db.run(Step("tallies"))}
        self._queued = {}
        for (queue, state, _, _), count in self.tally.items():
            if state == QUEUED:
                self._queued[queue] = self._queued.get(queue, 0) + count
        self.journal.begin()
        self.occupied.forget()
        self.rings.recall(self._db.run(Step("rings")))
        self.rates.recall(self._db.run(Step("rates")))
