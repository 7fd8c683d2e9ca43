"""Services to begin with: an echo, something to watch, and an answer for a group."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import Field

from onward.client.context import Context


async def echo(payload: Any) -> Any:
    """Answer with what was sent."""
    return payload


async def countdown(
    ctx: Context, seconds: Annotated[float, Field(ge=0, le=3600)] = 5
) -> dict[str, float]:
    """Take a while and report progress: something to watch, or to cancel."""
    steps = max(1, int(seconds * 4))
    for step in range(steps):
        await ctx.progress(step / steps, f"{seconds * (1 - step / steps):.1f} s to go")
        await asyncio.sleep(seconds / steps)
    return {"seconds": seconds}


async def answer(payload: Any, ctx: Context) -> Any:
    """Answer a group that has no other worker: a chat gets its last message back, or its data."""
    messages = payload.get("messages") if isinstance(payload, dict) else None
    if not messages:
        return payload.get("data") if isinstance(payload, dict) else payload
    last = messages[-1]
    content = last.get("content") if isinstance(last, dict) else last
    reply = f"You said: {content}" if isinstance(content, str) else content
    if payload.get("stream") and isinstance(reply, str):
        for word in reply.split(" "):
            await ctx.emit(word if reply.startswith(word) else f" {word}")
    return reply
