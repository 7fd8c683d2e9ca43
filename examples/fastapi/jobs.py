"""The work: a process of its own, on this machine or another."""

import asyncio

from onward import Context, Worker

worker = Worker()


@worker.service(max_retries=2)
async def report(ctx: Context, topic: str, pages: int = 5) -> str:
    """Write a report."""
    written: list[str] = []
    for page in range(1, pages + 1):
        await asyncio.sleep(0.2)
        written.append(f"What page {page} has to say about {topic}.")
        await ctx.progress(page / pages, f"page {page} of {pages}")
    return "\n".join(written)
