"""A worker for the tests of the agent door: something quick, something long, something guarded."""

import asyncio
from typing import Any

from onward import Context, Worker

worker = Worker()


@worker.service
async def report(quarter: str, ctx: Context, seconds: float = 0) -> dict[str, str]:
    """Write a report."""
    await ctx.progress(0.25, "begun")
    await asyncio.sleep(seconds / 2)
    await ctx.progress(0.5, "half")
    await asyncio.sleep(seconds / 2)
    return {"file": f"{quarter}.pdf"}


@worker.service(requires_approval=True)
async def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


@worker.service
async def say(payload: Any) -> Any:
    """Say it again."""
    return payload
