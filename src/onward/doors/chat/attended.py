"""A response that is worth its work only while its caller is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from starlette.responses import Response


class Attended(Response):
    """Made while the caller waits. If the caller hangs up first, `abandon` is called instead.

    What ends otherwise, with the server that stops, abandons nothing.
    """

    def __init__(
        self,
        respond: Callable[[], Awaitable[Response]],
        abandon: Callable[[], Awaitable[None]],
        place: AbstractContextManager[object],
    ) -> None:
        super().__init__()
        self._respond = respond
        self._abandon = abandon
        self._place = place

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        hung_up = asyncio.ensure_future(_hung_up(receive))

        async def disconnected() -> Any:  # there is one reader of `receive`
            return await asyncio.shield(hung_up)

        async def write() -> None:
            await (await self._respond())(scope, disconnected, send)

        with self._place:
            writing = asyncio.ensure_future(write())
            try:
                await asyncio.wait((hung_up, writing), return_when=asyncio.FIRST_COMPLETED)
                if writing.done():
                    writing.result()
                else:
                    # Also the end of what was written: then the task is over, and nothing happens.
                    await self._abandon()
            finally:
                for task in (hung_up, writing):
                    task.cancel()
                    with suppress(asyncio.CancelledError, Exception):
                        await task


async def _hung_up(receive: Any) -> Any:
    while (message := await receive())["type"] != "http.disconnect":
        pass
    return message
