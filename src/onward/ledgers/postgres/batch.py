"""One write on its way into Postgres: rows are numbered by sequences, counts are changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from onward.core.contract import Ask, Want
from onward.core.task import Instant, Task
from onward.ledgers.codec import FIELDS, to_row
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.schema import without_empty
from onward.ledgers.sql.write_batch import Plan, WriteBatch

EVENTS = "insert_events"  # returns the number of the transaction


class PostgresBatch(WriteBatch):
    def __init__(self, asks: Sequence[Ask], now: Instant) -> None:
        super().__init__(asks, now)
        self._depths: dict[str, int] = {}  # without what this batch changes

    def read_depths(self, capped: Collection[str], others: Collection[str]) -> Plan[None]:
        if capped:
            yield Step("lock_queues", (sorted(capped),))
        self._depths |= dict((yield Step("depths", values=[*capped, *others])))

    def depth(self, queue: str) -> int:
        return self._depths.get(queue, 0) + self.queued.get(queue, 0)

    def take(self, ask: Ask) -> Plan[Sequence[tuple[Want, Sequence[Row]]]]:
        leased = ask.lease_ms is not None
        clocks = (self.now, self.now + (ask.lease_ms or 0)) if leased else (None, None)
        lanes = (
            [want.queue for want in ask.wants],
            [int(want.priority) for want in ask.wants],
            [str(want.lane) for want in ask.wants],
            [want.limit for want in ask.wants],
        )
        rows = yield Step("claim", (*lanes, ask.worker, self.now, *clocks, ask.limit))
        by_want: dict[int, list[Row]] = {}
        for nth, *claimed in sorted(rows, key=lambda row: (row[0], row[4])):
            by_want.setdefault(nth, []).append(tuple(claimed))
        return [(ask.wants[nth - 1], claimed) for nth, claimed in by_want.items()]

    def new_tasks(self, tasks: Sequence[Task]) -> Plan[Sequence[int]]:
        fields, rows = without_empty(FIELDS, [to_row(task) for task in tasks])
        tids = yield Step("insert_tasks", rows=rows, fields=fields)
        return [tid for (tid,) in tids]

    def places(self, count: int) -> Iterable[int]:
        return [0] * count  # after the next of the sequence

    def close(self) -> Plan[None]:
        changes = [(*key, change) for key, change in self.changes.items() if change]
        if changes:
            yield Step("add_counts", rows=changes)
        if self.events:
            yield Step(EVENTS, rows=self.events)
