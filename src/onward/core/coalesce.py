"""Group commit: many callers, one store call, no timer.

The first caller makes a flush happen at the end of this turn of the loop; callers who come while a
flush is under way share the next one. So a single caller does not wait, and a thousand share.
A call is bounded in items and in bytes. One bad item never costs its neighbours anything: a call
that fails is made again in halves, until only the bad item is left with its error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, cast

from onward.core.errors import is_away

In = TypeVar("In")
Out = TypeVar("Out")

MOST = 256
MOST_BYTES = 4 << 20
ODD = (BaseException, asyncio.Future)  # replies that are no plain answers
# What travels as one: its items, the future of the replies, and whether that is the reply to a
# single item, a list of all of them, or such a list with errors in their places.
_ONE, _ALL, _EACH = range(3)
_Rider: TypeAlias = tuple[Sequence[In], "asyncio.Future[Any]", int]
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
        self._waiting: deque[_Rider[In]] = deque()
        self._drain: asyncio.Task[None] | None = None

    def one(self, item: In) -> asyncio.Future[Out]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Out] = loop.create_future()
        self._waiting.append(((item,), future, _ONE))
        if self._drain is None:
            self._drain = loop.create_task(self._run())
        return future

    def many(self, items: Sequence[In]) -> Awaitable[list[Out]]:
        """A long list is cut into several calls; the first error in it is raised."""
        return self._several(items, _ALL)

    def each(self, items: Sequence[In]) -> Awaitable[list[Out | Exception]]:
        """The same, with errors in the places of what they are about. For plain replies alone."""
        return cast("Awaitable[list[Out | Exception]]", self._several(items, _EACH))

    def _several(self, items: Sequence[In], how: int) -> Awaitable[list[Out]]:
        loop = asyncio.get_running_loop()
        parts: list[asyncio.Future[list[Out]]] = []
        for part in self._cut(items):
            parts.append(loop.create_future())
            self._waiting.append((part, parts[-1], how))
        if self._drain is None:
            self._drain = loop.create_task(self._run())
        return parts[0] if len(parts) == 1 else self._joined(parts)

    async def _joined(self, parts: Sequence[asyncio.Future[list[Out]]]) -> list[Out]:
        return [reply for part in await asyncio.gather(*parts) for reply in part]

    def _cut(self, items: Sequence[In]) -> list[Sequence[In]]:
        """Into parts that each fit into one call; a single item always does."""
        if 0 < len(items) <= self._most and self._weigh(items) <= MOST_BYTES:
            return [items]
        parts: list[Sequence[In]] = []
        start = total = 0
        for at, size in enumerate(map(self._weigh_one, items)):
            if at > start and (at - start == self._most or total + size > MOST_BYTES):
                parts.append(items[start:at])
                start, total = at, 0
            total += size
        return [*parts, items[start:]] if items else parts

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._flush_once()
        finally:
            self._drain = None

    async def _flush_once(self) -> None:
        batch, riders = self._next()
        try:
            replies = await self._flush(batch)
        except BaseException as error:
            for _, future, _ in riders:
                if not future.done():
                    future.set_exception(_copy(error))
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        self._answer(riders, replies)

    def _answer(self, riders: Sequence[_Rider[In]], replies: Sequence[Any]) -> None:
        # Nearly all batches have plain replies only: their few types are looked at, not each reply.
        odd = any(issubclass(type_, ODD) for type_ in set(map(type, replies)))
        at = 0
        for items, future, how in riders:
            if how == _EACH and not future.done():
                future.set_result(list(replies[at : at + len(items)]))
            elif how != _ONE:
                _answer_all(future, replies[at : at + len(items)], odd)
            elif odd and isinstance(replies[at], ODD):
                _as_future(replies[at]).add_done_callback(partial(_forward, future))
            elif not future.done():  # its caller may have gone away; the work is done
                future.set_result(replies[at])
            at += len(items)

    def _next(self) -> tuple[list[In], list[_Rider[In]]]:
        """As many as fit into one call; the first always does."""
        batch: list[In] = []
        riders: list[_Rider[In]] = []
        waiting, most = self._waiting, self._most
        while waiting and (not batch or len(batch) + len(waiting[0][0]) <= most):
            rider = waiting.popleft()
            riders.append(rider)
            batch += rider[0]
        if len(riders) > 1 and self._weigh(batch) > MOST_BYTES:
            fit = self._fit(riders)
            waiting.extendleft(reversed(riders[fit:]))
            del riders[fit:]
            batch = [item for items, _, _ in riders for item in items]
        return batch, riders

    def _fit(self, riders: Sequence[_Rider[In]]) -> int:
        """How many of them, from the first on, one call takes in bytes; at least one."""
        room = MOST_BYTES
        for at, (items, _, _) in enumerate(riders):
            room -= self._weigh(items)
            if at and room < 0:
                return at
        return len(riders)

    def _weigh(self, items: Sequence[In]) -> int:
        if self._size is None:
            return 0
        try:
            return sum(map(self._size, items))
        except Exception:  # one of them is so odd that it will be refused
            return sum(map(self._weigh_one, items))

    def _weigh_one(self, item: In) -> int:
        try:
            return 0 if self._size is None else self._size(item)
        except Exception:  # refused later, by the code that knows why
            return 0


async def call_in_halves(flush: Flush[In, Out], items: Sequence[In]) -> list[Out | Exception]:
    """One call for all of them; if it fails for what one of them is, the others go without it.

    Nothing may have been done by a call that raises. A ledger that is away fails them all.
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


def _answer_all(future: asyncio.Future[Any], replies: Sequence[Any], odd: bool) -> None:
    """The replies of one list: those that come later are waited for, the first error is raised."""
    if odd and any(isinstance(reply, ODD) for reply in replies):
        later = asyncio.gather(*map(_as_future, replies))
        later.add_done_callback(partial(_forward, future))
    elif not future.done():
        future.set_result(replies)


def _as_future(reply: Any) -> asyncio.Future[Any]:
    if isinstance(reply, asyncio.Future):
        return reply
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if isinstance(reply, BaseException):
        future.set_exception(reply)
    else:
        future.set_result(reply)
    return future


def _forward(future: asyncio.Future[Any], done: asyncio.Future[Any]) -> None:
    if future.done():
        return
    if done.cancelled():
        future.cancel()
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


def _copy(error: BaseException) -> Exception:
    """One exception object raised in many callers would collect all their tracebacks."""
    try:
        copied = type(error)(*error.args)
    except TypeError:
        return cast("Exception", error)
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error.__cause__
    return cast("Exception", copied)
