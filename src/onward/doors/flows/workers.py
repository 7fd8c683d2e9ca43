"""Workers that are called register here, say that they live, and can be looked up (S4-4).

Each path has a short twin. A body that cannot be read is 400, with what is wrong in `error`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from onward.core.errors import Invalid
from onward.doors.flows.body import described, read_body
from onward.doors.hints import with_hint
from onward.doors.route import BadBody, answer
from onward.workers.http.registry import HttpWorker, Registry
from onward.workers.roster import is_service

Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
Load = Annotated[float, Meta(ge=0, le=1e9)]


class RegisterBody(msgspec.Struct):
    url: str
    services: Annotated[list[Name], Meta(min_length=1, max_length=100)]
    id: Annotated[str, Meta(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None
    load: Load = 0
    slots: Annotated[int, Meta(ge=1, le=1000)] | None = None  # ours: calls at a time


class HeartbeatBody(msgspec.Struct):
    id: Name
    load: Load | None = None


class LeaveBody(msgspec.Struct):
    id: Name


def build(registry: Registry) -> APIRouter:
    router = APIRouter(tags=["flow workers"])

    @router.post("/workers/register", openapi_extra=described(RegisterBody))
    @router.post("/register", include_in_schema=False)
    async def register(request: Request) -> Response:
        body = await read_body(RegisterBody, request)
        for service in body.services:
            if not is_service(service):
                raise BadBody(Invalid(f"services: {service!r} is a group or a flow's"))
        try:
            worker = await registry.register(
                body.url, body.services, id=body.id or None, load=body.load, slots=body.slots
            )
        except Invalid as error:
            raise BadBody(Invalid(with_hint(error))) from error
        return answer({"id": worker})

    @router.post("/workers/heartbeat", openapi_extra=described(HeartbeatBody))
    @router.post("/heartbeat", include_in_schema=False)
    async def heartbeat(request: Request) -> Response:
        body = await read_body(HeartbeatBody, request)
        worker = await registry.heartbeat(body.id, body.load)
        return answer({"id": body.id, **({"draining": True} if worker.draining else {})})

    @router.post("/workers/deregister", openapi_extra=described(LeaveBody))
    async def deregister(request: Request) -> Response:
        body = await read_body(LeaveBody, request)
        await registry.leave(body.id)
        return answer({"id": body.id})

    @router.get("/workers/list")
    @router.get("/list", include_in_schema=False)
    async def list_(service: str = "") -> Response:
        found = [one for one in await registry.all() if not service or service in one.services]
        return answer([_worker(one, registry) for one in found])

    @router.get("/workers/allocate")
    @router.get("/allocate", include_in_schema=False)
    async def allocate(service: str = "") -> Response:
        if not service:
            raise BadBody(Invalid("name a service, as in /workers/allocate?service=sum"))
        return answer(_worker(await registry.allocate(service), registry))

    return router


def _worker(worker: HttpWorker, registry: Registry) -> Mapping[str, Any]:
    load = worker.load
    return {
        "id": worker.id,
        "url": worker.url,
        "services": worker.services,
        "load": int(load) if load == int(load) else load,
        "last_heartbeat": worker.beat_at,
        "status": "online" if registry.alive(worker) else "offline",
    }
