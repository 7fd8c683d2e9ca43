"""The TaskStore in SQL: writes are plans, driven by the database; reads are statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from onward.core.approval import Status
from onward.core.contract import (
    LOG_BYTES,
    PAGE_BYTES,
    POSTPONE_MS,
    Ask,
    Inserted,
    LeaseRenewal,
    LeaseStatus,
    Move,
    Moved,
    OpenApproval,
    Page,
    Query,
    Submission,
    Verdict,
    Want,
    Without,
)
from onward.core.limits import Bound, Usage
from onward.core.task import (
    STATES,
    Claimed,
    Event,
    Instant,
    Lane,
    Letter,
    State,
    Task,
    TaskId,
)
from onward.ledgers.codec import LANES, Cut, RowReader
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.plans import MakeBatch, Plans
from onward.ledgers.sql.write_batch import Plan, TallyKey

T = TypeVar("T")

AFTER_ALL = 2**62  # later than any place
FAR = 1_000  # positions beyond are not counted
READ = 256  # tasks in one statement

Take = Callable[[Iterator[Row]], list[Row]]  # may stop before the last row

# An index on some rows only is used if the query says in the index's own words that it means them.
TROUBLE = frozenset({State.SCHEDULED, State.WAITING, State.FAILED, State.DEAD, State.CANCELED})
TROUBLED = "state <> 'queued' AND state <> 'running' AND state <> 'succeeded'"
OFFERED = "state = 'running' AND lease_until IS NULL"


class SecondFinal(Exception):
    """A generation's second final event: the unique index holds us to one."""


class Transactions(Protocol):
    async def write(
        self, plan: Callable[[], Plan[T]], *, intake: bool = False, locks: Sequence[str] = ()
    ) -> T:
        """Carry it out in one transaction; returns when that is committed, for good.

        `intake`: it touches new and queued tasks alone. `locks`: those that it will take.
        """
        ...

    async def read(self, step: Step, take: Take = list, *, far: bool = False) -> list[Row]:
        """What is committed; `far`: it may be large."""
        ...


class Database(Transactions, Protocol):
    async def kept(self) -> None:
        """Until all that can be read by now would survive a power cut."""
        ...

    async def tally(self) -> Collection[tuple[TallyKey, int]]: ...


