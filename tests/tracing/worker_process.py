"""A worker in a process of its own: its services make a span each, and set up nothing."""

from __future__ import annotations

import asyncio
import sys

from opentelemetry import trace

from onward import Context, Refused, Worker

tracer = trace.get_tracer("worker")
worker = Worker(sys.argv[1], concurrency=4)


@worker.service
async def greet(name: str) -> str:
    with tracer.start_as_current_span("inside greet"):
        await asyncio.sleep(0)
        return f"hello {name}"


@worker.service
def greet_plainly(name: str) -> str:
    with tracer.start_as_current_span("inside greet_plainly"):
        return f"hello {name}"


@worker.service
async def stay(ctx: Context) -> int:
    """At its first attempt it does not come back."""
    with tracer.start_as_current_span(f"inside stay {ctx.attempt}"):
        pass
    if ctx.attempt == 1:
        await asyncio.Event().wait()
    return ctx.attempt


@worker.service
async def refuse(why: str) -> None:
    raise Refused(why)


if __name__ == "__main__":
    worker.run()
