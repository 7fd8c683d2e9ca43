"""The machine with the GPU. It needs no port and no public address: it connects to the server.

The model is made up; where it is loaded and asked, yours would be.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from onward import Context, Worker


class Model:
    """Stands in for a language model: it answers word by word, and slowly."""

    async def tokens(self, messages: list[dict[str, str]]) -> AsyncIterator[str]:
        question = messages[-1]["content"]
        for word in f"You asked: {question} I have thought about it for a while.".split(" "):
            await asyncio.sleep(0.02)
            yield word + " "


@asynccontextmanager
async def load(worker: Worker) -> AsyncGenerator[Model, None]:
    yield Model()  # minutes, with a real one; no task comes before it is there


# As many at a time as fit on the GPU.
worker = Worker(group="llama", concurrency=2, lifespan=load)


@worker.group()
async def answer(ctx: Context[Model], payload: dict[str, Any]) -> str:
    words: list[str] = []
    async for token in ctx.state.tokens(payload["messages"]):
        words.append(token)
        await ctx.emit(token)
    return "".join(words)
