"""Group commit: many callers, one store call, no timer.

Whoever comes first makes a flush happen at the end of this turn of the loop; whoever comes while a
flush is under way rides the next one. So one caller alone waits for nobody, and a thousand share.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


class Coalescer(Generic[In, Out]):
    def __init__(
        self, flush: Callable[[Sequence[In]], Awaitable[Sequence[Out]]], *, most: int = 256
    ) -> None:
        self._flush = flush
        self._most = most
        self._waiting: deque[tuple[Sequence[In], asyncio.Future[Sequence[Out]]]] = deque()
        self._drain: asyncio.Task[None] | None = None

    async def one(self, item: In) -> Out:
        return (await self.many((item,)))[0]

    def many(self, items: Sequence[In]) -> asyncio.Future[Sequence[Out]]:
        """One future a list: a list travels, and is answered, whole."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[Out]] = loop.create_future()
        self._waiting.append((items, future))
        if self._drain is None:
            self._drain = loop.create_task(self._run())
        return future

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._flush_once()
        finally:
            self._drain = None

    async def _flush_once(self) -> None:
        batch: list[In] = []
        riders: list[tuple[int, asyncio.Future[Sequence[Out]]]] = []
        while self._waiting and (not batch or len(batch) + len(self._waiting[0][0]) <= self._most):
            items, future = self._waiting.popleft()
            batch.extend(items)
            riders.append((len(items), future))
        try:
            replies = await self._flush(batch)
        except BaseException as error:
            for _, future in riders:
                if not future.done():
                    future.set_exception(_apart(error))
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        at = 0
        for count, future in riders:
            if not future.done():  # its caller may have gone away; the work is done all the same
                future.set_result(replies[at : at + count])
            at += count


def _apart(error: BaseException) -> BaseException:
    """One exception object raised in many callers would collect all their tracebacks."""
    try:
        apart = type(error)(*error.args)
    except TypeError:
        return error
    apart.__dict__.update(error.__dict__)
    apart.__cause__ = error.__cause__
    return apart
