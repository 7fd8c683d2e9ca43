"""Words that the tests share: a task to begin with, the profiles, and how to wait for something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from onward.core import machine
from onward.core.clock import ManualClock
from onward.core.contract import Ask, Move, Want
from onward.core.policy import BY_ERROR, Profile, profiles
from onward.core.task import Lane, Priority, Task, new_id

NOW = ManualClock().now()
LEASE_MS = 30_000

# `notified` differs from `session` by its retry schedule alone.
PROFILES = {
    **profiles(lease_ms=LEASE_MS),
    "notified": Profile(
        name="notified",
        max_retries=3,
        schedules=BY_ERROR,
        lease_ms=LEASE_MS,
        retention_ms=24 * 3_600_000,
        notifies_at_expiry=True,
    ),
}


def a_task(**fields: Any) -> Task:
    plain: dict[str, Any] = {
        "id": new_id(),
        "type": "mail",
        "queue": "q",
        "profile": "console",
        "payload": "{}",
        "created_at": NOW,
    }
    return Task(**{**plain, **fields})


def an_ask(*queues: str, worker: str = "w", limit: int = 1, lease_ms: int | None = LEASE_MS) -> Ask:
    """Wants everything of these queues, urgent work first and new work before retries."""
    wants = [
        Want(queue, priority, lane, limit)
        for priority in Priority
        for queue in queues or ("q",)
        for lane in Lane
    ]
    return Ask(worker, limit, tuple(wants), lease_ms)


async def wait_until(predicate: Callable[[], object], timeout: float = 30) -> None:
    """Until it holds; a test that waits in vain fails here and not somewhere later."""
    async with asyncio.timeout(timeout):
        while not predicate():  # noqa: ASYNC110 what is waited for has no event to wait on
            await asyncio.sleep(0.002)


def ids(tasks: Sequence[Any]) -> list[str]:
    return [task.id for task in tasks]


def replay(task: Task, now: int, **more: Any) -> Move | None:
    """Replayed by the rules of its own profile."""
    return machine.replay(task, now, PROFILES[task.profile], **more)
