"""What a handler can do besides returning: one `Context`, right in `def` and in `async def`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from queue import SimpleQueue
from typing import Any, Protocol

from typing_extensions import TypeVar

T = TypeVar("T")
StateT_co = TypeVar("StateT_co", covariant=True, default=Any)


class Context(Protocol[StateT_co]):
    """The task that a handler works on. A parameter called `ctx`, or of this type, receives it.

    In an `async def`, await what these methods return. In a plain `def`, which runs in a thread,
    they return when they are done, and there is nothing to await. `Context[Pool]` says what the
    worker's lifespan yields.
    """

    task_id: str
    attempt: int
    key: str
    """Stable over attempts: pass it to services that deduplicate by it."""

    @property
    def state(self) -> StateT_co:
        """What the worker's lifespan yielded; None without one."""
        ...

    @property
    def cancelled(self) -> bool:
        """The task was canceled. A coroutine is interrupted; a thread has to look here."""
        ...

    def progress(self, value: float, message: str | None = None) -> Awaitable[None]:
        """How far it is, 0 to 1. At most ten are sent a second; the newest is always sent."""
        ...

    def emit(self, data: Any) -> Awaitable[None]:
        """Partial output, seen at once by those who follow the task."""
        ...

    def once(self, name: str, effect: Callable[[], Any], *, repeat_unknown: bool = False) -> Any:
        """Do something to the outside world once per task, over retry, reclaim and replay.

        What it returned comes back as JSON decodes it, the first time and each time after it. If
        an earlier attempt began it and recorded no end, this raises EffectUnknown, unless
        `repeat_unknown` allows to do it again.
        """
        ...


class _Done:
    """What was waited for already, in a thread; an await of it returns at once."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


DONE = _Done()


class PlainContext:
    """The context of a plain function in a thread: its calls return when they are done."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop
        self.task_id: str = context.task_id
        self.attempt: int = context.attempt
        self.key: str = context.key

    @property
    def state(self) -> Any:
        return self._context.state

    @property
    def cancelled(self) -> bool:
        return self._context.cancelled

    def progress(self, value: float, message: str | None = None) -> Any:
        return self._wait(self._context.progress(value, message))

    def emit(self, data: Any) -> Any:
        return self._wait(self._context.emit(data))

    def once(self, name: str, effect: Callable[[], Any], *, repeat_unknown: bool = False) -> Any:
        """Begun and finished by the event loop; the effect itself runs in this thread."""
        turns: SimpleQueue[asyncio.Future[Any] | None] = SimpleQueue()

        async def elsewhere() -> Any:
            ran = self._loop.create_future()
            turns.put(ran)
            value, error = await ran
            if error is not None:
                raise error
            return value

        noted = asyncio.run_coroutine_threadsafe(
            awaited(self._context.once(name, elsewhere, repeat_unknown=repeat_unknown)), self._loop
        )
        noted.add_done_callback(lambda _: turns.put(None))
        ran = turns.get()
        if ran is not None:
            outcome: tuple[Any, Exception | None]
            try:
                outcome = effect(), None
            except Exception as error:
                outcome = None, error
            except BaseException:  # SystemExit would end the loop: here it only ends the handler
                self._loop.call_soon_threadsafe(ran.cancel)
                raise
            self._loop.call_soon_threadsafe(_set_result, ran, outcome)
        return noted.result()

    def _wait(self, work: Awaitable[None]) -> _Done:
        asyncio.run_coroutine_threadsafe(awaited(work), self._loop).result()
        return DONE


async def awaited(work: Awaitable[T]) -> T:
    """As `run_coroutine_threadsafe` wants it."""
    return await work


def _set_result(ran: asyncio.Future[Any], outcome: Any) -> None:
    if not ran.done():  # canceled meanwhile
        ran.set_result(outcome)
