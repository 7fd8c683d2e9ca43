"""The TaskStore on Postgres: the shared one, and what many servers on one database need besides."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from onward.core.contract import (
    FRESH,
    Ask,
    Inserted,
    LeaseRenewal,
    LeaseStatus,
    Move,
    Moved,
    Submission,
    Verdict,
    Want,
)
from onward.core.task import (
    FINAL,
    QUEUED,
    Claimed,
    Instant,
    Json,
    Lane,
    Letter,
    Priority,
    TaskId,
)
from onward.ledgers.postgres.batch import Known, PostgresBatch
from onward.ledgers.postgres.bell import PostgresBell
from onward.ledgers.postgres.claims import PostgresRoom, Prepared, locks_of
from onward.ledgers.postgres.database import PostgresDatabase
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.store import SqlStore, Take
from onward.ledgers.sql.turns import lane_bounds, rate_key
from onward.ledgers.sql.write_batch import Plan


class PostgresStore(SqlStore):
    """Publishes what it has done: nothing else reaches the other servers."""

    def __init__(self, database: PostgresDatabase, bell: PostgresBell) -> None:
        self._known = Known()
        super().__init__(database, partial(PostgresBatch, self._known))
        self._bell = bell
        self._freed: frozenset[int] = frozenset()  # the oldest notes, when they were last looked at
        # Where the log was cut at a gap: the last number seen beyond it, and who wrote then.
        self._gap: tuple[int, frozenset[str]] | None = None
        self._settled = 0  # no transaction under way has a number up to this one

    def locks(self, asks: Sequence[Ask]) -> Sequence[str]:
        wants = [want for ask in asks for want in ask.wants]
        queues = {want.queue for want in wants}
        if self._known.ringed.isdisjoint(queues) and not any(want.bounds for want in wants):
            return ()
        return locks_of(queues, {bound for want in wants for bound in want.bounds})

    async def tidy(self) -> None:
        if self._known.rated_at:
            await self.forget_rates(self._known.rated_at)
            self._known.rated_at = 0
        await self._hear_old_notes()

    async def _hear_old_notes(self) -> None:
        """Claims delete the notes that they hear, and a queue may never be claimed from again. Its
        notes are heard as by a claim, under the same locks: something may yet wait there.
        """
        notes = await self._db.read(Step("oldest_freed"))
        old = {queue for n, queue in notes if n in self._freed}
        self._freed = frozenset(n for n, _ in notes)
        if old:
            wants = [Want(queue, Priority.NORMAL, Lane.PRIMARY, 1) for queue in sorted(old)]
            await self.start_at(wants, now=0)

    async def insert(
        self, submissions: Sequence[Submission], asks: Sequence[Ask], *, now: Instant
    ) -> Inserted:
        inserted = await super().insert(submissions, asks, now=now)
        queues = {
            one.task.queue
            for one, receipt in zip(submissions, inserted.receipts, strict=True)
            if receipt.fate is FRESH and one.task.state is QUEUED and not receipt.running
        }
        self._bell.publish(queues, {task.id: False for task in inserted.claimed})
        return inserted

    async def claim(self, asks: Sequence[Ask], *, now: Instant) -> Sequence[Claimed]:
        claimed = await super().claim(asks, now=now)
        self._bell.publish((), {task.id: False for task in claimed})
        return claimed

    async def start_at(self, wants: Sequence[Want], *, now: Instant) -> Mapping[str, Instant]:
        """A rate of a whole queue is read without the locks of a claim, which other servers want:
        its instant only ever moves on, and nothing of the queue starts before it.
        """
        found = await self._start_at_by_total(wants, now)
        others = [want for want in wants if want.queue not in found]
        return {**found, **await super().start_at(others, now=now)} if others else found

    async def _start_at_by_total(self, wants: Sequence[Want], now: Instant) -> dict[str, Instant]:
        rates = {
            (want.queue, bound)
            for want in wants
            for bound in lane_bounds(want.bounds, want.queue).total
            if bound.rate is not None and bound.most is None
        }
        if not rates:
            return {}
        columns = zip(*{rate_key(bound, "") for _, bound in rates}, strict=True)
        rows = await self._db.read(Step("paid", [list(column) for column in columns]))
        prepared = Prepared()
        prepared.paid |= {(name, each, partition): at for name, each, partition, at in rows}
        room = PostgresRoom(now, prepared=prepared)
        found: dict[str, Instant] = {}
        for queue, bound in rates:
            waits = room.wait(bound, "")
            if waits is not None and waits.until is not None:
                found[queue] = max(waits.until, found.get(queue, waits.until))
        return found

    async def extend(
        self, renewals: Sequence[LeaseRenewal], *, now: Instant
    ) -> Sequence[LeaseStatus]:
        statuses = await super().extend(renewals, now=now)
        self._bell.publish((), {one.task: False for one in renewals if one.notes})
        return statuses

    async def apply(
        self,
        moves: Sequence[Move],
        asks: Sequence[Ask] = (),
        *,
        now: Instant,
        frees: Collection[str] = (),
    ) -> Moved:
        moved = await super().apply(moves, asks, now=now)
        done = [
            move
            for move, verdict in zip(moves, moved.verdicts, strict=True)
            if verdict is Verdict.APPLIED
        ]
        done += [move.answer for move in done if move.answer and move.answer.task in moved.answered]
        tasks = {task.id: False for task in moved.claimed}
        tasks |= {move.task: move.to in FINAL for move in done}
        self._bell.publish(moved.awake.union(frees) if done else moved.awake, tasks)
        return moved

    async def post(self, letters: Sequence[Letter], *, now: Instant) -> Moved:
        moved = await super().post(letters, now=now)
        self._bell.publish(moved.awake, {letter.to: False for letter in letters})
        return moved

    async def _log(self, after: int, limit: int, take: Take) -> list[Row]:
        """In the order of numbers, which a transaction takes before it is committed. One that is
        still under way leaves a gap; what is beyond waits for it, or a reader would pass it by.
        """
        if (gap := self._gap) is not None:
            last, writers = gap
            if writers.isdisjoint(await self._writers()):
                self._settled = max(self._settled, last)
                if self._gap is gap:  # another reader may have noted the next one meanwhile
                    self._gap = None
        settled = self._settled  # what is settled from here on may be missing in the rows
        rows = await super()._log(after, limit, list)
        sure = [row for row in rows if row[0] <= settled]
        expected = max(after, settled) + 1
        for row in rows[len(sure) :]:
            if row[0] != expected:
                break
            sure.append(row)
            expected += 1
        if len(sure) < len(rows) and self._gap is None:
            last, writers = rows[-1][0], await self._writers()
            if not writers:  # they were committed this moment, or rolled back: it stays a gap
                self._settled = max(self._settled, last)
                return take(iter(await self._reread(after, last, limit)))
            self._gap = (last, writers)
        return take(iter(sure))

    async def _reread(self, after: int, last: int, limit: int) -> list[Row]:
        return [row for row in await super()._log(after, limit, list) if row[0] <= last]

    async def _writers(self) -> frozenset[str]:
        return frozenset(name for (name,) in await self._db.read(Step("writers")))


class PostgresEnqueued:
    """What callers have committed with transactions of their own: a table that servers empty."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._db = database

    async def read(
        self, limit: int, most_bytes: int, *, after: TaskId, without: Sequence[TaskId]
    ) -> Sequence[tuple[TaskId, Json | None]]:
        step = Step("read_enqueued", (after, limit, most_bytes), values=without)
        return [(id, body) for id, body in await self._db.read(step, far=True)]

    async def forget(self, ids: Sequence[TaskId]) -> None:
        def plan() -> Plan[None]:
            yield Step("forget_enqueued", values=ids)

        await self._db.write(plan)
