"""Work that goes on beside the rest, in a server or a Celery worker, until it is closed.

What is repeated goes on after a failure: the ledger was away, and the next round tries again. What
fails again and again is on the board of troubles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from onward.core.troubles import Troubles

log = structlog.get_logger("onward.background")

Work = Coroutine[Any, Any, None]
Job = Callable[[], Work]


class Background:
    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self.tasks: list[asyncio.Task[None]] = []

    def run(self, work: Work) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(partial(self._ended, getattr(work, "__qualname__", "work")))
        self.tasks.append(task)

    def every(self, seconds: float, work: Job) -> None:
        self.run(self._repeat(seconds, work))

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _repeat(self, seconds: float, work: Job) -> None:
        name = work.__qualname__
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Exception as error:
                log.warning("background work failed", work=name, error=repr(error))
                self._troubles.failed(name, error)
            else:
                self._troubles.went_well(name)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("background work ended", work=name, error=repr(error))
            self._troubles.ended(name, error)
