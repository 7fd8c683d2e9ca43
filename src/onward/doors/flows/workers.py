"""Workers that are called register here, send heartbeats, and can be looked up (S4-4).

Each path has a short twin. A body that cannot be read is 400, with what is wrong in `error`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from onward.core.errors import Invalid
from onward.doors.hints import with_hint
from onward.doors.route import UseCase, UseCaseRoute, route
from onward.native.caller import SEES_ALL, Caller, Scope, needs
from onward.wire.base import Name, Query
from onward.workers.http.registry import HttpWorker, Registry
from onward.workers.roster import is_service

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


class Registered(msgspec.Struct):
    id: str
    secret: str | UnsetType = UNSET  # with keys: calls to this worker are signed with it


class Left(msgspec.Struct):
    id: str


class Beaten(msgspec.Struct):
    id: str
    draining: Literal[True] | UnsetType = UNSET


class WorkerRow(msgspec.Struct):
    id: str
    url: str
    services: Sequence[str]
    load: float
    last_heartbeat: int
    status: Literal["online", "offline"]


class ForService(Query, frozen=True):
    service: str = ""


class Registration:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @needs(Scope.WORK)
    async def register(self, caller: Caller, body: RegisterBody) -> Registered:
        for service in body.services:
            if not is_service(service):
                raise Invalid(f"services: {service!r} is a group or a flow's")
        if refused := [name for name in body.services if not caller.may_serve(name)]:
            raise caller.refusal(f"this key may not serve {', '.join(refused)}")
        try:
            worker = await self._registry.register(
                body.url,
                body.services,
                id=body.id or None,
                load=body.load,
                slots=body.slots,
                owner=caller.key,
            )
        except Invalid as error:
            raise Invalid(with_hint(error)) from error
        return Registered(worker.id, worker.secret or UNSET)

    @needs(Scope.WORK)
    async def heartbeat(self, caller: Caller, body: HeartbeatBody) -> Beaten:
        worker = await self._registry.heartbeat(body.id, body.load, caller.key)
        return Beaten(body.id, True if worker.draining else UNSET)

    @needs(Scope.WORK)
    async def deregister(self, caller: Caller, body: LeaveBody) -> Left:
        await self._registry.leave(body.id, caller.key)
        return Left(body.id)

    @needs(*SEES_ALL)
    async def list(self, caller: Caller, query: ForService) -> list[WorkerRow]:
        wanted = query.service
        found = await self._registry.all()
        return [self._row(one) for one in found if not wanted or wanted in one.services]

    @needs(*SEES_ALL)
    async def allocate(self, caller: Caller, query: ForService) -> WorkerRow:
        """The worker of a service that the next call would go to."""
        if not query.service:
            raise Invalid("name a service, as in /workers/allocate?service=sum")
        return self._row(await self._registry.allocate(query.service))

    def _row(self, worker: HttpWorker) -> WorkerRow:
        load = worker.load
        return WorkerRow(
            worker.id,
            worker.url,
            worker.services,
            int(load) if load == int(load) else load,
            worker.beat_at,
            "online" if self._registry.alive(worker) else "offline",
        )


def routes(registration: Registration) -> Sequence[UseCaseRoute]:
    def both(method: str, path: str, use_case: UseCase, **more: Any) -> Sequence[UseCaseRoute]:
        return [
            route(method, form, use_case, prefix="", tag="flow workers", **more)
            for form in (f"/workers{path}", path)
        ]

    leave = registration.deregister
    return [
        *both("POST", "/register", registration.register, errors=(409,)),
        *both("POST", "/heartbeat", registration.heartbeat, errors=(404,)),
        route("POST", "/workers/deregister", leave, prefix="", tag="flow workers", errors=(404,)),
        *both("GET", "/list", registration.list),
        *both("GET", "/allocate", registration.allocate, errors=(400, 404)),
    ]
