"""The ledger as a dict: what the contract says of each call, and nothing of how it is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onward.core.contract import Ask, Fate, LeaseRenewal, LeaseStatus, Move, Submission, Verdict
from onward.core.limits import Bound, Micros
from onward.core.machine import NEVER
from onward.core.moves import earliest
from onward.core.task import FINAL, Instant, Lane, Letter, State, Task

AHEAD = 10**12


class Row:
    def __init__(self, task: Task, number: int) -> None:
        self.task = task
        self.number = number
        self.place = number
        self.letters: list[str] = []

    def set(self, *, events: int = 0, rev: int = 1, **fields: Any) -> None:
        self.task = msgspec.structs.replace(
            self.task, rev=self.task.rev + rev, events=self.task.events + events, **fields
        )


Line = tuple[str, int, str, str]  # queue, priority, lane, partition


class Model:
    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self._number = 0
        self._paid: dict[tuple[str, str], Micros] = {}  # by bound and partition
        self._leads: Counter[tuple[Line, Line]] = Counter()  # by how many turns, while both wait

    def _next(self) -> int:
        self._number += 1
        return self._number

    def ready(self, queue: str) -> list[Row]:
        """In the order of an_ask: by priority, new work before retries, then by place."""
        rows = [
            row
            for row in self.rows.values()
            if row.task.queue == queue and row.task.state is State.QUEUED
        ]
        return sorted(rows, key=lambda r: (r.task.priority, r.task.lane is Lane.RETRY, r.place))

    def insert(self, item: Submission, asks: Sequence[Ask], now: Instant) -> tuple[Fate, bool]:
        queued = item.task.state is State.QUEUED
        ready = len(self.ready(item.task.queue))
        plain = not item.task.partition and not any(ask.wants[0].bounds for ask in asks)
        running = bool(asks) and queued and not ready and plain
        if item.cap is not None and not running and ready >= item.cap:
            return Fate.FULL, False
        self.rows[item.task.id] = row = Row(item.task, self._next())
        if running:
            self._start(row, asks[0], now)
        return Fate.FRESH, running

    def claim(
        self, asks: Sequence[Ask], now: Instant, found: Sequence[str] | None = None
    ) -> list[str]:
        """Of a queue with partitions or bounds: what the ledger has found, if it may be so."""
        claimed: list[str] = []
        for ask in asks:
            ready = self.ready(ask.wants[0].queue)
            if ask.wants[0].bounds or any(row.task.partition for row in ready):
                assert found is not None
                self._check_claim(ask, found, ready, now)
                claimed += found
                continue
            for row in ready[: ask.limit]:
                self._start(row, ask, now)
                claimed.append(row.task.id)
        return claimed

    def _check_claim(
        self, ask: Ask, found: Sequence[str], ready: Sequence[Row], now: Instant
    ) -> None:
        bounds = ask.wants[0].bounds
        assert len(set(found)) == len(found) <= ask.limit
        lines: dict[Line, list[Row]] = {}
        for row in ready:
            lines.setdefault(line_of(row.task), []).append(row)
        came = Counter(line_of(self.rows[id].task) for id in found)
        self._start_all(ask, [self.rows[id] for id in found], now)
        assert all(self.rows[id] in ready for id in found)
        left: dict[Line, list[Row]] = {}
        for line, rows in lines.items():
            # Those are passed over whose type alone waits: it still does after this claim.
            may = [
                row
                for row in rows
                if row.task.id in found or not self._waits(row.task, bounds, now, typed=True)
            ]
            heads = {row.task.id for row in may[: came[line]]}
            assert heads <= set(found), "first in, first out"
            if may[came[line] :]:
                left[line] = may[came[line] :]
        might = [line for line in left if not self._waits(left[line][0].task, bounds, now)]
        if len(found) < ask.limit:
            assert not might, "nothing is left that may start"
        first = min(((line[1], line[2] == Lane.RETRY) for line in might), default=(9, True))
        last = max(((line[1], line[2] == Lane.RETRY) for line in came), default=first)
        assert last <= first, "the first lane first"
        if not bounds:
            self._check_turns(list(lines), came, left)

    def _start_all(self, ask: Ask, rows: Sequence[Row], now: Instant) -> None:
        bounds = ask.wants[0].bounds
        before = {bound: self._uses(bound) for bound in bounds}
        for row in rows:
            self._start(row, ask, now)
            for bound in bounds:
                self._pay(bound, row.task, now)
        for bound in bounds:
            for partition, used in self._uses(bound).items():
                if bound.most is not None and used > before[bound][partition]:
                    assert used <= bound.most, "no more than the bound run at once"

    def _check_turns(
        self, lines: Sequence[Line], came: Counter[Line], left: Mapping[Line, object]
    ) -> None:
        for one in lines:
            for other in lines:
                if one[:3] == other[:3] and one != other:
                    self._leads[one, other] += came[one] - came[other]
                    if other in left:
                        assert self._leads[one, other] <= 1, "partitions take turns"
        for line in lines:
            if line not in left:
                self._leave(line)

    def _leave(self, line: Line) -> None:
        """Nothing is queued there any more: when something is, it begins anew."""
        for pair in [pair for pair in self._leads if line in pair]:
            del self._leads[pair]

    def _uses(self, bound: Bound) -> Counter[str]:
        return Counter(
            row.task.partition if bound.each else ""
            for row in self.rows.values()
            if row.task.occupies and bound.covers(row.task.queue, row.task.type)
        )

    def used(self, bound: Bound, partition: str) -> int:
        return self._uses(bound)[partition if bound.each else ""]

    def _pay(self, bound: Bound, task: Task, now: Instant) -> None:
        if bound.rate is not None and bound.covers(task.queue, task.type):
            key = (bound.name, task.partition if bound.each else "")
            paid_at = self._paid.get(key, 0)
            assert bound.rate.start_at(paid_at, 1) <= now * 1_000, "not before its rate lets it"
            self._paid[key] = bound.rate.paid_at(paid_at, 1, now)

    def _waits(
        self, task: Task, bounds: Sequence[Bound], now: Instant, *, typed: bool = False
    ) -> bool:
        """For a bound of its whole queue, or for one of its type alone."""
        for bound in bounds:
            if typed is (task.queue in bound.queues) or not bound.covers(task.queue, task.type):
                continue
            key = (bound.name, task.partition if bound.each else "")
            if bound.most is not None and self.used(bound, task.partition) >= bound.most:
                return True
            rate = bound.rate
            if rate is not None and rate.start_at(self._paid.get(key, 0), 1) > now * 1_000:
                return True
        return False

    def _start(self, row: Row, ask: Ask, now: Instant) -> None:
        task = row.task
        lease = None if ask.lease_ms is None else now + ask.lease_ms
        offered = lease is None
        attempt_by = None if offered or task.attempt_ms is None else now + task.attempt_ms
        row.set(
            events=1,
            state=State.RUNNING,
            fence=task.fence + 1,
            attempt=task.attempt + 1,
            worker=ask.worker,
            started_at=now,
            lease_until=lease,
            attempt_by=attempt_by,
            due_at=earliest(lease, attempt_by, task.expires_at, NEVER),
        )

    def extend(self, hold: LeaseRenewal) -> LeaseStatus:
        row = self.rows.get(hold.task)
        if row is None or row.task.state is not State.RUNNING or row.task.fence != hold.fence:
            return LeaseStatus.LOST
        task = row.task
        due_at = earliest(hold.until, task.attempt_by, task.expires_at, task.cancel_by)
        row.set(rev=0, events=len(hold.notes), lease_until=hold.until, due_at=due_at)
        return LeaseStatus.HELD if task.cancel_by is None else LeaseStatus.CANCEL

    def apply(
        self, moves: Sequence[Move], now: Instant, asks: Sequence[Ask] = ()
    ) -> tuple[list[Verdict], list[str]]:
        """Verdicts, and who went into the free slots: there is one at most, with one slot."""
        claimed = self.claim(asks, now)
        free = [] if claimed else list(asks)
        return self._apply(moves, free, claimed, now), claimed

    def _apply(
        self, moves: Sequence[Move], free: list[Ask], claimed: list[str], now: Instant
    ) -> list[Verdict]:
        """Everybody's own change first, then what it brings with it, then answers and letters."""
        verdicts = [self._change(move) for move in moves]
        applied = [m for m, v in zip(moves, verdicts, strict=True) if v is Verdict.APPLIED]
        for move in applied:
            for child in move.spawn:
                _, running = self.insert(child, free, now)
                if running:
                    free.clear()
                    claimed.append(child.task.id)
            if move.seen is not None:
                row = self.rows[move.task]
                del row.letters[: move.seen]
                self._wake(row, now)
        for move in applied:
            answers = [] if move.answer is None else [move.answer]
            if self._apply(answers, free, claimed, now) != [Verdict.APPLIED]:
                for letter in move.letters:
                    self.post(letter, now)
        return verdicts

    def _change(self, move: Move) -> Verdict:
        row = self.rows.get(move.task)
        if row is None:
            return Verdict.GONE
        task = row.task
        if task.fence != move.fence:
            return Verdict.STALE
        if (task.state, task.rev) != (move.expect, move.rev):
            return Verdict.MOVED
        if move.due_by is not None and (task.due_at is None or task.due_at > move.due_by):
            return Verdict.EARLY
        changes: dict[str, Any] = dict(move.changes)
        if "overdue" in changes:
            changes["overdue"] = bool(changes["overdue"])
        row.set(state=move.to, due_at=move.due_at, events=len(move.events), **changes)
        line = line_of(task)
        if all(line_of(other.task) != line for other in self.ready(task.queue)):
            self._leave(line)
        if move.to is State.QUEUED and not move.front:
            row.place = self._next() - (AHEAD if move.ahead else 0)
        return Verdict.APPLIED

    def post(self, letter: Letter, now: Instant) -> Verdict:
        row = self.rows.get(letter.to)
        if row is None or row.task.state in FINAL:
            return Verdict.GONE
        row.letters.append(letter.body)
        self._wake(row, now)
        return Verdict.APPLIED

    def _wake(self, row: Row, now: Instant) -> None:
        if row.task.state is State.WAITING and row.task.waiting_for != "approval" and row.letters:
            due_at = row.task.expires_at
            row.set(state=State.QUEUED, events=1, due_at=due_at, waiting_for=None, queued_at=now)
            row.place = self._next()

    def due(self, now: Instant) -> list[str]:
        return [
            row.task.id
            for row in self.rows.values()
            if row.task.due_at is not None and row.task.due_at <= now
        ]

    def purge(self, ids: Sequence[str]) -> int:
        over = [id for id in ids if id in self.rows and self.rows[id].task.state in FINAL]
        for id in over:
            del self.rows[id]
        return len(over)

    def positions(self) -> dict[str, int]:
        """A lane does not wait for the other one: how they share is the claimant's business."""
        found: dict[str, int] = {}
        for queue in {row.task.queue for row in self.rows.values()}:
            ready = self.ready(queue)
            for row in ready:
                before = [
                    other
                    for other in ready
                    if other.task.partition == row.task.partition
                    and (
                        other.task.priority < row.task.priority
                        or (line_of(other.task) == line_of(row.task) and other.place < row.place)
                    )
                ]
                found[row.task.id] = len(before) + 1
        return found


def line_of(task: Task) -> Line:
    return (task.queue, task.priority, task.lane, task.partition)
