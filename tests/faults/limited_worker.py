"""A worker to be killed. Its handlers write down when they ran."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from onward import Worker

worker = Worker(sys.argv[1], concurrency=16)
# One line a write, so that lines of several processes do not mix.
record = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(what: str, who: str, task: str, attempt: int) -> None:
    line = f"{what} {time.monotonic():.6f} {os.getpid()} {who} {task} {attempt}\n"
    os.write(record, line.encode())


@worker.service
async def work(ctx, who: str) -> None:  # type: ignore[no-untyped-def]
    note("begin", who, ctx.task_id, ctx.attempt)
    try:
        await asyncio.sleep(0.05)
    finally:  # also where its server has died: it is stopped then
        note("end", who, ctx.task_id, ctx.attempt)


if __name__ == "__main__":
    worker.run()
