"""Answers that stay open: server-sent events, so many listeners at a time and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from starlette.responses import StreamingResponse

from onward.core.errors import TooBusy


class Places:
    """How many may listen at a time. A place is taken within a `with`."""

    def __init__(self, most: int, full: str) -> None:
        self.most = most
        self._full = full
        self.taken = 0

    @contextmanager
    def take(self) -> Iterator[None]:
        # Compared and counted in one turn: with an await in between, all who come at once get in.
        if self.taken >= self.most:
            raise TooBusy(self._full, hint="try again shortly")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


class EventStream(StreamingResponse):
    """Takes its place just before the status goes out, so that a full house is refused with one."""

    def __init__(self, lines: AsyncIterator[bytes], place: AbstractContextManager[object]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(lines, media_type="text/event-stream", headers=headers)
        self._place = place

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._place:
            await super().__call__(scope, receive, send)
