"""Work that goes on beside the rest, in a server or a Celery worker, until it is closed.

What is repeated goes on after a failure: the ledger was away, and the next round tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

log = structlog.get_logger("onward.background")

Work = Coroutine[Any, Any, None]


class Background:
    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def run(self, work: Work) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def every(self, seconds: float, work: Callable[[], Work]) -> None:
        self.run(_repeat(seconds, work))

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def _repeat(seconds: float, work: Callable[[], Work]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception as error:
            log.warning("background work failed", work=work.__qualname__, error=repr(error))
