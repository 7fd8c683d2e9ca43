"""/api/v2/services, /workers and the effects of running tasks (N-5, N-11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Body
from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from onward.core.contract import Hold
from onward.core.dispatch import Dispatcher
from onward.core.errors import Conflict, Invalid, NotFound
from onward.core.task import Note, State, Task, TaskId, encode
from onward.doors.rest.shapes import (
    BeginEffect,
    ChunkBody,
    FinishEffect,
    Number,
    ProgressBody,
    ServiceBody,
    WorkerShape,
    WorkersShape,
    native_worker,
)
from onward.doors.route import StrictRoute, answer
from onward.services import privacy
from onward.services.catalog import OPERATOR, Catalog, Declared
from onward.services.declarations import checker
from onward.workers.draining import Drains
from onward.workers.roster import Member, Roster

_body = TypeAdapter(ServiceBody)


def build(dispatcher: Dispatcher, roster: Roster, catalog: Catalog, drains: Drains) -> APIRouter:
    router = APIRouter(prefix="/api/v2", tags=["operations"], route_class=StrictRoute)
    effects = dispatcher.backend.effects

    @router.post("/services")
    async def declare(
        body: Annotated[ServiceBody, Body()], by: Literal["operator", "worker"] = "operator"
    ) -> Response:
        service = declared(body)
        if by == OPERATOR:
            return answer(_service(await catalog.replace(service)), 201)
        return answer(_service(await catalog.declare(service)), 201)

    @router.get("/services")
    async def services() -> Response:
        return answer(
            {"items": [_service(service) for service in await catalog.all()], "next": None}
        )

    @router.get("/services/{name}")
    async def service(name: str) -> Response:
        for known in await catalog.all():
            if known.name == name:
                return answer(_service(known))
        raise NotFound(f"no service is called {name!r}")

    @router.delete("/services/{name}")
    async def remove(name: str) -> Response:
        await catalog.remove(name)
        return Response(status_code=204)

    def shown(worker: Member) -> Mapping[str, Any]:
        here = worker.server == roster.server and worker.transport in ("socket", "local")
        return native_worker(worker, dispatcher.slots.busy_by_worker()[worker.id] if here else None)

    @router.get("/workers", response_model=WorkersShape)
    async def workers() -> Response:
        return answer({"items": [shown(one) for one in roster.members()], "next": None})

    @router.post("/workers/{worker_id}/drain", response_model=WorkerShape)
    async def drain(worker_id: str) -> Response:
        return answer(shown(await drains.set(worker_id, draining=True)))

    @router.delete("/workers/{worker_id}/drain", response_model=WorkerShape)
    async def undrain(worker_id: str) -> Response:
        return answer(shown(await drains.set(worker_id, draining=False)))

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


def declared(body: ServiceBody) -> Declared:
    for type_, schema in body.schemas.items():
        checker(schema, f"/schema/{type_}", pointer=f"/schema/{type_}")
    for at, path in enumerate(body.sensitive):
        privacy.parse(path, pointer=f"/sensitive/{at}")
    return Declared(
        name=body.name,
        task_types=tuple(body.task_types),
        schema=body.schemas,
        via=body.via,
        requires_approval=body.requires_approval,
        sensitive=tuple(body.sensitive),
        timeout_ms=body.timeout_ms,
        max_retries=body.max_retries,
    )


def declared_all(bodies: Sequence[bytes | msgspec.Raw]) -> Sequence[Declared]:
    """Declarations that came by another way than this API, held to the same shape."""
    try:
        return [declared(_body.validate_json(bytes(body))) for body in bodies]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = "/".join(str(part) for part in first["loc"])
        raise Invalid(f"declare/{where}: {first['msg']}") from error


def _service(service: Declared) -> Mapping[str, Any]:
    return {
        "name": service.name,
        "task_types": service.task_types,
        "schema": service.schema,
        "via": service.via,
        "requires_approval": service.requires_approval,
        "sensitive": service.sensitive,
        "timeout_ms": service.timeout_ms,
        "max_retries": service.max_retries,
        "declared_by": service.declared_by,
    }
