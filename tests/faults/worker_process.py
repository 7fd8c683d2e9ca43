"""A worker to be killed: it takes a little time over each task, and says which attempt it was."""

from __future__ import annotations

import asyncio
import sys

from onward import Context, Worker

worker = Worker(sys.argv[1], concurrency=8)


@worker.service
async def chore(n: int, ctx: Context) -> dict[str, int]:
    await asyncio.sleep(0.1)
    return {"n": n, "attempt": ctx.attempt}


if __name__ == "__main__":
    worker.run()
