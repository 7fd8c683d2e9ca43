"""The context of an attempt that a transport brought: what it sends, and effects it records."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Protocol, TypeVar

import msgspec
from pydantic_core import to_json

from onward.client import task_log
from onward.client.api import ServerApi
from onward.client.errors import ProblemError, Unreachable
from onward.client.failures import EffectUnknown
from onward.client.retrying import PASSING
from onward.client.task_log import TaskLog
from onward.pace import PROGRESS_EVERY_S, Pace
from onward.wire.attempts import BeginEffect, EffectView, FinishEffect
from onward.wire.frames import ChunkFrame, LogFrame, ProgressFrame, SocketFrame, TaskFrame
from onward.wire.logs import LogRecord

UNKNOWN_PAUSE_S = 0.1
AGAIN_S = 0.5  # between two tries at a server or ledger that does not answer
LEASE_S = 30.0  # the default of a server

T = TypeVar("T")


class LostTask(asyncio.CancelledError):
    """Another worker has the task by now: what this attempt still does is dropped.

    A CancelledError, so that a handler's `except Exception` cannot swallow it.
    """


class Link(Protocol):
    """The connection that brought the task."""

    @property
    def api(self) -> ServerApi:
        """Where effects are recorded; raises ServerNeeded if the worker has no server URL."""
        ...

    @property
    def keeps_logs(self) -> bool:
        """Whether what a handler logs is taken there."""
        ...

    async def send(self, frame: SocketFrame) -> None: ...


class TaskContext:
    def __init__(self, task: TaskFrame, link: Link, *, unknown_s: float = 0) -> None:
        """`unknown_s`: how long the server may not know the task yet."""
        self.task_id = task.task_id
        self.attempt = task.attempt
        self.key = task.key or task.task_id
        self.cancelled = False
        self.state: Any = None
        self.lost = False
        self.fence = task.fence
        self.traceparent = task.traceparent or None
        self._link = link
        self._known_by = monotonic() + unknown_s
        keeps = link.keeps_logs and task_log.are_kept()
        self.log = TaskLog(self.task_id, self.attempt, self._send_log if keeps else None)
        self._pace: Pace[ProgressFrame] = Pace(self._send, PROGRESS_EVERY_S)

    async def progress(self, value: float, message: str | None = None) -> None:
        """At most ten are sent a second; the newest is always sent."""
        frame = ProgressFrame(
            task_id=self.task_id, progress=min(1.0, max(0.0, value)), message=message
        )
        await self._pace.tell(frame)

    async def flush(self) -> None:
        """Sends what was held back: the handler has ended, and its result comes next."""
        with contextlib.suppress(Exception):
            await self._pace.flush()
        await self.log.close()

    async def emit(self, data: Any) -> None:
        await self._send(ChunkFrame(task_id=self.task_id, data=msgspec.Raw(to_json(data))))

    async def once(
        self, name: str, effect: Callable[[], Any], *, repeat_unknown: bool = False
    ) -> Any:
        """Returns the value as JSON decodes it, the first time too: a handler that works at its
        first attempt must not get another type at its second.
        """
        begun = await self._begin(name)
        if begun.state == "done":
            return begun.value
        if begun.state == "unknown" and not repeat_unknown:
            raise EffectUnknown(
                f"{name!r} was begun by an earlier attempt, and it is not known whether it happened"
            )
        try:
            value = effect()
            if inspect.isawaitable(value):
                value = await value
        except Exception:
            # The exception means that it did not happen. After a cancellation that is not known, so
            # the effect stays begun.
            await self._take_back(name)
            raise
        result = to_json(value)
        fence = begun.fence if isinstance(begun.fence, int) else self.fence
        # It has happened, and is recorded even if the task is canceled or lost by now.
        await asyncio.shield(self._finish(name, result, fence))
        return msgspec.json.decode(result)

    async def _begin(self, name: str) -> EffectView:
        api = self._link.api
        tries = 0

        async def begin() -> EffectView:
            nonlocal tries
            tries += 1
            body = BeginEffect(fence=self.fence)
            return await api.call(EffectView, "POST", *self._path(name), body=body)

        while True:
            try:
                begun = await self._retried(begin)
            except Unreachable:
                # The server may have recorded it and only the responses were lost. The effect has
                # not begun, so the record goes: else the next attempt would see it as unknown.
                await self._take_back(name)
                raise
            except ProblemError as error:
                if error.status != 404 or monotonic() > self._known_by:
                    raise _lost_or(error) from error
                await asyncio.sleep(UNKNOWN_PAUSE_S)
            else:
                # After a second try, it may be the first request, whose response was lost, that
                # recorded it.
                return EffectView(state="begun") if tries > 1 and begun.own else begun

    async def _finish(self, name: str, value: bytes, fence: int) -> None:
        api = self._link.api
        body = FinishEffect(fence=fence, value=msgspec.Raw(value))
        try:
            await self._retried(lambda: api.tell("PUT", *self._path(name), body=body))
        except ProblemError as error:
            raise _lost_or(error) from error

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """Tries again while the server or its ledger does not answer, for the time of a lease."""
        until = monotonic() + LEASE_S
        while True:
            try:
                return await call()
            except (Unreachable, ProblemError) as error:
                passing = isinstance(error, Unreachable) or error.code in PASSING
                if not passing or monotonic() > until:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _take_back(self, name: str) -> None:
        # If this fails too, the effect stays begun: a person must look at it, which is safe.
        with contextlib.suppress(Unreachable, ProblemError):
            await self._link.api.tell("DELETE", *self._path(name), fence=self.fence)

    def _path(self, name: str) -> tuple[str, ...]:
        return "tasks", self.task_id, "effects", name

    async def _send_log(self, lines: Sequence[LogRecord]) -> None:
        await self._send(LogFrame(task_id=self.task_id, records=[*lines]))

    async def _send(self, frame: SocketFrame) -> None:
        if self.lost:
            raise LostTask("the task was taken back")
        await self._link.send(frame)


def _lost_or(error: ProblemError) -> BaseException:
    return LostTask(str(error)) if error.status == 409 else error
