"""Concurrent submissions of one process share a request, without a timer.

The first goes at once, by itself; those that come while it is under way go together with the next
one. Each call gets its own task, or its own error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from onward.client.errors import problem_of
from onward.client.retrying import new_key
from onward.tracing import outgoing
from onward.wire.batches import HandedIn, HandedInAll
from onward.wire.tasks import TaskView

if TYPE_CHECKING:
    from onward.client.api import ServerApi

MOST = 1_000  # in one request
MOST_BYTES = 4 << 20
LARGE = 256 << 10  # goes by itself: its upload would keep the others waiting


class _Waiting(NamedTuple):
    body: bytes
    key: str
    future: asyncio.Future[TaskView]


class Coalesced:
    def __init__(self, api: ServerApi) -> None:
        self._api = api
        self._waiting: deque[_Waiting] = deque()
        self._drain: asyncio.Task[None] | None = None

    async def submit(self, body: dict[str, Any], key: str) -> TaskView:
        from onward.client.api import encode

        text = encode({**body, "idempotency_key": key})
        # One that is traced has a place in a trace of its own, which a shared request has not.
        if len(text) > LARGE or outgoing():
            return await self._alone(text, key)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[TaskView] = loop.create_future()
        self._waiting.append(_Waiting(text, key, future))
        if self._drain is None:
            self._drain = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                part = self._next()
                try:
                    await self._send(part)
                except BaseException as error:
                    for one in part:
                        if not one.future.done():
                            one.future.set_exception(_copy(error))
                    if isinstance(error, asyncio.CancelledError):
                        raise
        finally:
            self._drain = None

    def _next(self) -> Sequence[_Waiting]:
        part: list[_Waiting] = []
        room = MOST_BYTES
        while self._waiting and len(part) < MOST:
            room -= len(self._waiting[0].body)
            if part and room < 0:
                break
            one = self._waiting.popleft()
            if not one.future.done():  # else its caller has gone before it was sent
                part.append(one)
        return part

    async def _send(self, part: Sequence[_Waiting]) -> None:
        if not part:
            return
        if len(part) == 1:
            _resolve(part[0], await self._alone(part[0].body, part[0].key))
            return
        body = {"tasks": [msgspec.Raw(one.body) for one in part]}
        # Each of them has a key, so the request may be sent again after a cut.
        found = await self._api.call(
            HandedInAll, "POST", "tasks", "batch", body=body, key=new_key(), full="true"
        )
        for one, item in zip(part, found.items, strict=True):
            _resolve(one, _answer(item))

    async def _alone(self, body: bytes, key: str) -> TaskView:
        return await self._api.call(TaskView, "POST", "tasks", body=msgspec.Raw(body), key=key)


def _answer(item: HandedIn) -> TaskView | Exception:
    if isinstance(item.error, msgspec.UnsetType):
        if isinstance(item.task, msgspec.UnsetType):
            return RuntimeError(f"the server did not show task {item.id}")
        return item.task
    return problem_of(item.error)


def _resolve(one: _Waiting, found: TaskView | Exception) -> None:
    if one.future.done():
        return
    if isinstance(found, Exception):
        one.future.set_exception(found)
    else:
        one.future.set_result(found)


def _copy(error: BaseException) -> BaseException:
    """One exception raised in many callers would collect all their tracebacks."""
    if not isinstance(error, Exception):
        return error
    # Not copy.copy: it would call the class with what is shown, and some take something else.
    copied = type(error).__new__(type(error), *error.args)
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error.__cause__
    return copied
