"""What the SQLite ledger counts, and the numbers it hands out.

Held in memory as it stands in the file, because this process is the file's only writer. What one
piece of work changes counts from its end on: if it fails, nothing was counted.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TypeVar

from onward.core.contract import Want
from onward.core.task import FINAL_EVENTS, QUEUED, Instant, Lane, Note, State
from onward.ledgers.sqlite.database import QUERIES, Database, Row

AHEAD = 1_000  # numbers reserved at once: a page less in nearly every commit
K = TypeVar("K")
TallyKey = tuple[str, str, str, int]  # queue, state, and of queued tasks lane and priority


class Counters:
    def __init__(self, database: Database) -> None:
        self._db = database
        self._tally: dict[TallyKey, int] = {}  # those of no task are left out
        self._queued: dict[str, int] = {}  # the tally of queued tasks, by queue alone
        self._dirty: set[TallyKey] = set()
        self._tid = self._place = self._event = 0
        self._reserved = (0, 0, 0)  # numbers up to these are given out without writing them down
        self._news: list[Row] = []  # event rows of this piece of work
        self._delta: dict[TallyKey, int] = {}
        self._queued_delta: dict[str, int] = {}
        database.run(QUERIES["drop_empty_tallies"])
        self._recall()
        database.before_commit = self._save
        database.after_rollback = self._recall

    def open(self) -> None:
        """A piece of work begins."""
        self._news = []
        self._delta, self._queued_delta = {}, {}

    def close(self) -> None:
        """It is done: write its events, and let its counts count."""
        if self._news:
            self._db.run_rows("insert_events", self._news)
        for key, change in self._delta.items():
            if change:
                _add(self._tally, key, change)
                self._dirty.add(key)
        for queue, change in self._queued_delta.items():
            _add(self._queued, queue, change)
        self._delta, self._queued_delta = {}, {}

    def count(self, queue: str, state: State, lane: str, priority: int, change: int) -> None:
        key: TallyKey = (queue, state, "", 0)
        if state is QUEUED:
            key = (queue, state, lane, priority)
            self._queued_delta[queue] = self._queued_delta.get(queue, 0) + change
        self._delta[key] = self._delta.get(key, 0) + change

    def write(
        self, tid: int, last: int, generation: int, notes: Sequence[Note], now: Instant
    ) -> None:
        """Events of one task; `last` is its count of events with these."""
        n = last - len(notes)
        for type_, data in notes:
            n += 1
            self._event += 1
            final = generation if type_ in FINAL_EVENTS else None
            self._news.append((self._event, tid, n, generation, type_, now, data, final))

    def next_tid(self) -> int:
        self._tid += 1
        return self._tid

    def next_place(self) -> int:
        self._place += 1
        return self._place

    def ready(self, want: Want) -> int:
        key = (want.queue, QUEUED, want.lane, want.priority)
        return self._tally.get(key, 0) + self._delta.get(key, 0)

    def depth(self, queue: str) -> int:
        return self._queued.get(queue, 0) + self._queued_delta.get(queue, 0)

    def waiting(self, queue: str, lane: Lane, priority: int) -> int:
        return self._tally.get((queue, QUEUED, lane, priority), 0)

    def tally(self) -> Iterable[tuple[TallyKey, int]]:
        return self._tally.items()

    def _save(self) -> None:
        if self._dirty:
            kept = [(*key, self._tally[key]) for key in self._dirty if key in self._tally]
            self._db.run_rows("save_tallies", kept)
            # Those of a queue that is used once must not stay for ever, each read every second.
            self._db.run_rows("drop_tallies", list(self._dirty - self._tally.keys()))
            self._dirty.clear()
        given = (self._tid, self._place, self._event)
        if any(map(operator.gt, given, self._reserved)):
            # Written before any of them is used: after a crash counting goes on behind them all.
            self._reserved = (given[0] + AHEAD, given[1] + AHEAD, given[2] + AHEAD)
            self._db.run(QUERIES["save_counters"], self._reserved)

    def _recall(self) -> None:
        self._dirty.clear()
        self._reserved = self._db.run(QUERIES["counters"])[0]
        self._tid, self._place, self._event = self._reserved
        self._tally = {row[:4]: row[4] for row in self._db.run(QUERIES["tallies"])}
        self._queued = {}
        for (queue, state, _, _), count in self._tally.items():
            if state == QUEUED:
                self._queued[queue] = self._queued.get(queue, 0) + count


def _add(counts: dict[K, int], key: K, change: int) -> None:
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)
