"""A service that a test plays itself, and the context of a handler that a test calls itself."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic

import msgspec
from pydantic_core import to_json
from typing_extensions import TypeVar

from onward.client.context import DONE
from onward.client.worker import Worker

StateT = TypeVar("StateT", default=Any)


class Fake:
    """What was called of a faked service. Await it to know that tasks reach it."""

    def __init__(
        self, name: str, answer: Any, serve: Callable[[Worker], Coroutine[Any, Any, None]]
    ) -> None:
        self.calls: list[dict[str, Any]] = []  # the arguments of each attempt
        worker = Worker()
        function = answer if callable(answer) else _returning(answer)
        worker.service(name=name)(self._recorded(function))
        loop = asyncio.get_running_loop()
        self.connected: asyncio.Task[None] = loop.create_task(serve(worker))

    def __await__(self) -> Generator[Any, None, Fake]:
        yield from self.connected.__await__()
        return self

    def _recorded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def note(arguments: dict[str, Any]) -> None:
            named = {name: value for name, value in arguments.items() if name != "ctx"}
            self.calls.append(named)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(**arguments: Any) -> Any:
                note(arguments)
                return await function(**arguments)

            return awaited

        @functools.wraps(function)
        def plain(**arguments: Any) -> Any:
            note(arguments)
            return function(**arguments)

        return plain


def _returning(value: Any) -> Callable[[Any], Any]:
    def answer(payload: Any) -> Any:
        return value

    return answer


class FakeContext(Generic[StateT]):
    """A `ctx` for a handler that a test calls itself, without a server.

    `state` is what the worker's lifespan would yield. What the handler reports is in `progressed`
    and `emitted`, what it did once in `effects`. Call a plain `def` from a plain test, or in a
    thread, as a worker does: where an event loop runs, `once` is to be awaited.
    """

    state: StateT

    def __init__(
        self,
        state: StateT = None,  # type: ignore[assignment]  # as without a lifespan
        *,
        task_id: str = "task-1",
        attempt: int = 1,
        key: str = "key-1",
    ) -> None:
        self.state = state
        self.task_id: str = task_id
        self.attempt: int = attempt
        self.key: str = key
        self.cancelled: bool = False
        self.progressed: list[tuple[float, str | None]] = []
        self.emitted: list[Any] = []
        self.effects: dict[str, Any] = {}

    def progress(self, value: float, message: str | None = None) -> Awaitable[None]:
        """Kept in `progressed`."""
        self.progressed.append((value, message))
        return DONE

    def emit(self, data: Any) -> Awaitable[None]:
        """Kept in `emitted`."""
        self.emitted.append(data)
        return DONE

    def once(self, name: str, effect: Callable[[], Any], *, repeat_unknown: bool = False) -> Any:
        """Once for each name; what it returned is kept in `effects`, as JSON decodes it."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if name not in self.effects:
                self.effects[name] = _as_json(effect())
            return self.effects[name]
        return self._awaited_once(name, effect)

    async def _awaited_once(self, name: str, effect: Callable[[], Any]) -> Any:
        if name not in self.effects:
            value = effect()
            self.effects[name] = _as_json(await value if inspect.isawaitable(value) else value)
        return self.effects[name]


def _as_json(value: Any) -> Any:
    """As a ledger returns it."""
    return msgspec.json.decode(to_json(value))
