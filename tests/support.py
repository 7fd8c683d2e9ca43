"""Words that the tests share: a task to begin with, the profiles, and how to wait for something."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any, TypeVar, overload

from onward.core import machine
from onward.core.clock import ManualClock
from onward.core.contract import Ask, Move, Want
from onward.core.limits import Bound
from onward.core.policy import BY_ERROR, Profile, profiles
from onward.core.task import Lane, Priority, Task, new_id

T = TypeVar("T")

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


def an_ask(
    *queues: str,
    worker: str = "w",
    limit: int = 1,
    lease_ms: int | None = LEASE_MS,
    bounds: tuple[Bound, ...] = (),
) -> Ask:
    """Wants everything of these queues, urgent work first and new work before retries."""
    wants = [
        Want(queue, priority, lane, limit, bounds)
        for priority in Priority
        for queue in queues or ("q",)
        for lane in Lane
    ]
    return Ask(worker, limit, tuple(wants), lease_ms)


@overload
async def wait_until(
    look: Callable[[], Awaitable[T | None]],
    timeout: float = 60,
    *,
    holds: Callable[[T], object] = bool,
) -> T: ...


@overload
async def wait_until(
    look: Callable[[], T | None], timeout: float = 60, *, holds: Callable[[T], object] = bool
) -> T: ...


async def wait_until(
    look: Callable[[], Any], timeout: float = 60, *, holds: Callable[[Any], object] = bool
) -> Any:
    """What it finds, once that holds; a test that waits in vain fails here, and shows the last."""
    found: Any = None
    try:
        async with asyncio.timeout(timeout):
            while True:
                found = look()
                pause_s = 0.002
                if isawaitable(found):  # it asks a server, which has other things to do
                    found, pause_s = await found, 0.01
                if holds(found):
                    return found
                await asyncio.sleep(pause_s)
    except TimeoutError:
        raise TimeoutError(f"waited in vain, with {found!r} at last") from None


def poll_until(
    look: Callable[[], T | None], timeout: float = 60, *, holds: Callable[[T], object] = bool
) -> T:
    """The same where no event loop runs: other processes are watched."""
    deadline = time.monotonic() + timeout
    while (found := look()) is None or not holds(found):
        assert time.monotonic() < deadline, f"waited in vain, with {found!r} at last"
        time.sleep(0.02)
    return found


def bad_json(field: str) -> list[tuple[bytes, str]]:
    """Bodies that no door accepts, whatever the field is for, and a part of the reason."""
    values = [
        (b"NaN", "not JSON"),
        (b"1e999", "not finite"),
        (b'"\\u0000"', "NUL"),
        (b'"\\ud800"', "surrogate"),
        (b'"\xff"', "not UTF-8"),
        (b"[" * 65 + b"]" * 65, "64 levels"),
        (b'1,"%s":2' % field.encode(), "twice"),
    ]
    bodies = [(b'{"%s":%s}' % (field.encode(), value), why) for value, why in values]
    deep = b"[" * 65 + b"]" * 65
    whole = [(b"", "not JSON"), (b"{", "not JSON"), (b"\xff", "not JSON"), (deep, "64 levels")]
    return [*whole, *bodies]


def ids(tasks: Sequence[Any]) -> list[str]:
    return [task.id for task in tasks]


def replay(task: Task, now: int, **more: Any) -> Move | None:
    """Replayed by the rules of its own profile."""
    return machine.replay(task, now, PROFILES[task.profile], **more)
