"""Workers in this process: Python callables, async and plain."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from pydantic_core import to_json

from onward.client.failures import MEANT, EffectUnknown
from onward.client.service import Service
from onward.client.task_log import TaskLog
from onward.core.contract import Effect
from onward.core.dispatch import Dispatcher
from onward.core.errors import LedgerUnavailable
from onward.core.outcome import Failed, Outcome, Released, Succeeded
from onward.core.task import Claimed, Json, TaskId, encode
from onward.core.trace import handed_on
from onward.faults import Fault, unknown_service
from onward.pace import PROGRESS_EVERY_S, Pace
from onward.tracing import handling
from onward.wire.logs import LogRecord
from onward.workers.roster import group_of
from onward.workers.task_logs import TaskLogs

T = TypeVar("T")

CANCELED = Fault(kind="Canceled", message="stopped because it was asked to", retryable=False)
CANCELED_ITSELF = Fault(
    kind="CancelledError", message="the handler waited for something canceled", retryable=False
)
AGAIN_S = 0.5  # between two tries at a ledger that does not answer


class LocalContext:
    def __init__(self, dispatcher: Dispatcher, task: Claimed) -> None:
        self._dispatcher = dispatcher
        self._effects = dispatcher.backend.effects
        self._task = task
        self.task_id = task.id
        self.attempt = task.attempt
        self.key = task.key or task.id
        self.cancelled = False
        self.state: Any = None
        self._pace: Pace[Json] | None = None  # most tasks report no progress

    async def progress(self, value: float, message: str | None = None) -> None:
        """At most ten are written a second; the newest is always written."""
        self._pace = self._pace or Pace(self._write_progress, PROGRESS_EVERY_S)
        await self._pace.tell(encode({"progress": min(max(value, 0.0), 1.0), "message": message}))

    @property
    def has_progress(self) -> bool:
        """Whether it has reported any progress."""
        return self._pace is not None

    async def finish(self) -> None:
        """Writes the last progress, if it was held back."""
        if self._pace is not None:
            await self._pace.flush()

    def drop(self) -> None:
        if self._pace is not None:
            self._pace.stop()

    async def emit(self, data: Any) -> None:
        await self._dispatcher.note(self._task, ("task.chunk", to_json(data).decode()))

    async def _write_progress(self, progress: Json) -> None:
        with suppress(LedgerUnavailable):  # no reason to lose the attempt
            note = ("task.progress", progress)
            await self._dispatcher.note(self._task, note, progress=progress)

    async def once(
        self, name: str, effect: Callable[[], Any], *, repeat_unknown: bool = False
    ) -> Any:
        before = await self._begin(name)
        if before is not None and before.value is not None:
            return msgspec.json.decode(before.value)
        if before is not None and not repeat_unknown:
            raise EffectUnknown(
                f"effect {name!r} was begun by an earlier attempt, and its outcome is not known"
            )
        try:
            value = effect()
            if inspect.isawaitable(value):
                value = await value
        except Exception:  # not when it was cancelled: then it is not known how far it got
            with suppress(LedgerUnavailable):  # then it stays begun, which is safe
                await self._effects.undo(self._task, name)
            raise
        result = to_json(value).decode()
        fence = self._task.fence if before is None else before.fence
        # It has happened, and is recorded even if the task is canceled or lost by now.
        await asyncio.shield(
            self._retried(lambda: self._effects.finish(self._task, name, result, fence=fence))
        )
        return msgspec.json.decode(result)  # as the next attempt reads it

    async def _begin(self, name: str) -> Effect | None:
        """What an earlier attempt has recorded; None: this attempt runs the effect."""
        tries = 0

        async def begin() -> Effect | None:
            nonlocal tries
            tries += 1
            return await self._effects.begin(self._task, name, now=self._dispatcher.clock.now())

        before = await self._retried(begin)
        # After a second try, it may be the first one, whose reply was lost, that recorded it.
        if tries > 1 and before == Effect(self.task_id, self._task.fence, None):
            return None
        return before

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """Tries again while the ledger does not answer, for the time of a lease."""
        until = self._dispatcher.clock.now() + self._dispatcher.lease_ms
        while True:
            try:
                return await call()
            except LedgerUnavailable:
                if self._dispatcher.clock.now() > until:
                    raise
            await asyncio.sleep(AGAIN_S)


class LocalExecution(msgspec.Struct, frozen=True):
    service: Service
    context: LocalContext
    task: asyncio.Task[Any]


class LocalExecutor:
    """Runs the service named like the task's type, or else like its queue; or the group's."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        services: Mapping[str, Service],
        *,
        groups: Mapping[str, Service],
        threads: int,
        logs: TaskLogs | None = None,  # None: what handlers log is not kept
    ) -> None:
        self._dispatcher = dispatcher
        self._logs = logs
        self._services = services
        self._groups = groups
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="onward-handler")
        self._running: dict[tuple[TaskId, int], LocalExecution] = {}
        self.on_failure: Callable[[Service, Claimed, BaseException], None] = _log_nothing

    async def execute(self, task: Claimed) -> Outcome:
        group = group_of(task.queue)
        if group is not None:
            service = self._groups.get(group)
        else:
            service = self._services.get(task.type) or self._services.get(task.queue)
        if service is None:
            return Released(unknown_service(task.type))
        context = LocalContext(self._dispatcher, task)
        context.state = service.state
        execution = asyncio.current_task()
        assert execution is not None  # noqa: S101 executors run in a task of their own
        # By attempt: stopping a lost one must not stop the one after it.
        self._running[task.id, task.fence] = LocalExecution(service, context, execution)
        try:
            if self._logs is not None:
                outcome = await self._logged(service, task, context, self._logs)
            else:
                outcome = await self._call(service, task, context)
        finally:
            del self._running[task.id, task.fence]
        if context.has_progress:
            with suppress(asyncio.CancelledError):  # the outcome stands, and is returned
                await context.finish()
        return outcome

    async def _logged(
        self, service: Service, task: Claimed, context: LocalContext, logs: TaskLogs
    ) -> Outcome:
        retention_ms = self._dispatcher.profiles[task.profile].retention_ms

        async def keep(lines: Sequence[LogRecord]) -> None:
            logs.add(task.id, lines, retention_ms=retention_ms)

        lines = TaskLog(task.id, task.attempt, keep if logs.on else None)
        try:
            with lines.around():
                return await self._call(service, task, context, lines)
        finally:
            await lines.close()

    async def _call(
        self,
        service: Service,
        task: Claimed,
        context: LocalContext,
        lines: TaskLog | None = None,
    ) -> Outcome:
        try:
            with handling(handed_on(task), task.type, task.id, task.attempt):
                return Succeeded(await service.call(task.payload, context, threads=self._threads))
        except asyncio.CancelledError:
            execution = asyncio.current_task()
            assert execution is not None  # noqa: S101 as above
            if context.cancelled and execution.uncancel() == 0:
                return Failed(CANCELED)
            if execution.cancelling():  # we are shutting down: the runner hands the task back
                context.drop()
                raise
            return Failed(CANCELED_ITSELF)
        except (Exception, SystemExit) as error:
            self.on_failure(service, task, error)
            if lines is not None:
                bug = not isinstance(error, MEANT)
                what = f"{service.name} failed ({type(error).__name__})"
                lines.failed(what if bug else f"{what}: {error}", error, trace=bug)
            return Failed(service.fault(error, task.attempt))

    def cancel(self, task: Claimed) -> None:
        running = self._running.get((task.id, task.fence))
        if running is not None and not running.context.cancelled:
            running.context.cancelled = True
            # A plain function runs in a thread, which cannot be stopped: it checks `cancelled`.
            if running.service.is_async:
                running.task.cancel()

    def in_thread(self, task: Claimed) -> bool:
        """A plain function that has not returned yet: its thread cannot be stopped."""
        running = self._running.get((task.id, task.fence))
        return running is not None and not running.service.is_async

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _log_nothing(service: Service, task: Claimed, error: BaseException) -> None:
    """The task has the error; its text may quote a payload, which belongs in no server's log."""
