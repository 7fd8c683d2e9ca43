"""The services that the agent may use. Their docstrings are what a model reads of them."""

import asyncio

from onward import Context, Worker

worker = Worker()


@worker.service
async def quarterly_report(ctx: Context, quarter: str, year: int) -> dict[str, str | int]:
    """Write the financial report of a quarter. Takes about two seconds.

    Args:
        quarter: Q1, Q2, Q3 or Q4.
        year: Four digits.
    """
    for page in range(1, 5):
        await asyncio.sleep(0.5)
        await ctx.progress(page / 4, f"page {page} of 4")
    return {"title": f"Report {quarter} {year}", "pages": 4}


@worker.service(expose=False)
def pay(amount: int) -> str:
    """No agent is offered this one."""
    return f"paid {amount}"
