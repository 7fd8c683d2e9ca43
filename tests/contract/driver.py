"""One at a time, for tests: what the Dispatcher does in batches. Speaks only to the Protocols."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from onward.core import machine
from onward.core.contract import (
    Ask,
    Backend,
    Fate,
    Inserted,
    Key,
    LeaseRenewal,
    LeaseStatus,
    Move,
    Moved,
    Query,
    Submission,
    UniqueGuard,
    Verdict,
)
from onward.core.limits import Bound, Usage
from onward.core.outcome import Outcome, Succeeded
from onward.core.task import Claimed, Event, Instant, Lane, Letter, Note, State, Task
from tests.support import LEASE_MS, NOW, PROFILES, a_task, an_ask


def submission(
    task: Task, *, cap: int | None = None, key: Key | None = None, unique: UniqueGuard | None = None
) -> Submission:
    return Submission(*machine.born(task, PROFILES[task.profile]), cap, key, unique)


class Driver:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.store = backend.tasks
        self.now: Instant = NOW

    async def insert(self, *submissions: Submission, asks: tuple[Ask, ...] = ()) -> Inserted:
        return await self.store.insert(submissions, asks, now=self.now)

    async def submit(self, **fields: Any) -> Task:
        task = a_task(**{"created_at": self.now, **fields})
        inserted = await self.insert(submission(task))
        assert inserted.receipts[0].fate is Fate.FRESH
        return await self.task(task.id)

    async def submit_some(self, count: int, **fields: Any) -> list[Task]:
        return [await self.submit(**fields) for _ in range(count)]

    async def claim(self, *queues: str, limit: int = 1, **more: Any) -> list[Claimed]:
        ask = an_ask(*queues, limit=limit, **more)
        return list(await self.store.claim([ask], now=self.now))

    async def claim_all(self, *queues: str, limit: int = 1, **more: Any) -> list[Claimed]:
        """As long as a claim gives something."""
        found: list[Claimed] = []
        while claimed := await self.claim(*queues, limit=limit, **more):
            found += claimed
        return found

    async def usage(self, bound: Bound, partition: str = "") -> Usage:
        (usage,) = await self.store.usage([bound], partition, now=self.now)
        return usage

    async def start_at(self, *queues: str, bounds: tuple[Bound, ...]) -> Mapping[str, Instant]:
        return await self.store.start_at(an_ask(*queues, bounds=bounds).wants, now=self.now)

    async def running(self, **fields: Any) -> Claimed:
        """A task of its own queue, claimed by a worker."""
        task = await self.submit(**fields)
        (claimed,) = await self.claim(task.queue)
        assert claimed.id == task.id
        return claimed

    async def hold(self, held: Claimed, *notes: Note, **fields: Any) -> LeaseStatus:
        until = fields.pop("until", self.now + LEASE_MS)
        hold = LeaseRenewal(held.id, held.fence, until, fields.get("progress"), notes)
        return (await self.store.extend([hold], now=self.now))[0]

    async def apply(self, *moves: Move | None, asks: tuple[Ask, ...] = ()) -> Moved:
        return await self.store.apply([move for move in moves if move], asks, now=self.now)

    def decide(self, held: Claimed | Task, outcome: Outcome, *spawn: Task) -> Move:
        children = tuple(submission(child) for child in spawn)
        return machine.settle(held, outcome, self.now, PROFILES[held.profile], children)

    async def settle(self, held: Claimed | Task, outcome: Outcome, *spawn: Task) -> Verdict:
        return (await self.apply(self.decide(held, outcome, *spawn))).verdicts[0]

    async def finished(self, **fields: Any) -> Task:
        held = await self.running(**fields)
        assert await self.settle(held, Succeeded("1")) is Verdict.APPLIED
        return await self.task(held.id)

    async def intervene(self, task: Task, decide: Callable[..., Move | None]) -> Verdict:
        return (await self.apply(decide(task, self.now, PROFILES[task.profile]))).verdicts[0]

    async def post(self, to: str, *bodies: str) -> Moved:
        letters = [Letter(to=to, name="signal", body=body) for body in bodies]
        return await self.store.post(letters, now=self.now)

    async def task(self, id: str) -> Task:
        (task,) = await self.store.get([id])
        assert task is not None
        return task

    async def all(self) -> list[Task]:
        """Every task, oldest first, a small page at a time."""
        found: list[Task] = []
        after: str | None = None
        while True:
            page = await self.store.find(Query(after=after, limit=7))
            found += page.items
            after = page.next
            if after is None:
                return found[::-1]

    async def recount(self) -> Mapping[tuple[str, Lane, State], int]:
        # Only queued tasks are counted by lane.
        return Counter(
            (task.queue, task.lane if task.shown is State.QUEUED else Lane.PRIMARY, task.shown)
            for task in await self.all()
        )

    async def history(self, id: str) -> list[str]:
        return [event.type for event in await self.events_of(id)]

    async def events_of(self, id: str) -> list[Event]:
        return list((await self.store.events(after="", limit=1_000, task=id)).items)

    async def log(self, after: str = "") -> list[Event]:
        return list((await self.store.events(after=after, limit=1_000)).items)
