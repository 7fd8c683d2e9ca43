"""Server-sent events: a response that stays open as long as its reader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, aclosing
from typing import Any

import msgspec
from starlette.responses import StreamingResponse

from onward.native.places import Feed
from onward.native.places import Places as Places

EVENT_STREAM = "text/event-stream"


class EventStream(StreamingResponse):
    """Takes its place just before the status is sent: if there is none, the status is 503."""

    def __init__(self, lines: AsyncIterator[bytes], place: AbstractContextManager[object]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(lines, media_type=EVENT_STREAM, headers=headers)
        self._place = place

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._place:
            await super().__call__(scope, receive, send)


async def lines_of(feed: Feed) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    async with aclosing(feed.events) as events:
        async for event in events:
            if event is None:
                yield b": alive\n\n"
                continue
            id = "" if event.id is None else f"id: {event.id}\n"
            head = f"{id}event: {event.event}\ndata: ".encode()
            yield head + msgspec.json.encode(event.data) + b"\n\n"
