"""Group commit: many callers, one store call, no timer.

The first caller makes a flush happen at the end of this turn of the loop; callers who come while a
flush is under way share the next one. So one caller alone waits for nobody, and a thousand share.
A call is bounded in items and in bytes. One bad item never costs its neighbours anything: a call
that fails is made again in halves, until only the bad item is left with its error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar, cast

from onward.core.errors import is_away

In = TypeVar("In")
Out = TypeVar("Out")

MOST = 256
MOST_BYTES = 4 << 20
Flush = Callable[[Sequence[In]], Awaitable[Sequence["Out | Exception | asyncio.Future[Out]"]]]


class Coalescer(Generic[In, Out]):
    """`flush` answers each item in its place.

    A reply that is an exception, or a future, concerns its own caller alone. If `flush` raises,
    nothing may have been done, for it is called again with halves; `whole`: it is not.
    """

    def __init__(
        self,
        flush: Flush[In, Out],
        *,
        most: int = MOST,
        size: Callable[[In], int] | None = None,  # in bytes, about
        whole: bool = False,
    ) -> None:
        self._flush = flush if whole else partial(call_in_halves, flush)
        self._most = most
        self._size = size
        self._waiting: deque[tuple[In, asyncio.Future[Out]]] = deque()
        self._drain: asyncio.Task[None] | None = None

    def one(self, item: In) -> asyncio.Future[Out]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Out] = loop.create_future()
        self._waiting.append((item, future))
        if self._drain is None:
            self._drain = loop.create_task(self._run())
        return future

    def many(self, items: Sequence[In]) -> asyncio.Future[list[Out]]:
        """A long list is cut into several calls; the first error in it is raised."""
        return asyncio.gather(*[self.one(item) for item in items])

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._flush_once()
        finally:
            self._drain = None

    async def _flush_once(self) -> None:
        batch, futures = self._next()
        try:
            replies = await self._flush(batch)
        except BaseException as error:
            for future in futures:
                if not future.done():
                    future.set_exception(_copy(error))
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        for future, reply in zip(futures, replies, strict=True):
            if isinstance(reply, asyncio.Future):
                reply.add_done_callback(partial(_forward, future))
            else:
                _answer(future, reply)

    def _next(self) -> tuple[list[In], list[asyncio.Future[Out]]]:
        batch: list[In] = []
        futures: list[asyncio.Future[Out]] = []
        room = MOST_BYTES
        while self._waiting and len(batch) < self._most:
            item, future = self._waiting[0]
            size = self._weigh(item)
            if batch and size > room:
                break
            room -= size
            self._waiting.popleft()
            batch.append(item)
            futures.append(future)
        return batch, futures

    def _weigh(self, item: In) -> int:
        try:
            return 0 if self._size is None else self._size(item)
        except Exception:  # so odd that it will be refused, by whoever knows why
            return 0


async def call_in_halves(flush: Flush[In, Out], items: Sequence[In]) -> list[Out | Exception]:
    """One call for all of them; if it fails for what one of them is, the others go without it.

    Nothing may have been done by a call that raises. A ledger that is away is everybody's error.
    """
    if not items:
        return []
    try:
        return cast("list[Out | Exception]", [*await flush(items)])
    except Exception as error:
        if is_away(error) or len(items) < 2:
            return [_copy(error) for _ in items]
    middle = len(items) // 2
    halves = items[:middle], items[middle:]
    return [reply for half in halves for reply in await call_in_halves(flush, half)]


def _answer(future: asyncio.Future[Out], reply: Out | BaseException) -> None:
    if future.done():
        return  # its caller may have gone away; the work is done all the same
    if isinstance(reply, BaseException):
        future.set_exception(reply)
    else:
        future.set_result(reply)


def _forward(future: asyncio.Future[Out], done: asyncio.Future[Out]) -> None:
    if done.cancelled():
        future.cancel()
    else:
        _answer(future, done.exception() or done.result())


def _copy(error: BaseException) -> Exception:
    """One exception object raised in many callers would collect all their tracebacks."""
    try:
        copied = type(error)(*error.args)
    except TypeError:
        return cast("Exception", error)
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error.__cause__
    return cast("Exception", copied)
