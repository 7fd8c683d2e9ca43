"""What a worker reports over HTTP of the task that it runs: progress, output, effects (N-5, N-11).

A report extends the lease, as a heartbeat does. An attempt that has lost its task is refused.
"""

from __future__ import annotations

from onward.core.contract import LeaseRenewal
from onward.core.dispatch import Dispatcher
from onward.core.errors import Conflict, NotFound
from onward.core.task import Json, Note, State, Task, TaskId, encode
from onward.native.caller import READS, Caller, Scope, needs
from onward.native.reads import NO_TASK, get_task
from onward.native.views import raw
from onward.wire.attempts import (
    BeginEffect,
    ChunkReport,
    EffectView,
    FinishEffect,
    ProgressReport,
    UndoEffect,
)
from onward.wire.base import Page
from onward.wire.logs import LogQuery, LogRecord, LogReport
from onward.workers.roster import group_of
from onward.workers.task_logs import TaskLogs


class Attempts:
    def __init__(self, dispatcher: Dispatcher, logs: TaskLogs) -> None:
        self._dispatcher = dispatcher
        self._logs = logs
        self._store = dispatcher.backend.tasks
        self._effects = dispatcher.backend.effects

    @needs(Scope.WORK)
    async def progress(self, caller: Caller, task_id: str, body: ProgressReport) -> None:
        task = await self._held(caller, task_id, body.fence)
        progress = encode({"progress": body.progress, "message": body.message})
        await self._note(task, ("task.progress", progress), progress)

    @needs(Scope.WORK)
    async def chunk(self, caller: Caller, task_id: str, body: ChunkReport) -> None:
        task = await self._held(caller, task_id, body.fence)
        await self._note(task, ("task.chunk", encode(body.data)))

    @needs(Scope.WORK)
    async def log(self, caller: Caller, task_id: str, body: LogReport) -> None:
        """What its handler logged; written soon, and nothing waits for it."""
        task = await self._held(caller, task_id, body.fence)
        kept_ms = self._dispatcher.profiles[task.profile].retention_ms
        self._logs.add(task.id, body.records, retention_ms=kept_ms)

    @needs(*READS)
    async def logs(self, caller: Caller, task_id: str, query: LogQuery) -> Page[LogRecord]:
        """What the handlers of a task have logged, the oldest first."""
        await get_task(self._store, caller, task_id)
        return await self._logs.read(task_id, query.cursor)

    @needs(Scope.WORK)
    async def begin(self, caller: Caller, task_id: str, name: str, body: BeginEffect) -> EffectView:
        task = await self._held(caller, task_id, body.fence)
        effect = await self._effects.begin(task, name, now=self._dispatcher.clock.now())
        if effect is None:
            return EffectView(state="begun")
        if effect.value is not None:
            return EffectView(state="done", value=raw(effect.value))
        # Its own: an attempt that got no answer to its first request may act after all.
        own = (effect.task, effect.fence) == (task.id, task.fence)
        return EffectView(state="unknown", fence=effect.fence, own=own)

    @needs(Scope.WORK)
    async def finish(
        self, caller: Caller, task_id: str, name: str, body: FinishEffect
    ) -> EffectView:
        # Also from an attempt that has lost the task meanwhile: the effect did happen.
        task = await self._find(caller, task_id)
        if not await self._effects.finish(task, name, encode(body.value), fence=body.fence):
            raise Conflict(
                f"no attempt with the fence {body.fence} began {name!r}",
                hint="quote the fence that began the effect: POST to this path returns it",
            )
        return EffectView(state="done")

    @needs(Scope.WORK)
    async def undo(self, caller: Caller, task_id: str, name: str, query: UndoEffect) -> None:
        await self._effects.undo(await self._held(caller, task_id, query.fence), name)

    async def _find(self, caller: Caller, id: TaskId) -> Task:
        """NotFound, too, for a task that this caller could not have been given."""
        task = (await self._store.get([id]))[0]
        if task is None or not caller.may_serve(group_of(task.queue) or task.queue):
            raise NotFound(NO_TASK)
        return task

    async def _held(self, caller: Caller, id: TaskId, fence: int) -> Task:
        task = await self._find(caller, id)
        if task.state is not State.RUNNING or task.fence != fence:
            raise Conflict("this attempt no longer holds the task", hint="stop working on it")
        return task

    async def _note(self, task: Task, note: Note, progress: Json | None = None) -> None:
        lease = self._dispatcher.clock.now() + self._dispatcher.profiles[task.profile].lease_ms
        until = max(lease, task.lease_until or 0)
        await self._dispatcher.extend(LeaseRenewal(task.id, task.fence, until, progress, (note,)))
