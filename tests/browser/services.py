"""What the worker beside the browser tests can do: fail, until it is given what it wants."""

from __future__ import annotations

from typing import Any

from onward import Refused, Worker

worker = Worker(id="tester")


@worker.service
async def picky(payload: Any) -> Any:
    if not (isinstance(payload, dict) and payload.get("good")):
        message = payload.get("message") if isinstance(payload, dict) else None
        raise Refused(message or "this is not good")
    return {"thanks": True}
