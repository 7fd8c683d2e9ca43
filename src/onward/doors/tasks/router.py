"""/api/v1: submit, read, list, delete and retry tasks; queues and dead letters (S3-1 … S3-6).

Each path answers with and without its last slash: a redirect would cost some clients their body.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query
from starlette.requests import Request
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
from onward.doors.callers import caller_of
from onward.doors.listing import FURTHER, array
from onward.doors.route import answer
from onward.doors.tasks.shapes import (
    SHOWN,
    STORED,
    Accepted,
    Details,
    QueueStatus,
    Requeued,
    TaskDetail,
    shown,
    totals,
    word,
)
from onward.doors.tasks.submission import SUMMARIZE, Intake
from onward.doors.vocabulary import TASKS
from onward.native.reads import fitting, get_task
from onward.native.tasks import Tasks

PREFIX = "/api/v1"
SUMMARIZE_PATHS = (f"{PREFIX}/tasks/{SUMMARIZE}/", f"{PREFIX}/tasks/{SUMMARIZE}")
NOT_FOUND = "Task not found"
NO_RETRY = "Task cannot be retried"

Limit = Annotated[int, Query(ge=1, le=1000)]
Word = Literal["PENDING", "ACTIVE", "COMPLETED", "FAILED", "DLQ", ""]
Erase = Callable[[Sequence[TaskId]], Awaitable[Any]]

SWEEP, MOST_SWEEPS = 256, 40  # due tasks at a time, and how often for one call
ERASING_TRIES, ERASING_PAUSE_S = 20, 0.1


def build(
    dispatcher: Dispatcher,
    intake: Intake,
    alarm: Alarm,
    tasks: Tasks,
    *,
    retry_ratio: Callable[[int], float],
    erase: Erase,
) -> APIRouter:
    router = APIRouter(prefix=PREFIX, tags=["tasks door"])
    store = dispatcher.backend.tasks
    details = Details(dispatcher)

    def on(method: str, path: str, **more: Any) -> Callable[[Any], Any]:
        def add(endpoint: Any) -> Any:
            bare = path.rstrip("/")
            for form in (bare, f"{bare}/"):
                router.add_api_route(
                    form, endpoint, methods=[method], include_in_schema=form == path, **more
                )
            return endpoint

        return add

    async def find(task_id: TaskId) -> Task:
        return await get_task(store, task_id, shown, missing=NotFound(NOT_FOUND))

    async def listed(status: str, limit: int) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        query = LedgerQuery(states=STORED.get(status, frozenset()), profiles=SHOWN, limit=limit)

        def fits(task: Task) -> bool:
            return shown(task) and (not status or word(task) == status)

        async for page in fitting(store, query, fits, at_a_time=FURTHER):
            yield await details.of(page.items)

    # Before the types: none can be called this.
    @on("POST", "/tasks/requeue-orphaned", response_model=Requeued)
    async def requeue_orphaned() -> Response:
        ids = await take_back(store, alarm)
        return answer({"requeued": len(ids), "task_ids": ids})

    @on("POST", "/tasks/{task_type}/", response_model=Accepted, openapi_extra=_ANY_JSON)
    async def create(request: Request, task_type: str) -> Response:
        return await submit(intake, task_type, await request.body())

    @on("GET", "/tasks/", response_model=list[TaskDetail])
    async def listing(status: Word = "", limit: Limit = 100) -> Response:
        return await array(listed(status, limit))

    @on("GET", "/tasks/{task_id}", response_model=TaskDetail)
    async def read(task_id: str) -> Response:
        return answer((await details.of([await find(task_id)]))[0])

    @on("DELETE", "/tasks/{task_id}", response_model=Accepted)
    async def delete(request: Request, task_id: str) -> Response:
        task = await find(task_id)
        if task.state not in FINAL:
            with suppress(Conflict):  # it has ended since it was read
                canceled = await tasks.cancel(caller_of(request.scope), task.id)
                return _accepted(task.id, TASKS[Phase(canceled.phase)])
            task = await find(task_id)
        await forget(store, erase, task.id)
        return _accepted(task.id, word(task))

    @on("POST", "/tasks/{task_id}/retry", response_model=Accepted)
    async def retry(request: Request, task_id: str) -> Response:
        try:
            task = await find(task_id)
            await tasks.replay(caller_of(request.scope), task.id)
        except (Conflict, NotFound) as error:  # unknown, not failed, or retried by somebody else
            raise HTTPException(400, NO_RETRY) from error
        return _accepted(task.id, "PENDING")

    @on("GET", "/queues/status", response_model=QueueStatus)
    async def status() -> Response:
        queues, states = totals(await store.counts())
        ratio = retry_ratio(queues["retry"])
        return answer({"queues": queues, "states": states, "retry_ratio": ratio})

    @on("GET", "/queues/dlq", response_model=list[TaskDetail])
    async def dead_letters(limit: Limit = 100) -> Response:
        return await array(listed("DLQ", limit))

    return router


async def submit(intake: Intake, type_: str, raw: bytes) -> Response:
    try:
        payload = strict_json.parse(raw)
    except Invalid as error:
        return errors.refuse(f"{PREFIX}/tasks", "", error, status=400)
    # Also when an idle worker has it already: that is for whoever looks next.
    return _accepted(await intake.submit(type_, payload), "PENDING")


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
                # Queued again, or somebody has it by now; not one that has died of it.
                if task is not None and (task.state is State.QUEUED or task.fence > before.fence)
            ]
    return taken


def _orphaned(task: Task, now: int) -> bool:
    return task.state is State.RUNNING and task.lease_until is not None and task.lease_until <= now


async def forget(store: TaskStore, erase: Erase, task: TaskId) -> None:
    for _ in range(ERASING_TRIES):
        await erase([task])
        if (await store.get([task]))[0] is None:
            return
        # Nothing leaves the ledger before all who read its log have read the end of it.
        await asyncio.sleep(ERASING_PAUSE_S)
    raise TooBusy(
        "the task is over, but its last events are still being read",
        hint="try again; `onward log readers` shows which reader is behind",
    )


def _accepted(task: TaskId, state: str) -> Response:
    return answer({"task_id": task, "state": state})


_ANY_JSON = {
    "requestBody": {
        "required": True,
        "description": 'The payload; of "summarize" an object with the text as `content`.',
        "content": {"application/json": {"schema": {}, "example": {"content": "A long text."}}},
    }
}
