"""Callers who wait for a result. They subscribe before they look, and are re-read every second.

A waiter that goes away changes nothing: the task lives in the ledger, not in the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from onward.core.errors import TooBusy
from onward.core.task import Ending, TaskId

Answer: TypeAlias = "asyncio.Future[Ending | None]"


class Waiters:
    def __init__(self, *, most: int = 10_000) -> None:
        self._most = most
        self._count = 0
        self._waiting: dict[TaskId, list[Answer]] = {}

    def expect(self, task: TaskId) -> Expectation:
        """Subscribed within a `with`; too many at once are refused."""
        if self._count >= self._most:
            raise TooBusy(
                f"{self._most} callers wait already",
                hint="submit without waiting and poll, or try again shortly",
            )
        return Expectation(self, task)

    def _add(self, task: TaskId, future: Answer) -> None:
        self._count += 1
        self._waiting.setdefault(task, []).append(future)

    def _remove(self, task: TaskId, future: Answer) -> None:
        self._count -= 1
        futures = self._waiting[task]
        futures.remove(future)
        if not futures:
            del self._waiting[task]

    def end(self, ending: Ending) -> None:
        for future in self._waiting.get(ending.id, ()):
            if not future.done():
                future.set_result(ending)

    def of(self, tasks: Iterable[TaskId]) -> Sequence[TaskId]:
        return [task for task in tasks if task in self._waiting]

    def waited_for(self) -> Sequence[TaskId]:
        return list(self._waiting)

    def __len__(self) -> int:
        return self._count


class Expectation:
    """One caller's wait for one task."""

    def __init__(self, waiters: Waiters, task: TaskId) -> None:
        self._waiters = waiters
        self._task = task
        self._future: Answer = asyncio.get_running_loop().create_future()

    def __enter__(self) -> Answer:
        self._waiters._add(self._task, self._future)  # noqa: SLF001 two halves of one thing
        return self._future

    def __exit__(self, *_: object) -> None:
        self._waiters._remove(self._task, self._future)  # noqa: SLF001


async def outcome_within(future: Answer, timeout_ms: int) -> Ending | None:
    """The ending, or None when the time is over first."""
    if future.done():
        return future.result()

    def over() -> None:
        if not future.done():
            future.set_result(None)

    timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, over)
    try:
        return await future
    finally:
        timer.cancel()
