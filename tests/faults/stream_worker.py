"""A worker on Redis streams, to be killed and stopped."""

from __future__ import annotations

import asyncio

from onward import Context, Worker

worker = Worker(concurrency=40)


@worker.service
async def chore(n: int, ctx: Context) -> dict[str, int]:
    await asyncio.sleep(0.3)
    return {"n": n, "attempt": ctx.attempt}
