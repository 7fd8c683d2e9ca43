"""What a handler can do while it runs: tell progress, emit parts, act once on the world outside."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import msgspec
from pydantic_core import to_json

from onward.client import frames
from onward.client.errors import ProblemError, Unreachable
from onward.client.wire import PASSING, Wire
from onward.pace import PROGRESS_EVERY_S, Pace
from onward.services.function import EffectUnknown
from onward.wire.attempts import BeginEffect, EffectView, FinishEffect

UNKNOWN_PAUSE_S = 0.1
AGAIN_S = 0.5  # between two tries at a server or ledger that is away
LEASE_S = 30.0  # as a server has it by default

T = TypeVar("T")


class LostTask(asyncio.CancelledError):
    """Another worker has the task by now: what this attempt still does is of no use.

    A CancelledError, so that a handler's `except Exception` cannot carry on regardless.
    """


class Link(Protocol):
    """The connection that brought the task."""

    @property
    def wire(self) -> Wire:
        """Where effects are noted; raises ServerNeeded if no server was named."""
        ...

    async def send(self, frame: frames.Frame) -> None: ...


class TaskContext:
    def __init__(self, task: frames.Task, link: Link, *, unknown_s: float = 0) -> None:
        """For so long the server may not have heard of the task yet."""
        self.task_id = task.task_id
        self.attempt = task.attempt
        self.key = task.key or task.task_id
        self.cancelled = False
        self.lost = False
        self.fence = task.fence
        self.traceparent = task.traceparent
        self._link = link
        self._known_by = monotonic() + unknown_s
        self._pace: Pace[frames.Progress] = Pace(self._send, PROGRESS_EVERY_S)

    async def progress(self, value: float, message: str | None = None) -> None:
        """At most ten go out a second; the newest always does."""
        frame = frames.Progress(
            task_id=self.task_id, progress=min(1.0, max(0.0, value)), message=message
        )
        await self._pace.tell(frame)

    async def flush(self) -> None:
        """Progress that was held back goes out now: the handler has ended, and its result waits."""
        with contextlib.suppress(Exception):
            await self._pace.flush()

    async def emit(self, data: Any) -> None:
        await self._send(frames.Chunk(task_id=self.task_id, data=msgspec.Raw(to_json(data))))

    async def once(
        self, name: str, effect: Callable[[], Any], *, repeat_unknown: bool = False
    ) -> Any:
        """The value comes back as JSON has it, the first time too: a handler that works at its
        first attempt must not meet another type at its second.
        """
        begun = await self._begin(name)
        if begun.state == "done":
            return begun.value
        if begun.state == "unknown" and not repeat_unknown:
            raise EffectUnknown(
                f"{name!r} was begun by an earlier attempt, and nobody knows whether it happened"
            )
        try:
            value = effect()
            if inspect.isawaitable(value):
                value = await value
        except Exception:
            # It says that it did not happen. A cancellation says nothing: then it stays begun.
            await self._take_back(name)
            raise
        encoded = to_json(value)
        fence = begun.fence if isinstance(begun.fence, int) else self.fence
        # It has happened, and is noted even if the task is canceled or lost by now.
        await asyncio.shield(self._finish(name, encoded, fence))
        return msgspec.json.decode(encoded)

    async def _begin(self, name: str) -> EffectView:
        wire = self._link.wire
        asked = 0

        async def ask() -> EffectView:
            nonlocal asked
            asked += 1
            body = BeginEffect(fence=self.fence)
            return await wire.call(EffectView, "POST", self._path(name), body=body)

        while True:
            try:
                begun = await self._again(ask)
            except Unreachable:
                # Perhaps it was noted and only the answers lost. As it has not begun, the note
                # goes, or the next attempt would think that it might have.
                await self._take_back(name)
                raise
            except ProblemError as error:
                if error.status != 404 or monotonic() > self._known_by:
                    raise _lost_or(error) from error
                await asyncio.sleep(UNKNOWN_PAUSE_S)
            else:
                # Asked twice, it may be noted by the first request, of which the answer was lost.
                return EffectView(state="begun") if asked > 1 and begun.own else begun

    async def _finish(self, name: str, value: bytes, fence: int) -> None:
        wire = self._link.wire
        body = FinishEffect(fence=fence, value=msgspec.Raw(value))
        try:
            await self._again(lambda: wire.tell(wire.request("PUT", self._path(name), body=body)))
        except ProblemError as error:
            raise _lost_or(error) from error

    async def _again(self, ask: Callable[[], Awaitable[T]]) -> T:
        """A server or ledger that is away is asked again, for as long as a lease lasts."""
        until = monotonic() + LEASE_S
        while True:
            try:
                return await ask()
            except (Unreachable, ProblemError) as error:
                passing = isinstance(error, Unreachable) or error.code in PASSING
                if not passing or monotonic() > until:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _take_back(self, name: str) -> None:
        # Should this fail too, the effect stays begun: a person must look, which is the safe side.
        with contextlib.suppress(Unreachable, ProblemError):
            wire = self._link.wire
            await wire.tell(wire.request("DELETE", self._path(name), fence=self.fence))

    def _path(self, name: str) -> str:
        return f"/api/v2/tasks/{quote(self.task_id, safe='')}/effects/{quote(name, safe='')}"

    async def _send(self, frame: frames.Frame) -> None:
        if self.lost:
            raise LostTask("the task was taken back")
        await self._link.send(frame)


def _lost_or(error: ProblemError) -> BaseException:
    return LostTask(str(error)) if error.status == 409 else error
