"""What the worker beside the browser tests can do: fail, until it is given what it wants."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from onward import Context, Refused, Worker

worker = Worker(id="tester")
log = logging.getLogger("tester")
released = asyncio.Event()


@worker.service
async def picky(payload: Any) -> Any:
    if not (isinstance(payload, dict) and payload.get("good")):
        message = payload.get("message") if isinstance(payload, dict) else None
        raise Refused(message or "this is not good")
    return {"thanks": True}


@worker.service
async def talker(ctx: Context, payload: Any) -> str:
    """Logs some lines; holds on until it is released, or fails, if it is told to."""
    for number in range(payload.get("lines", 0)):
        log.info("line %d", number)
    if payload.get("fail"):
        raise RuntimeError(f"attempt {ctx.attempt} breaks")
    if payload.get("hold"):
        await released.wait()
        log.info("released")
    return "done"


@worker.service
async def release(payload: Any) -> None:
    released.set()