class SqlStore:
    def __init__(self, database: Database, batch: MakeBatch) -> None:
        self._db = database
        self._plans = Plans(batch)
        self._reading = RowReader()

    def locks(self, asks: Sequence[Ask]) -> Sequence[str]:
        """What is to be locked to fill these: nothing, where only one server writes."""
        return ()

    async def forget_rates(self, now: Instant) -> None:
        """Those that make no difference any more."""
        await self._db.write(lambda: self._plans.forget_rates(now), intake=True)

    async def insert(
        self, submissions: Sequence[Submission], asks: Sequence[Ask], *, now: Instant
    ) -> Inserted:
        return await self._db.write(
            lambda: self._plans.insert(submissions, asks, now), intake=True, locks=self.locks(asks)
        )

    async def claim(self, asks: Sequence[Ask], *, now: Instant) -> Sequence[Claimed]:
        return await self._db.write(
            lambda: self._plans.claim(asks, now), intake=True, locks=self.locks(asks)
        )

    async def start_at(self, wants: Sequence[Want], *, now: Instant) -> Mapping[str, Instant]:
        locks = self.locks([Ask("", 0, tuple(wants))])
        return await self._db.write(
            lambda: self._plans.start_at(wants, now), intake=True, locks=locks
        )

    async def usage(
        self, bounds: Sequence[Bound], partition: str, *, now: Instant
    ) -> Sequence[Usage]:
        return await self._db.write(lambda: self._plans.usage(bounds, partition, now), intake=True)

    async def extend(
        self, renewals: Sequence[LeaseRenewal], *, now: Instant
    ) -> Sequence[LeaseStatus]:
        return await self._db.write(lambda: self._plans.extend(renewals, now))

    async def apply(
        self,
        moves: Sequence[Move],
        asks: Sequence[Ask] = (),
        *,
        now: Instant,
        frees: Collection[str] = (),
    ) -> Moved:
        try:
            return await self._db.write(
                lambda: self._plans.apply(moves, asks, now), locks=self.locks(asks)
            )
        except SecondFinal:
            if len(moves) > 1:
                raise  # tried again in halves, down to the one that it is
            return Moved([Verdict.REFUSED], frozenset())

    async def post(self, letters: Sequence[Letter], *, now: Instant) -> Moved:
        return await self._db.write(lambda: self._plans.post(letters, now))

    async def purge(
        self, ids: Sequence[TaskId], *, now: Instant, postpone_ms: int = POSTPONE_MS
    ) -> int:
        return await self._db.write(lambda: self._plans.purge(ids, now, postpone_ms))

    # Looking.

    async def due(
        self,
        *,
        now: Instant,
        limit: int,
        without: Collection[TaskId] = (),
        most_bytes: int = PAGE_BYTES,
    ) -> Sequence[Task]:
        taken = Cut(limit, most_bytes)
        rows = await self._db.read(
            Step("due", (now, limit + len(without))),
            lambda rows: taken(row for row in rows if row[0] not in without),
        )
        found, odd = self._reading.tasks(rows)
        if odd:
            # Left where they are they would come first in every sweep, before all the others.
            await self._db.write(lambda: self._plans.set_aside(odd, now + POSTPONE_MS))
        return found

    async def get(self, ids: Sequence[TaskId]) -> Sequence[Task | None]:
        found: dict[TaskId, Task] = {}
        for at in range(0, len(ids), READ):
            rows = await self._db.read(Step("get", values=ids[at : at + READ]))
            found.update((task.id, task) for task in self._reading.tasks(rows)[0])
        await self._db.kept()
        return [found.get(id) for id in ids]

    look = get  # only a sealed store tells them apart

    async def find(self, query: Query) -> Page[Task]:
        where, args = matching(query)
        taken = Cut(query.limit, query.most_bytes)
        step = Step("find", (query.limit + 1, *args), where=where)
        rows = await self._db.read(step, taken, far=True)
        await self._db.kept()
        return Page(self._reading.tasks(rows)[0], str(rows[-1][-1]) if taken.more else None)

    async def position(self, task: TaskId) -> int | None:
        found = await self._db.read(Step("place_of", (task,)))
        if not found:
            return None
        queue, priority, lane, partition, place = found[0]
        lanes = [(priority, lane, place)] + [
            (higher, lane_, AFTER_ALL)
            for (queue_, state, lane_, higher), count in await self._db.tally()
            if queue_ == queue and state == State.QUEUED and higher < priority and count
        ]
        before = 0
        for *key, up_to in lanes:
            step = Step("ahead", (queue, *key, partition, up_to, FAR))
            ((ahead,),) = await self._db.read(step)
            before += ahead
        return int(min(before, FAR) + 1)

    async def counts(self) -> Mapping[tuple[str, Lane, State], int]:
        counts: Counter[tuple[str, Lane, State]] = Counter()
        for (queue, state, lane, _), count in await self._db.tally():
            if state not in STATES:
                continue  # a newer version's
            counts[queue, LANES.get(lane, Lane.PRIMARY), STATES[state]] += count
        for queue, lane, count in await self._db.read(Step("offered")):
            counts[queue, Lane.PRIMARY, State.RUNNING] -= count
            counts[queue, LANES[lane], State.QUEUED] += count
        return {key: count for key, count in counts.items() if count}

    async def batches(self, ids: Sequence[TaskId]) -> Sequence[Mapping[State, int]]:
        found: dict[TaskId, dict[State, int]] = {id: {} for id in ids}
        for id, state, count in await self._db.read(Step("batches", values=ids)):
            found[id][STATES[state]] = count
        return [found[id] for id in ids]

    async def oldest(self, queues: Collection[str]) -> Mapping[str, Instant]:
        heads = {
            (queue, priority, lane)
            for (queue, state, lane, priority), count in await self._db.tally()
            if count and state == State.QUEUED and queue in queues
        }
        found: dict[str, Instant] = {}
        if heads:
            for queue, *heads_ in await self._db.read(Step("oldest", rows=sorted(heads))):
                for since in heads_:
                    if since is not None:  # there, and not claimed since it was counted
                        found[queue] = min(since, found.get(queue, since))
        return found

    async def open_approvals(self, limit: int) -> Sequence[OpenApproval]:
        return [OpenApproval(*row) for row in await self._db.read(Step("open_approvals", (limit,)))]

    async def events(
        self, *, after: str, limit: int, task: TaskId | None = None, most_bytes: int = LOG_BYTES
    ) -> Page[Event]:
        taken = Cut(limit, most_bytes)
        if task is not None:
            step = Step("history", (task, int(after or 0), limit + 1))
            rows = await self._db.read(step, taken)
        elif after == "$":
            ((end,),) = await self._db.read(Step("log_end"))
            await self._db.kept()
            return Page([], str(end))
        else:
            rows = await self._log(int(after or 0), limit, taken)
        await self._db.kept()
        next_ = str(rows[-1][0]) if rows else after
        return Page([Event(*row[1:]) for row in rows], next_, taken.more)

    async def _log(self, after: int, limit: int, take: Take) -> list[Row]:
        return await self._db.read(Step("log", (after, limit + 1)), take, far=True)


