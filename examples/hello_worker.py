"""A worker in a few lines. With a server running (`onward up`):

onward worker examples/hello_worker.py:worker
onward submit greet '{"name": "Ada"}' --wait
"""

import asyncio
from datetime import timedelta

from onward import Context, Refused, Worker

worker = Worker()


@worker.service
async def greet(ctx: Context, name: str) -> str:
    """Greet somebody, after some thought."""
    if not name.strip():
        raise Refused("nobody to greet")
    await ctx.progress(0.5, "thinking")
    await asyncio.sleep(0.2)
    return f"hello {name}"


@worker.service(timeout=timedelta(seconds=10), max_retries=1)
def add(numbers: list[float]) -> float:
    """Plain functions run in a thread."""
    return sum(numbers)


if __name__ == "__main__":
    worker.run()
