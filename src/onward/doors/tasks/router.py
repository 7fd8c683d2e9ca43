"""/api/v1: submit, read, list, delete and retry tasks; queues and dead letters (S3-1 … S3-6).

Each path answers with and without its last slash: a redirect would cost some clients their body.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

from fastapi import HTTPException
from starlette.responses import Response

from onward.core import strict_json
from onward.core.alarm import Alarm
from onward.core.contract import Query as LedgerQuery
from onward.core.contract import TaskStore
from onward.core.dispatch import Dispatcher
from onward.core.errors import Conflict, Invalid, NotFound, TooBusy
from onward.core.phase import Phase
from onward.core.task import FINAL, State, Task, TaskId
from onward.doors import errors
from onward.doors.json_reply import answer
from onward.doors.listing import FURTHER, array
from onward.doors.route import UseCase, UseCaseRoute, route
from onward.doors.tasks.shapes import (
    SHOWN,
    STORED,
    Accepted,
    QueueStatus,
    Requeued,
    TaskDetail,
    TaskDetails,
    shown,
    totals,
    word,
)
from onward.doors.tasks.submission import SUMMARIZE, TasksIntake
from onward.doors.vocabulary import TASKS
from onward.native.caller import ACTS, LISTS, READS, SEES_ALL, Caller, Scope, needs
from onward.native.masking import Masking
from onward.native.reads import fitting, get_task
from onward.native.tasks import Tasks
from onward.wire.base import Limit, Query

PREFIX, TAG = "/api/v1", "tasks door"
SUMMARIZE_PATHS = (f"{PREFIX}/tasks/{SUMMARIZE}/", f"{PREFIX}/tasks/{SUMMARIZE}")
NOT_FOUND = "Task not found"
NO_RETRY = "Task cannot be retried"

Erase = Callable[[Sequence[TaskId]], Awaitable[Any]]

SWEEP, MOST_SWEEPS = 256, 40  # due tasks at a time, and how often for one call
ERASING_TRIES, ERASING_PAUSE_S = 20, 0.1


class Newest(Query, frozen=True):
    limit: Limit = 100


class ListedTasks(Newest, frozen=True):
    status: Literal["PENDING", "ACTIVE", "COMPLETED", "FAILED", "DLQ", ""] = ""


class TasksDoor:
    def __init__(
        self,
        dispatcher: Dispatcher,
        intake: TasksIntake,
        alarm: Alarm,
        tasks: Tasks,
        masking: Masking,
        *,
        retry_ratio: Callable[[int], float],
        erase: Erase,
    ) -> None:
        self._store = dispatcher.backend.tasks
        self._intake = intake
        self._alarm = alarm
        self._tasks = tasks
        self._masking = masking
        self._details = TaskDetails(dispatcher)
        self._retry_ratio = retry_ratio
        self._erase = erase

    @needs(Scope.SUBMIT)
    async def create(self, caller: Caller, task_type: str, raw: bytes) -> Accepted | Response:
        """Submit the body as the payload of a task; of "summarize" the text is its `content`."""
        try:
            payload = strict_json.parse(raw)
        except Invalid as error:
            return errors.refuse(f"{PREFIX}/tasks", "", error, status=400)
        # Also when an idle worker has it already: a reader sees that next.
        id = await self._intake.submit(task_type, payload, owner=caller.key)
        return Accepted(id, "PENDING")

    @needs(Scope.SUBMIT)
    async def summarize(self, caller: Caller, raw: bytes) -> Response:
        """As Express calls it."""
        found = await self.create(caller, SUMMARIZE, raw)
        return found if isinstance(found, Response) else answer(found)

    @needs(*LISTS)
    async def list(self, caller: Caller, query: ListedTasks) -> Response:
        """The newest first."""
        return await array(self._listed(caller, query.status, query.limit))

    @needs(*LISTS)
    async def dead_letters(self, caller: Caller, query: Newest) -> Response:
        """The newest first."""
        return await array(self._listed(caller, "DLQ", query.limit))

    @needs(*READS)
    async def read(self, caller: Caller, task_id: str) -> TaskDetail:
        task = await self._find(caller, task_id)
        return await self._details.one(await self._masking.task(task, caller))

    @needs(*ACTS)
    async def delete(self, caller: Caller, task_id: str) -> Accepted:
        """Cancel it, or erase it if it is over."""
        task = await self._find(caller, task_id)
        if task.state not in FINAL:
            with suppress(Conflict):  # it has ended since it was read
                canceled = await self._tasks.cancel(caller, task.id)
                return Accepted(task.id, TASKS[Phase(canceled.phase)])
            task = await self._find(caller, task_id)
        caller.require(Scope.OPERATE)
        await self._forget(task.id)
        return Accepted(task.id, word(task))

    @needs(Scope.OPERATE)
    async def retry(self, caller: Caller, task_id: str) -> Accepted:
        """Run a task again that failed or died."""
        try:
            task = await self._find(caller, task_id)
            await self._tasks.replay(caller, task.id)
        except (Conflict, NotFound) as error:  # unknown, not failed, or retried by another caller
            raise HTTPException(400, NO_RETRY) from error
        return Accepted(task.id, "PENDING")

    @needs(Scope.OPERATE)
    async def requeue_orphaned(self, caller: Caller) -> Requeued:
        """Take back the tasks whose workers are gone."""
        ids = await take_back(self._store, self._alarm)
        return Requeued(len(ids), ids)

    @needs(*SEES_ALL)
    async def queue_status(self, caller: Caller) -> QueueStatus:
        """Of all queues together."""
        queues, states = totals(await self._store.counts())
        return QueueStatus(queues, states, self._retry_ratio(queues["retry"]))

    async def _find(self, caller: Caller, task_id: TaskId) -> Task:
        return await get_task(self._store, caller, task_id, shown, missing=NotFound(NOT_FOUND))

    async def _listed(
        self, caller: Caller, status: str, limit: int
    ) -> AsyncIterator[Sequence[TaskDetail]]:
        query = LedgerQuery(states=STORED.get(status, frozenset()), profiles=SHOWN, limit=limit)

        def fits(task: Task) -> bool:
            return shown(task) and (not status or word(task) == status)

        async for page in fitting(self._store, caller, query, fits, at_a_time=FURTHER):
            yield await self._details.of((await self._masking.page(page, caller)).items)

    async def _forget(self, task: TaskId) -> None:
        for _ in range(ERASING_TRIES):
            await self._erase([task])
            if (await self._store.get([task]))[0] is None:
                return
            # Nothing leaves the ledger before all who read its log have read the end of it.
            await asyncio.sleep(ERASING_PAUSE_S)
        raise TooBusy(
            "the task is over, but its last events are still being read",
            hint="try again; `onward log readers` shows which reader is behind",
        )


def routes(door: TasksDoor) -> Sequence[UseCaseRoute]:
    """The first form of each path is documented."""

    def both(method: str, path: str, use_case: UseCase, **more: Any) -> Sequence[UseCaseRoute]:
        other = path.removesuffix("/") if path.endswith("/") else f"{path}/"
        return [
            route(method, form, use_case, prefix=PREFIX, tag=TAG, hidden=form != path, **more)
            for form in (path, other)
        ]

    return [
        # Before the types: none can be called this.
        *both("POST", "/tasks/requeue-orphaned", door.requeue_orphaned),
        *both("POST", "/tasks/{task_type}/", door.create, result=Accepted),
        *both("GET", "/tasks/", door.list, result=list[TaskDetail]),
        *both("GET", "/tasks/{task_id}", door.read),
        *both("DELETE", "/tasks/{task_id}", door.delete),
        *both("POST", "/tasks/{task_id}/retry", door.retry, errors=(400,)),
        *both("GET", "/queues/status", door.queue_status),
        *both("GET", "/queues/dlq", door.dead_letters, result=list[TaskDetail]),
    ]


async def take_back(store: TaskStore, alarm: Alarm) -> Sequence[TaskId]:
    """Sweep now, as the alarm does all the time; returns the tasks whose workers are gone.

    With the server's own alarm, which knows when it looked last: called first after a pause of
    this process, a sweep without that would take tasks whose workers are connected here.
    """
    taken: list[TaskId] = []
    stuck: set[TaskId] = set()
    for _ in range(MOST_SWEEPS):
        now = await alarm.now()
        due = await store.due(now=now, limit=SWEEP, without=stuck)
        if not due:
            break
        orphans = [task for task in due if shown(task) and _orphaned(task, now)]
        stuck |= await alarm.ring(due, now)
        if orphans:
            after = await store.look([task.id for task in orphans])
            taken += [
                task.id
                for before, task in zip(orphans, after, strict=True)
                # Queued again, or a worker has it by now; not one that has died of it.
                if task is not None and (task.state is State.QUEUED or task.fence > before.fence)
            ]
    return taken


def _orphaned(task: Task, now: int) -> bool:
    return task.state is State.RUNNING and task.lease_until is not None and task.lease_until <= now
