"""A chat worker in OpenAI's words: it calls the first tool that it has, and says what came back.
And the services that MCP's conformance suite asks for by name.
"""

from __future__ import annotations

import asyncio
from typing import Any

from onward import Context, Refused, Worker

worker = Worker()
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
HEAD = {"id": "chatcmpl-1", "created": 1, "model": "llama"}


@worker.group("llama")
async def answer(payload: Any, ctx: Context) -> Any:
    *_, last = payload["messages"]
    if payload.get("tools") and last["role"] != "tool":
        function = {
            "name": payload["tools"][0]["function"]["name"],
            "arguments": '{"a": 1, "b": 2}',
        }
        call = {"id": "call_1", "type": "function", "function": function}
        message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
        delta, reason = {**message, "tool_calls": [{"index": 0, **call}]}, "tool_calls"
    else:
        text = f"It is {last['content']}." if last["role"] == "tool" else "Hello there."
        message = delta = {"role": "assistant", "content": text}
        reason = "stop"
    if payload.get("stream"):
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        await ctx.emit({**HEAD, "object": "chat.completion.chunk", "choices": [choice]})
        last_choice = {"index": 0, "delta": {}, "finish_reason": reason}
        await ctx.emit({**HEAD, "object": "chat.completion.chunk", "choices": [last_choice]})
    choices = [{"index": 0, "message": message, "finish_reason": reason}]
    return {**HEAD, "object": "chat.completion", "choices": choices, "usage": USAGE}


@worker.service
async def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first one
        b: the second one
    """
    return a + b


@worker.service
async def test_simple_text() -> str:
    """Returns a text."""
    return "This is a simple text response for testing."


@worker.service
async def test_error_handling() -> None:
    """Always fails."""
    raise Refused("This tool intentionally returns an error for testing")


@worker.service
async def test_tool_with_progress(ctx: Context) -> str:
    """Reports how far it is."""
    for progress in (0.0, 0.5, 1.0):
        await ctx.progress(progress)
        await asyncio.sleep(0.05)
    return "done"


@worker.service
async def test_reconnection() -> str:
    """Takes long enough for a client to lose its connection."""
    await asyncio.sleep(0.3)
    return "Reconnection test completed successfully"
