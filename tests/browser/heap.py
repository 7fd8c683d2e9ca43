"""`python -m tests.browser.heap FILE COUNT`: a ledger with so many tasks that nobody does."""

from __future__ import annotations

import asyncio
import sys

from onward.core.task import Task, new_id
from onward.engine import Onward
from onward.settings import Settings

BATCH = 1000


async def heap(file: str, count: int) -> None:
    settings = Settings(ledger=f"sqlite:///{file}", synchronous="normal")
    async with Onward(settings) as onward:
        now = onward.clock.now()
        for _ in range(0, count, BATCH):
            await onward.dispatcher.submit_all([_task(now) for _ in range(BATCH)])


def _task(now: int) -> Task:
    return Task(
        id=new_id(), type="heap", queue="heap", profile="console", payload="{}", created_at=now
    )


if __name__ == "__main__":
    asyncio.run(heap(sys.argv[1], int(sys.argv[2])))
