"""A service that a test plays itself."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from onward.client.worker import Worker


class Fake:
    """What was called of a faked service. Await it to know that tasks reach it."""

    def __init__(
        self, name: str, answer: Any, serve: Callable[[Worker], Coroutine[Any, Any, None]]
    ) -> None:
        self.calls: list[dict[str, Any]] = []  # the arguments of each attempt
        worker = Worker()
        function = answer if callable(answer) else _returning(answer)
        worker.service(name=name)(self._recorded(function))
        self.connected = asyncio.get_running_loop().create_task(serve(worker))

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
