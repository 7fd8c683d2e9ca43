"""Queues whose names look like something else."""

from __future__ import annotations

from onward.core.task import Priority
from tests.contract.desk import Desk
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


async def test_queues_named_like_priorities_keep_tasks_counts_and_order_apart(desk: Desk) -> None:
    stand: dict[str, list[str]] = {name: [] for name in NAMES}
    for priority in (Priority.HIGH, Priority.NORMAL, Priority.LOW):
        for name in NAMES:
            for _ in range(2):
                task = await desk.submit(queue=name, priority=priority)
                stand[name].append(task.id)
    assert await desk.store.counts() == await desk.recount()
    for name in NAMES:
        claimed = await desk.claim(name, limit=10)
        assert ids(claimed) == stand[name]
        assert {task.queue for task in claimed} == {name}
    assert await desk.store.counts() == await desk.recount()
