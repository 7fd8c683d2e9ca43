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
        self._waiting: dict[TaskId, list[Expectation]] = {}
        self.stopping = False

    def expect(self, task: TaskId, *, unborn: bool = False, firm: bool = False) -> Expectation:
        """Subscribed within a `with`; too many at once are refused.

        A firm waiter is not let go when the server stops: it can use nothing but the ending.
        """
        if self._count >= self._most:
            raise TooBusy(
                f"{self._most} callers wait already",
                hint="submit without waiting and poll, or try again shortly",
            )
        return Expectation(self, task, unborn, firm)

    def _add(self, expectation: Expectation) -> None:
        self._count += 1
        self._waiting.setdefault(expectation.task, []).append(expectation)

    def _remove(self, expectation: Expectation) -> None:
        self._count -= 1
        expectations = self._waiting[expectation.task]
        expectations.remove(expectation)
        if not expectations:
            del self._waiting[expectation.task]

    def end(self, ending: Ending) -> None:
        """As the ledger has it."""
        for expectation in self._waiting.get(ending.id, ()):
            expectation.meet(ending)

    def end_unborn(self, ending: Ending) -> None:
        """As in another server's message, which the ledger published with the move.

        It is enough for those who waited before the task was born: the first ending is theirs. To
        others a late message could report the ending before a replay: they read the row.
        """
        for expectation in self._waiting.get(ending.id, ()):
            if expectation.unborn:
                expectation.meet(ending)

    def of(self, tasks: Iterable[TaskId]) -> Sequence[TaskId]:
        """Those of them that callers still wait for."""
        return [
            task
            for task in tasks
            if not all(expectation.met for expectation in self._waiting.get(task, ()))
        ]

    def let_go(self) -> None:
        """The server stops: for those who can come back, the time to wait is over."""
        self.stopping = True
        for expectations in self._waiting.values():
            for expectation in expectations:
                expectation.let_go()

    def waited_for(self) -> Sequence[TaskId]:
        return list(self._waiting)

    def __len__(self) -> int:
        return self._count


class Expectation:
    """One caller's wait for one task."""

    def __init__(self, waiters: Waiters, task: TaskId, unborn: bool, firm: bool) -> None:
        self.task = task
        self._firm = firm
        self.unborn = unborn  # waited for since before the task was in the ledger
        self._waiters = waiters
        self._future: Answer = asyncio.get_running_loop().create_future()

    def __enter__(self) -> Answer:
        self._waiters._add(self)  # noqa: SLF001 two halves of one thing
        if self._waiters.stopping:
            self.let_go()
        return self._future

    def __exit__(self, *_: object) -> None:
        self._waiters._remove(self)  # noqa: SLF001

    def meet(self, ending: Ending) -> None:
        if not self._future.done():
            self._future.set_result(ending)

    def let_go(self) -> None:
        if not (self._firm or self._future.done()):
            self._future.set_result(None)

    @property
    def met(self) -> bool:
        return self._future.done()


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
