"""Queues whose names look like something else."""

from __future__ import annotations

from onward.core.task import Priority
from tests.contract.driver import Driver
from tests.support import ids

NAMES = (
    "summarize",
    "high",
    "low",
    "x",
    "x:low",
    "group:a",
    "group:a:high",
    "primary",
    "1:retry:x",
)


async def test_queues_named_like_priorities_keep_tasks_counts_and_order_apart(
    driver: Driver,
) -> None:
    stand: dict[str, list[str]] = {name: [] for name in NAMES}
    for priority in (Priority.HIGH, Priority.NORMAL, Priority.LOW):
        for name in NAMES:
            for _ in range(2):
                task = await driver.submit(queue=name, priority=priority)
                stand[name].append(task.id)
    assert await driver.store.counts() == await driver.recount()
    for name in NAMES:
        claimed = await driver.claim(name, limit=10)
        assert ids(claimed) == stand[name]
        assert {task.queue for task in claimed} == {name}
    assert await driver.store.counts() == await driver.recount()
