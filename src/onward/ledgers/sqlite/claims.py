"""A claim from a lane with partitions or bounds: two statements for as many turns as are asked for.

How many are queued in each partition is known, and what is used up of each bound: so what is read
are the heads that may start, and those of other partitions never.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onward.core.contract import Want
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.turns import Head, LaneChoice, Waiting, WaitingFor, choose, lane_bounds
from onward.ledgers.sql.write_batch import LaneKey, Plan
from onward.ledgers.sqlite.rings import Ring, Rings, SqliteRoom


class RingClaim:
    def __init__(self, rings: Rings, room: SqliteRoom) -> None:
        self._rings = rings
        self._room = room

    def take(
        self, want: Want, lane: LaneKey, limit: int, queued: int, claim: tuple[object, ...]
    ) -> Plan[list[Row]]:
        """`queued`: how many are, in this lane. `claim`: worker and clocks of those claimed."""
        rows: list[Row] = []
        turn = _Turn((self._rings, self._room), want, lane, queued)
        while len(rows) < limit:
            chosen = yield from turn.next(limit - len(rows))
            if chosen is None:
                break
            tids = [head.tid for _, head in chosen.heads]
            found = (yield Step("claim_these", claim, values=tids)) if tids else []
            by_tid = {row[0]: row for row in found}
            rows += [by_tid[tid] for tid in tids]
            turn.taken(chosen)
            if chosen.stopped is not None:
                break
        return rows

    def look(self, want: Want, lane: LaneKey, queued: int, waiting: Waiting) -> Plan[None]:
        """What the next of this lane waits for."""
        turn = _Turn((self._rings, self._room), want, lane, queued, waiting)
        while (chosen := (yield from turn.next(1, start=False))) is not None:
            if chosen.heads:
                waiting.ready(want.queue)
                return
            turn.taken(chosen)
            if chosen.stopped is not None:
                waiting.add(want.queue, chosen.stopped)
                return
        ring = self._rings.get(lane)
        if ring is not None:
            waiting.add(want.queue, ring.first_back())


class _Turn:
    """One lane's turn in a claim."""

    def __init__(
        self,
        of: tuple[Rings, SqliteRoom],
        want: Want,
        lane: LaneKey,
        queued: int,
        waiting: Waiting | None = None,
    ) -> None:
        self._rings, self._room = of
        self._want, self._lane = want, lane
        self._waiting = waiting or Waiting()
        self._bounds = lane_bounds(want.bounds, want.queue)
        self._full = tuple(
            bound
            for bound in self._bounds.typed
            if not bound.each and self._room.wait(bound, "") is not None
        )
        self._done: set[str] = set()  # nothing more of these, in this claim
        ring = self._rings.get(lane)
        self._plain = queued - (0 if ring is None else ring.named)
        if ring is not None:
            ring.under(want.bounds, self._full, self._room.now)

    def next(self, limit: int, *, start: bool = True) -> Plan[LaneChoice | None]:
        """Those whose turn it is. None: nothing is left that may start."""
        for bound in self._bounds.total:
            waits = self._room.wait(bound, "")
            if waits is not None:
                self._waiting.add(self._want.queue, waits)
                return None
        quotas = self._quotas(limit)
        if not quotas:
            return None
        passed = {partition: self._passed(partition) for partition in quotas}
        rows = [(*self._lane, partition, passed[partition]) for partition in quotas]
        depth = _depth(list(quotas.values()), limit)
        lines: dict[str, list[Head]] = {partition: [] for partition in quotas}
        for partition, *head in (yield Step("heads", rows=rows, changes=str(depth))):
            lines[partition].append(Head(*head))
        chosen = choose(lines, limit, self._room, self._want.queue, self._bounds, start=start)
        if chosen.stopped is None:
            self._left_out(lines, passed, chosen)
        return chosen

    def _left_out(
        self, lines: Mapping[str, Sequence[Head]], passed: Mapping[str, str], chosen: LaneChoice
    ) -> None:
        """What becomes of those of which nothing was chosen."""
        came = set(chosen.partitions)
        for partition, line in lines.items():
            if partition in chosen.waits or partition in came:
                continue
            if line and partition not in chosen.passed:
                continue  # its turn did not come
            if passed[partition] or line:
                chosen.waits[partition] = self._first_typed(partition, chosen)
            else:
                self._done.add(partition)

    def _passed(self, partition: str) -> str:
        return self._room.held_up(partition, self._bounds) if self._bounds.typed else ""

    def _first_typed(self, partition: str, chosen: LaneChoice) -> WaitingFor:
        waits = [
            *chosen.passed.get(partition, ()),
            *(self._room.wait(bound, partition) for bound in self._bounds.typed),
        ]
        until = [one.until for one in waits if one is not None and one.until is not None]
        return WaitingFor(min(until, default=None))

    def _quotas(self, limit: int) -> Mapping[str, int]:
        """Partitions with something queued, by turn; each with how many may start at the most."""
        ring = self._rings.get(self._lane)
        found: dict[str, int] = {}
        wait: list[tuple[str, WaitingFor]] = []
        for partition in self._members(ring):
            if partition in self._done:
                continue
            most = self._room.most_of(partition, self._bounds)
            if isinstance(most, WaitingFor):
                wait.append((partition, most))
                continue
            queued = self._plain if ring is None or not partition else ring.counts[partition]
            found[partition] = min(queued, most)
            if len(found) == limit:
                break
        for partition, waits in wait:
            self._wait(ring, partition, waits)
        return found

    def _members(self, ring: Ring | None) -> Iterable[str]:
        if ring is None:
            return ("",) if self._plain > 0 else ()
        if self._plain > 0:
            ring.turns.setdefault("", None)
        else:
            ring.turns.pop("", None)
        return ring.turns

    def _wait(
        self, ring: Ring | None, partition: str, waits: WaitingFor, typed: bool = False
    ) -> None:
        if partition and ring is not None:
            if partition in ring.turns:
                self._rings.put_out(self._lane, ring, partition, waits, typed=typed)
            return
        self._done.add(partition)
        self._waiting.add(self._want.queue, waits)

    def taken(self, chosen: LaneChoice) -> None:
        ring = self._rings.get(self._lane)
        for partition, _ in chosen.heads:
            if partition:
                self._rings.add(self._lane, partition, -1)
            else:
                self._plain -= 1
            if ring is not None:
                ring.served(partition)
        for partition, waits in chosen.waits.items():
            self._wait(ring, partition, waits, typed=bool(self._bounds.typed))


def _depth(most: Sequence[int], limit: int) -> int:
    """So many heads of each make up the limit, or are all. One of few: the statement has it."""
    level, left, rest = 0, limit, sorted(most)
    for at, count in enumerate(rest):
        share = -(-left // (len(rest) - at))
        if count >= share:
            level = share
            break
        level, left = count, left - count
    return 1 << (max(level, 1) - 1).bit_length()
