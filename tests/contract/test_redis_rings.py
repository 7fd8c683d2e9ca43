"""Partitions and bounds of a Redis ledger in any order of events: its keys agree, and no task is
left that could start.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from onward.core import machine
from onward.core.limits import Bound, Rate
from onward.core.outcome import Failed, Lost, Outcome, Parked, Released, Succeeded
from onward.core.policy import Overrides
from onward.core.task import Claimed, Priority, State, Task
from onward.faults import Fault
from onward.ledgers.redis import RedisBackend
from tests.contract.driver import Driver, submission
from tests.faults.redis_invariants import check_nothing_was_refused, check_redis_invariants
from tests.servers import FLAVOURS, fresh_url, shared
from tests.support import PROFILES, a_task

BOUNDS = (
    Bound("few", False, 4, None, ("q",)),
    Bound("none", False, 0, None, ("r",)),
    Bound("each", True, 1, None, ("q", "r")),
    Bound("each", True, 2, None, ("q",)),
    Bound("mail", False, 1, None, (), ("mail",)),
    Bound("mails", True, 1, None, ("r",), ("mail",)),
    Bound("slow", False, None, Rate(5, 1_000), ("q",)),
    Bound("calm", True, 3, Rate(2, 1_000, 0), ("q", "r")),
    Bound("post", True, None, Rate(1, 1_000, 1), (), ("mail", "page")),
)
SOON = Overrides(backoff_ms=(700,)).encode()
AT_ONCE = Overrides(backoff_ms=(0,)).encode()
OUTCOMES: Sequence[Outcome] = (
    Succeeded("1"),
    Failed(Fault(kind="ServiceUnavailable", message="")),
    Failed(Fault(kind="InvalidInput", message="")),
    Parked(seen=0, journal="{}", waiting_for="event"),
    Released(),
    Lost(),
)


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Walk:
    def __init__(self, driver: Driver, redis: Any, seed: int) -> None:
        self.driver = driver
        self.redis = redis
        self.random = random.Random(seed)
        self.bounds: tuple[Bound, ...] = ()
        self.held: list[Claimed] = []
        self.claimed = 0

    async def step(self) -> None:
        acts = (self.submit, self.claim, self.claim, self.settle, self.settle, self.move, self.wait)
        await self.random.choice(acts)()
        if self.random.random() < 0.05:
            self.bounds = tuple(self.random.sample(BOUNDS, self.random.randint(0, 3)))
        check_redis_invariants(self.redis, all_over=False)

    async def submit(self) -> None:
        pick = self.random.choice
        tasks = [
            a_task(
                created_at=self.driver.now,
                queue=pick("qr"),
                type=pick(("mail", "page")),
                partition=pick(("", "a", "b", "c")),
                priority=pick((Priority.NORMAL, Priority.NORMAL, Priority.HIGH)),
                strict=pick((False, True)),
                overrides=pick((SOON, AT_ONCE)),
                payload=pick(("1", f'"{"x" * 100}"')),
            )
            for _ in range(self.random.randint(1, 6))
        ]
        await self.driver.insert(*map(submission, tasks))

    async def claim(self) -> None:
        limit, before = self.random.choice((1, 3, 20)), await self.driver.all()
        found = await self.driver.claim("q", "r", limit=limit, bounds=self.bounds)
        self.held += found
        self.claimed += len(found)
        after = await self.driver.all()
        for bound in self.bounds:
            was = use_of(bound, before)
            for partition, used in use_of(bound, after).items():
                assert bound.most is None or used <= max(bound.most, was[partition])
        if len(found) < limit:
            await self.nothing_could_start(after)

    async def nothing_could_start(self, tasks: Sequence[Task]) -> None:
        places = {task.id: await self.place(task) for task in tasks if task.state is State.QUEUED}
        lines: dict[Any, list[Task]] = {}
        for task in sorted(
            (task for task in tasks if task.id in places), key=lambda t: places[t.id]
        ):
            key = (task.queue, task.priority, task.lane, task.partition)
            lines.setdefault(key, []).append(task)
        for line in lines.values():
            passed: set[str] = set()
            for task in line:
                blocks = [bound for bound in self.bounds if await self.blocks(bound, task, tasks)]
                if any(task.queue in bound.queues for bound in blocks):
                    break  # none of this partition overtakes it
                if not blocks and task.type not in passed:
                    raise AssertionError(f"{task} could start under {self.bounds}")
                passed.add(task.type)

    async def place(self, task: Task) -> int:
        return int(float(self.redis.hget(f"onward:task:{task.id}", "place")))

    async def blocks(self, bound: Bound, task: Task, tasks: Sequence[Task]) -> bool:
        if not bound.covers(task.queue, task.type):
            return False
        used = use_of(bound, tasks)[task.partition if bound.each else ""]
        usage = await self.driver.usage(bound, task.partition)
        assert usage.used == used
        full = bound.most is not None and used >= bound.most
        return full or (usage.start_at or 0) > self.driver.now

    async def settle(self) -> None:
        self.random.shuffle(self.held)
        for _ in range(min(len(self.held), 3)):
            await self.driver.settle(self.held.pop(), self.random.choice(OUTCOMES))

    async def move(self) -> None:
        tasks = list(await self.driver.all())
        self.random.shuffle(tasks)
        for task in tasks[:3]:
            if task.state is State.WAITING:
                await self.driver.post(task.id, "1")
            elif task.state in (State.QUEUED, State.SCHEDULED):
                await self.driver.intervene(task, machine.cancel)

    async def wait(self) -> None:
        self.driver.now += self.random.choice((1, 150, 800))
        for task in await self.driver.store.due(now=self.driver.now, limit=100):
            if task.state is State.SCHEDULED:
                profile = PROFILES[task.profile]
                await self.driver.apply(machine.on_due(task, self.driver.now, profile))


def use_of(bound: Bound, tasks: Sequence[Task]) -> Counter[str]:
    return Counter(
        task.partition if bound.each else ""
        for task in tasks
        if task.occupies and bound.covers(task.queue, task.type)
    )


@pytest.mark.contract("L-2", "L-3", "L-4")
@pytest.mark.parametrize("seed", range(4))
async def test_in_any_order_no_bound_is_passed_and_no_task_is_forgotten(
    flavour: str, seed: int
) -> None:
    backend = RedisBackend(fresh_url(flavour))
    walk = Walk(Driver(backend), shared(flavour).client, seed)
    for _ in range(150):
        await walk.step()
    assert walk.claimed > 10
    check_nothing_was_refused(walk.redis)
    await backend.close()


async def commands_of_a_claim(flavour: str, blocked: int, queued: int) -> int:
    """Of one that finds one task, while so many partitions, with so many tasks each, are out."""
    backend = RedisBackend(fresh_url(flavour))
    driver, redis = Driver(backend), shared(flavour).client
    bounds = (Bound("each", True, 1, None, ("q",)),)
    tasks = [a_task(partition=f"p{n}") for n in range(blocked) for _ in range(queued)]
    await driver.insert(*map(submission, tasks))
    assert len(await driver.claim_all(limit=100, bounds=bounds)) == blocked
    await driver.submit(partition="free")
    redis.config_resetstat()
    assert len(await driver.claim(limit=8, bounds=bounds)) == 1
    stats = redis.info("commandstats")
    await backend.close()
    return sum(one["calls"] for one in stats.values())


@pytest.mark.contract("L-3")
async def test_a_claim_costs_the_same_however_many_partitions_are_out(flavour: str) -> None:
    few = await commands_of_a_claim(flavour, 2, 2)
    assert await commands_of_a_claim(flavour, 300, 2) == few
    assert await commands_of_a_claim(flavour, 2, 300) == few
    assert few < 60
