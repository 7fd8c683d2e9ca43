"""What a running attempt sends over HTTP: progress, chunks and effects (N-11)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Body
from starlette.responses import Response

from onward.core.contract import Hold
from onward.core.dispatch import Dispatcher
from onward.core.errors import Conflict, NotFound
from onward.core.task import Note, State, Task, TaskId, encode
from onward.doors.rest.shapes import (
    BeginEffect,
    ChunkBody,
    FinishEffect,
    Number,
    ProgressBody,
)
from onward.doors.route import StrictRoute, answer


def build(dispatcher: Dispatcher) -> APIRouter:
    router = APIRouter(prefix="/api/v2", tags=["operations"], route_class=StrictRoute)
    effects = dispatcher.backend.effects

    async def existing(task_id: TaskId) -> Task:
        task = (await dispatcher.backend.tasks.get([task_id]))[0]
        if task is None:
            raise NotFound("no such task")
        return task

    async def held(task_id: TaskId, fence: int) -> Task:
        task = await existing(task_id)
        if task.state is not State.RUNNING or task.fence != fence:
            raise Conflict("this attempt no longer holds the task", hint="stop working on it")
        return task

    async def note(task: Task, note: Note, progress: str | None = None) -> Response:
        lease = dispatcher.clock.now() + dispatcher.profiles[task.profile].lease_ms
        until = max(lease, task.lease_until or 0)
        await dispatcher.extend(Hold(task.id, task.fence, until, progress, (note,)))
        return Response(status_code=204)

    @router.post("/tasks/{task_id}/progress", status_code=204)
    async def progress(task_id: str, body: Annotated[ProgressBody, Body()]) -> Response:
        task = await held(task_id, body.fence)
        said = encode({"progress": body.progress, "message": body.message})
        return await note(task, ("task.progress", said), said)

    @router.post("/tasks/{task_id}/chunks", status_code=204)
    async def chunk(task_id: str, body: Annotated[ChunkBody, Body()]) -> Response:
        return await note(await held(task_id, body.fence), ("task.chunk", encode(body.data)))

    @router.post("/tasks/{task_id}/effects/{name:path}")
    async def begin(task_id: str, name: str, body: Annotated[BeginEffect, Body()]) -> Response:
        task = await held(task_id, body.fence)
        effect = await effects.begin(task, name, now=dispatcher.clock.now())
        if effect is None:
            return answer({"state": "begun"})
        if effect.value is not None:
            return answer({"state": "done", "value": msgspec.Raw(effect.value.encode())})
        # Its own: an attempt that got no answer to its first request may act after all.
        own = (effect.task, effect.fence) == (task.id, task.fence)
        return answer({"state": "unknown", "fence": effect.fence, "own": own})

    @router.put("/tasks/{task_id}/effects/{name:path}")
    async def finish(task_id: str, name: str, body: Annotated[FinishEffect, Body()]) -> Response:
        # Also from an attempt that has lost the task meanwhile: the effect did happen.
        task = await existing(task_id)
        if not await effects.finish(task, name, encode(body.value), fence=body.fence):
            raise Conflict(
                f"no attempt with the fence {body.fence} began {name!r}",
                hint="quote the fence that began the effect: POST to this path returns it",
            )
        return answer({"state": "done"})

    @router.delete("/tasks/{task_id}/effects/{name:path}")
    async def undo(task_id: str, name: str, fence: Number) -> Response:
        await effects.undo(await held(task_id, fence), name)
        return Response(status_code=204)

    return router