class _Where:
    """Conditions and their values, numbered from ?2 on: ?1 is the limit."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.values: list[Any] = []

    def value(self, value: Any) -> str:
        self.values.append(value)
        return f"?{len(self.values) + 1}"

    def among(self, column: str, values: Collection[str]) -> str:
        return f"{column} IN ({', '.join(self.value(str(value)) for value in sorted(values))})"

    def in_states(self, query: Query) -> None:
        if query.states:
            states = self.among("state", query.states)
            if query.offered:
                states = f"({states} OR {OFFERED})"
            elif query.states <= TROUBLE:
                states += f" AND {TROUBLED}"
            self.parts.append(states)
        if query.offered is False:
            self.parts.append(f"NOT ({OFFERED})")

    def within_times(self, query: Query) -> None:
        for column, sign, instant in (
            ("created_at", ">=", query.created_from),
            ("created_at", "<", query.created_before),
            ("finished_at", ">=", query.finished_from),
            ("finished_at", "<", query.finished_before),
        ):
            if instant is not None:
                self.parts.append(f"{column} {sign} {self.value(instant)}")

    def leaves_out(self, without: Without) -> None:
        for column in ("type", "queue", "session", "batch", "partition"):
            values = getattr(without, column)
            if values:
                self.parts.append(f"({self.among(column, values)}) IS NOT TRUE")
        for tag in sorted(without.tags):
            self.parts.append(f"({self.tagged([tag])}) IS NOT TRUE")

    def tagged(self, tags: Collection[str]) -> str:
        """It has all of them."""
        wanted = self.value(msgspec.json.encode(sorted(tags)).decode())
        return f"tags IS NOT NULL AND {{tags_hold}}{wanted}{{tags_held}}"

    def has_marks(self, query: Query) -> None:
        if query.partition is not None:
            named = " AND partition <> ''" if query.partition else ""
            self.parts.append(f"partition = {self.value(query.partition)}{named}")
        if query.tags:
            self.parts.append(self.tagged(query.tags))

    def contains(self, text: str) -> None:
        at = self.value(text)
        within = ("id", "type", "{payload}", "coalesce(error, '')")
        self.parts.append(f"({' OR '.join(f'{{instr}}({one}, {at}) > 0' for one in within)})")


def matching(query: Query) -> tuple[str, Sequence[Any]]:
    """The condition of `find`, and its values."""
    where = _Where()
    where.in_states(query)
    if query.profiles:
        where.parts.append(where.among("profile", query.profiles))
    if query.approval is not None:
        asked = set(Status) if query.approval == "all" else {query.approval}
        where.parts.append(f"{where.among('{approval_status}', asked)} AND approval IS NOT NULL")
    for name in (
        "type",
        "queue",
        "session",
        "owner",
        "parent",
        "fingerprint",
        "waiting_for",
        "batch",
    ):
        value = getattr(query, name)
        if value is not None:
            where.parts.append(f"{name} = {where.value(value)}")
    where.within_times(query)
    where.has_marks(query)
    where.leaves_out(query.without)
    if query.text is not None:
        where.contains(query.text)
    if query.after is not None:
        where.parts.append(f"tid < {where.value(int(query.after))}")
    return " AND ".join(where.parts) or "TRUE", where.values
