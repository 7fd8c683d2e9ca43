"""Responses that stay open: server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, aclosing
from typing import Any

import msgspec
from starlette.responses import StreamingResponse

from onward.wire.live import ServerEvent

EVENT_STREAM = "text/event-stream"


class EventStream(StreamingResponse):
    """Takes its place just before the status goes out, so that a full house is refused with one."""

    def __init__(self, lines: AsyncIterator[bytes], place: AbstractContextManager[object]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(lines, media_type=EVENT_STREAM, headers=headers)
        self._place = place

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._place:
            await super().__call__(scope, receive, send)


async def written(events: AsyncGenerator[ServerEvent, None]) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    async with aclosing(events):
        async for one in events:
            number = "" if one.id is None else f"id: {one.id}\n"
            data = msgspec.json.encode(one.data).decode()
            yield f"{number}event: {one.event}\ndata: {data}\n\n".encode()
