"""One write on its way into Postgres: rows are numbered by sequences, counts are changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from onward.core.contract import Ask, Move, Want
from onward.core.limits import Bound
from onward.core.task import QUEUED, RUNNING, Instant, State, Task
from onward.ledgers.codec import FIELDS, to_row
from onward.ledgers.postgres.claims import PostgresRoom, Prepared, RingClaims
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.schema import without_empty
from onward.ledgers.sql.turns import Room, Waiting
from onward.ledgers.sql.write_batch import LaneKey, Plan, WriteBatch

EVENTS = "insert_events"  # returns the number of the transaction
FIRST = -(2**62)  # before every place
RESCAN_MS = 250


class Heads:
    """Where the next claim from a lane starts, if the last one found all that it asked for.

    Claimed tasks leave dead entries in the index until a vacuum, and a claim from the beginning of
    a lane would walk past all of them. A task that another server hands back, or puts first, lies
    before that place as well: so a claim starts at the beginning every RESCAN_MS, and whenever it
    finds less than it asked for.
    """

    def __init__(self) -> None:
        self._places: dict[LaneKey, tuple[int, Instant]] = {}  # and when all of it was looked at

    def of(self, lane: LaneKey, now: Instant) -> int:
        place, at = self._places.get(lane, (FIRST, now))
        return place if now < at + RESCAN_MS else FIRST

    def note(self, lane: LaneKey, start: int, place: int, now: Instant) -> None:
        """A claim that began at `start` got as far as `place`."""
        at = now if start == FIRST else self._places.get(lane, (FIRST, now))[1]
        self._places[lane] = (place, at)

    def forget(self, queues: Collection[str]) -> None:
        for lane in [lane for lane in self._places if lane[0] in queues]:
            del self._places[lane]


class Known:
    """What a server remembers of earlier claims; it may have changed since."""

    def __init__(self) -> None:
        self.heads = Heads()
        self.ringed: set[str] = set()  # queues with partitions
        self.rated_at: Instant = 0  # when a rate was last used; 0: not since its last tidying up


class PostgresBatch(WriteBatch):
    def __init__(self, known: Known, asks: Sequence[Ask], now: Instant) -> None:
        super().__init__(asks, now)
        self._known = known
        self._prepared = Prepared()
        self._joined: dict[tuple[str, int, str, str], None] = {}  # lanes and partitions
        self._freed: dict[tuple[str, str, str], None] = {}  # queues, types and partitions
        self._depths: dict[str, int] = {}  # without what this batch changes

    def read_depths(self, capped: Collection[str], others: Collection[str]) -> Plan[None]:
        if capped:
            # Else two servers could each take the last place of a queue.
            yield from self.lock([f"cap {queue}" for queue in capped])
        self._depths |= dict((yield Step("depths", values=[*capped, *others])))

    def lock(self, names: Sequence[str]) -> Plan[None]:
        yield Step("lock", (sorted(names),))

    def depth(self, queue: str) -> int:
        return self._depths.get(queue, 0) + self.queued.get(queue, 0)

    def take(self, ask: Ask) -> Plan[Sequence[tuple[Want, Sequence[Row]]]]:
        leased = ask.lease_ms is not None
        clocks = (self.now, self.now + (ask.lease_ms or 0)) if leased else (None, None)
        claim = (ask.worker, self.now, *clocks)
        queues = {want.queue for want in ask.wants}
        if self._known.ringed.isdisjoint(queues) and not any(want.bounds for want in ask.wants):
            rows = yield from self._plainly(ask, claim)
            if rows is not None:
                return rows
        claims = RingClaims(ask.wants, self.now, self._by_queue, claim, self._prepared)
        found = yield from claims.take(ask.limit)
        self._known.ringed -= queues - claims.ringed
        self._known.ringed |= claims.ringed
        if claims.rated:
            self._known.rated_at = self.now
        return found

    def _plainly(
        self, ask: Ask, claim: tuple[object, ...]
    ) -> Plan[Sequence[tuple[Want, Sequence[Row]]] | None]:
        """None: a queue of these has partitions, and nothing was claimed."""
        lanes = [(want.queue, int(want.priority), str(want.lane)) for want in ask.wants]
        starts = [self._known.heads.of(lane, self.now) for lane in lanes]
        columns = (*zip(*lanes, strict=True), [want.limit for want in ask.wants])
        rows = yield Step("claim", (*columns, starts, *claim, ask.limit))
        if rows and rows[0][0] is None:
            return None
        if len(rows) < ask.limit:
            self._known.heads.forget({want.queue for want in ask.wants})
            if any(start > FIRST for start in starts):
                left = ask.limit - len(rows)
                passed = yield Step("claim", (*columns, [FIRST] * len(lanes), *claim, left))
                # A partition that came meanwhile: the next claim sees it.
                rows += [row for row in passed if row[0] is not None]
        by_want: dict[int, list[Row]] = {}
        for nth, *claimed in sorted(rows, key=lambda row: (row[0], row[4])):
            by_want.setdefault(nth - 1, []).append(tuple(claimed))
        if len(rows) == ask.limit:
            for nth, claimed in by_want.items():
                self._known.heads.note(lanes[nth], starts[nth], claimed[-1][3], self.now)
        return [(ask.wants[nth], claimed) for nth, claimed in by_want.items()]

    # Turns and bounds.

    def look(self, wants: Sequence[Want], waiting: Waiting) -> Plan[None]:
        if wants:
            yield from RingClaims(wants, self.now, ()).look(waiting)

    def room(self, bounds: Sequence[Bound], partition: str) -> Plan[Room]:
        room = PostgresRoom(self.now)
        yield from room.read(((bound, partition) for bound in bounds), whole=True)
        return room

    def came(self, task: Task) -> None:
        if task.state is QUEUED:
            self.joined((task.queue, int(task.priority), str(task.lane)), task.partition)

    def joined(self, lane: LaneKey, partition: str) -> None:
        self._joined[*lane, partition] = None

    def went(self, move: Move, lane: LaneKey, type_: str, partition: str, *, again: bool) -> None:
        if move.expect is QUEUED or move.to is QUEUED:
            self.joined(lane, partition)
        if move.expect is RUNNING or (move.expect is State.SCHEDULED and again):
            self._freed[lane[0], type_, partition] = None

    def forgot(self, rates: Sequence[Row]) -> None:
        pass  # not remembered here

    def new_tasks(self, tasks: Sequence[Task]) -> Plan[Sequence[int]]:
        fields, rows = without_empty(FIELDS, [to_row(task) for task in tasks])
        tids = yield Step("insert_tasks", rows=rows, fields=fields)
        return [tid for (tid,) in tids]

    def places(self, count: int) -> Iterable[int]:
        return [0] * count  # after the next of the sequence

    def close(self) -> Plan[None]:
        if self.awake:  # what was handed back has a place before others
            self._known.heads.forget(self.awake)
        changes = [(*key, change) for key, change in self.changes.items() if change]
        if self._joined:
            yield Step("note_joined", rows=list(self._joined))
        if self._freed:
            yield Step("note_freed", rows=list(self._freed))
        counts = Step("add_counts", rows=changes)
        if self.events:
            yield Step(EVENTS, rows=self.events, also=(counts,) if changes else ())
        elif changes:
            yield counts
