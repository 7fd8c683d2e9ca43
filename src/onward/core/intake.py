"""How work comes into the ledger: one at a time, many at once, and against others with its key.

The part of the Dispatcher that inserts. Calls of many callers share a transaction; an item that is
refused, or cannot be kept, costs its neighbours nothing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from onward.core.clock import Clock
from onward.core.coalesce import Coalescer, call_in_halves
from onward.core.contended import UniqueRule, pointed_at, replaced, superseded
from onward.core.contract import (
    FRESH,
    FULL,
    Ask,
    Backend,
    Fate,
    Key,
    Move,
    Moved,
    Receipt,
    Submission,
    Verdict,
)
from onward.core.decisions import Decisions, queued_counts
from onward.core.errors import Conflict
from onward.core.intervene import accepted
from onward.core.moves import SETTLED
from onward.core.policy import Profile
from onward.core.slots import Slots
from onward.core.task import (
    QUEUED,
    RUNNING,
    Claimed,
    Ending,
    Instant,
    Letter,
    Task,
    TaskId,
    WorkerId,
    encode,
)
from onward.core.waiters import Waiters, outcome_within

TRIES = 50  # against others with the same key, on other servers
MET = (Fate.HELD, Fate.WAITS)


class NewTask(NamedTuple):
    """A task on its way in, with what else its submitter gave."""

    task: Task
    key: Key | None = None
    unique: UniqueRule | None = None


class Entered(Receipt, frozen=True):
    """Of a new task: with what is known of it without another look at the ledger."""

    born: Task | None = None
    claimed: Claimed | None = None  # if it went straight into a slot
    lease_until: Instant | None = None

    @property
    def task_then(self) -> Task | None:
        """The task as it came into the ledger; None: that is not known here."""
        task, claimed = self.born, self.claimed
        if task is None or not self.running:
            return task
        if claimed is None or self.lease_until is None:  # it was offered, or does not open here
            return None
        return msgspec.structs.replace(
            task,
            state=RUNNING,
            fence=claimed.fence,
            rev=claimed.rev,
            attempt=claimed.attempt,
            worker=claimed.worker,
            started_at=claimed.started_at,
            attempt_by=claimed.attempt_by,
            lease_until=self.lease_until,
            events=task.events + 1,
        )


class Intake(ABC):
    backend: Backend
    clock: Clock
    profiles: Mapping[str, Profile]
    decisions: Decisions
    slots: Slots
    waiters: Waiters
    tally: Counter[str]

    def __init__(self) -> None:
        # By a field of Task: awaited before the first task that has it is written.
        self.before_first: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._submissions = Coalescer(self._insert, size=lambda item: len(item.task.payload))
        # Queues that asks of ours are under way for, by the future that is done when they are back.
        self._asking: dict[asyncio.Future[None], frozenset[str]] = {}
        self._contended: dict[str, asyncio.Lock] = {}  # by key, while a caller holds it or waits

    async def submit(
        self,
        task: Task,
        *,
        cap: int | None = None,
        key: Key | None = None,
        unique: UniqueRule | None = None,
    ) -> Receipt:
        """In the ledger when this returns. A key that is known returns the known task, a new task
        that met no other with its key an `Entered`.
        """
        submission = self._submission(NewTask(task, key, unique), cap)
        receipt = await self._submissions.one(submission)
        if receipt.fate in MET:
            receipt = await self._settled(submission, receipt, unique)
        return accepted(receipt, task, cap)

    async def submit_all(self, tasks: Sequence[Task]) -> Sequence[Receipt]:
        return await self._submissions.many([self.decisions.submission(task) for task in tasks])

    async def submit_each(self, items: Sequence[NewTask]) -> list[Receipt | Exception]:
        """Each for itself: what one of them is refused for stands in its place."""
        submissions = [self._submission(item) for item in items]
        found = await self._submissions.each(submissions)
        for at, receipt in enumerate(found):
            if isinstance(receipt, Exception) or receipt.fate is FRESH:
                continue
            try:
                if receipt.fate in MET:
                    receipt = await self._settled(submissions[at], receipt, items[at].unique)
                found[at] = accepted(receipt, items[at].task, None)
            except Exception as error:
                found[at] = error
        return found

    async def submit_and_wait(
        self,
        task: Task,
        *,
        timeout_ms: int,
        cap: int | None = None,
        key: Key | None = None,
        unique: UniqueRule | None = None,
        firm: bool = False,
    ) -> tuple[Receipt, Ending | None]:
        # Subscribed before the task exists: an ending cannot slip in between.
        with self.waiters.expect(task.id, unborn=True, firm=firm) as future:
            receipt = await self.submit(task, cap=cap, key=key, unique=unique)
            if receipt.fate is FRESH:
                return receipt, await outcome_within(future, timeout_ms)
        return receipt, await self.wait(receipt.task, timeout_ms=timeout_ms)

    async def expect(self, tasks: Iterable[Task]) -> None:
        """These are about to be written: what reads the log for such tasks begins before them."""
        for field in [each for each in self.before_first if any(getattr(t, each) for t in tasks)]:
            await self.before_first[field]()
            self.before_first.pop(field, None)

    def _submission(self, item: NewTask, cap: int | None = None) -> Submission:
        unique = None if item.unique is None else item.unique.for_ledger()
        return self.decisions.submission(item.task, cap, item.key, unique)

    async def _insert(self, batch: Sequence[Submission]) -> Sequence[Receipt | Exception]:
        if self.before_first:
            await self.expect([item.task for item in batch])
        asking = dict(self._asking)
        receipts = await self._insert_once(batch)
        if not asking:
            return receipts
        queues = {queue for asked in asking.values() for queue in asked}
        again = [
            at
            for at, receipt in enumerate(receipts)
            if receipt.fate is FULL and batch[at].task.queue in queues
        ]
        if not again:
            return receipts
        # A free slot was in an ask for a queue that was full without it: now that it is back, try
        # once more, or a caller is refused with a worker idle.
        await asyncio.wait(asking)
        # The first call is done: an error of this one is theirs alone.
        second = await call_in_halves(self._insert_once, [batch[at] for at in again])
        return [*{**dict(enumerate(receipts)), **dict(zip(again, second, strict=True))}.values()]

    async def _insert_once(self, batch: Sequence[Submission]) -> Sequence[Receipt]:
        asks = self.slots.borrow(queued_counts(item.task for item in batch))
        with self._under_way(asks) as claimed:
            inserted = await self.backend.tasks.insert(batch, asks, now=self.clock.now())
            claimed += inserted.claimed
        ready: set[str] = set()
        receipts: list[Receipt] = []
        slots = {task.id: task for task in inserted.claimed}
        leases = {ask.worker: ask.lease_ms for ask in asks}
        for item, receipt in zip(batch, inserted.receipts, strict=True):
            if receipt.fate is FRESH:
                for event, _ in item.events:
                    self.tally[event] += 1
                if item.task.state is QUEUED and not receipt.running:
                    ready.add(item.task.queue)
                receipt = _entered(item.task, receipt, slots, leases)
            receipts.append(receipt)
        self._announce(ready, ())
        return receipts

    # Against others with the same key.

    async def _settled(
        self, submission: Submission, receipt: Receipt, rule: UniqueRule | None
    ) -> Receipt:
        """What becomes of a submission that met another: here one after the other, against other
        servers by the guards of the ledger.
        """
        task = submission.task
        met = ""
        async with self._alone(task.unique_key or task.debounce_key or ""):
            for _ in range(TRIES):
                if receipt.fate is Fate.HELD and rule is not None and rule.then == "return":
                    return Receipt(Fate.KNOWN, receipt.task)
                if receipt.fate is Fate.HELD and (rule is None or rule.then == "refuse"):
                    raise Conflict(
                        f"task {receipt.task} has this unique key",
                        hint="wait for its end, or submit with then: return or replace",
                    )
                done = await self._contend(submission, receipt, met)
                if done is not None:
                    return done
                met = receipt.task
                receipt = await self._submissions.one(submission)
                if receipt.fate not in MET:
                    return receipt
        raise Conflict("others with this key keep coming; try again")

    @asynccontextmanager
    async def _alone(self, key: str) -> AsyncIterator[None]:
        lock = self._contended.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and self._contended.get(key) is lock:
                del self._contended[key]

    async def _contend(
        self, submission: Submission, receipt: Receipt, met: TaskId
    ) -> Receipt | None:
        """None: the other has changed meanwhile, so look again whom it meets."""
        now, waits = self.clock.now(), receipt.fate is Fate.WAITS
        (found,) = await self.backend.tasks.get([receipt.task])
        if found is None:
            return None
        if not waits and found.successor is not None and found.id != met:
            # Replaced by another caller since it was met: what waits for its end is in the way.
            # Unless that one is over, or does not count: then this one is met once more.
            return None
        decide = superseded if waits else replaced
        move = decide(found, submission, now, self.profiles[found.profile])
        if move is None or not await self._is_applied(move, now):
            return None
        if waits:
            return Receipt(Fate.KNOWN, found.id)
        if move.spawn and (first := move.spawn[0].task.predecessor) not in (None, found.id):
            await self._point(str(first), submission.task.id)
        if "successor" in move.changes:
            self.slots.stop(found.id, found.fence, revoked=False)
        return Receipt(FRESH, submission.task.id)

    async def _point(self, predecessor: TaskId, successor: TaskId) -> None:
        """What was to start after it is canceled: the newest one starts then instead."""
        for _ in range(TRIES):
            (found,) = await self.backend.tasks.get([predecessor])
            now = self.clock.now()
            move = None if found is None else pointed_at(found, successor)
            if move is None:
                letter = Letter(to=successor, name=SETTLED, body=encode({"task": predecessor}))
                moved = await self.backend.tasks.post([letter], now=now)
                self._announce(moved.awake, [successor])
                return
            if await self._is_applied(move, now):
                return

    async def _is_applied(self, move: Move, now: Instant) -> bool:
        return (await self._apply([move], now)).verdicts[0] is Verdict.APPLIED

    # What the Dispatcher does besides.

    @abstractmethod
    async def wait(self, task: TaskId, *, timeout_ms: int) -> Ending | None: ...

    @abstractmethod
    async def _apply(self, moves: Sequence[Move], now: Instant) -> Moved: ...

    @abstractmethod
    def _under_way(self, asks: Sequence[Ask]) -> AbstractContextManager[list[Claimed]]: ...

    @abstractmethod
    def _announce(self, ready: set[str] | frozenset[str], touched: Sequence[TaskId]) -> None: ...


def _entered(
    born: Task,
    receipt: Receipt,
    slots: Mapping[TaskId, Claimed],
    leases: Mapping[WorkerId, int | None],
) -> Entered:
    claimed = slots.get(born.id) if receipt.running else None
    if claimed is None:
        return Entered(FRESH, receipt.task, receipt.running, born)
    lease_ms = leases.get(claimed.worker)
    until = None if lease_ms is None else (claimed.started_at or 0) + lease_ms
    return Entered(FRESH, receipt.task, True, born, claimed, until)
