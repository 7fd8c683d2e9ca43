"""/flows and /tasks: the flow centre in its own words (S4-1 … S4-3, S4-12)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi.routing import APIRoute
from msgspec import Meta
from starlette.responses import Response

from onward.core import strict_json
from onward.core.contract import Query
from onward.core.errors import Conflict, Invalid
from onward.core.task import FINAL, State
from onward.doors.flows.rows import NodeRun, RunRow, node_runs, run_row, status_of
from onward.doors.listing import array, newest
from onward.doors.rest.route import route
from onward.flow.catalog import Flows
from onward.flow.runs import Start
from onward.native.caller import Caller, Scope, needs
from onward.native.run_intake import Intake
from onward.wire.base import Limit
from onward.wire.base import Query as QueryParameters

LISTED = 100
STORED: dict[str, frozenset[State]] = {
    "pending": frozenset({State.QUEUED, State.SCHEDULED}),
    "running": frozenset({State.QUEUED, State.SCHEDULED, State.RUNNING, State.WAITING}),
    "canceling": frozenset({State.QUEUED, State.RUNNING, State.WAITING}),
    "completed": frozenset({State.SUCCEEDED}),
    "failed": frozenset({State.FAILED, State.DEAD}),
    "canceled": frozenset({State.CANCELED}),
}


class FlowBody(msgspec.Struct):
    name: str


class FlowCreated(msgspec.Struct):
    id: str
    name: str


# null and empty texts are as good as absent: clients that encode whole records send them.
class VersionBody(msgspec.Struct):
    flow_id: str
    definition: Any = None
    definition_json: Any = None


class VersionPublished(msgspec.Struct):
    id: str
    flow_id: str
    version: int
    status: str


class RunBody(msgspec.Struct):
    flow_id: str | None = None
    flow: str | None = None
    params: dict[str, Any] | None = None
    shared: dict[str, Any] | None = None
    request_id: Annotated[str, Meta(max_length=255)] | None = None


class RunStatus(msgspec.Struct):
    id: str
    status: str


class Listed(QueryParameters, frozen=True):
    status: str = ""
    limit: Limit = LISTED


class ById(QueryParameters, frozen=True):
    id: str = ""


class ByTaskId(QueryParameters, frozen=True):
    task_id: str = ""


class FlowCentre:
    def __init__(self, flows: Flows, intake: Intake) -> None:
        self._flows = flows
        self._intake = intake
        self._dispatcher = intake.dispatcher
        self._store = intake.dispatcher.backend.tasks

    @needs(Scope.OPERATE)
    async def create(self, caller: Caller, body: FlowBody) -> FlowCreated:
        flow = await self._flows.create(body.name)
        return FlowCreated(flow.id, flow.name)

    @needs(Scope.OPERATE)
    async def publish(self, caller: Caller, body: VersionBody) -> VersionPublished:
        made, _ = await self._flows.publish(body.flow_id, _definition(body))
        return VersionPublished(made.id, made.flow_id, made.version, made.status)

    @needs(Scope.SUBMIT)
    async def start(self, caller: Caller, body: RunBody) -> RunStatus:
        """Start a run; with a `request_id`, once."""
        flow = body.flow_id or body.flow
        if not flow:
            raise Invalid("name a flow by flow_id or flow")
        given = Start(params=body.params or {}, shared=body.shared or {})
        run = await self._intake.start(flow, given, request_id=body.request_id or None)
        return RunStatus(run, "pending")

    @needs(Scope.READ)
    async def runs(self, caller: Caller, query: Listed) -> Response:
        """The newest first."""
        status, limit = query.status, query.limit
        if status and status not in STORED:
            raise Invalid(f"status {status!r} is none of {', '.join(STORED)}")
        wanted = Query(
            states=STORED.get(status, frozenset()), profiles=self._intake.profiles, limit=limit
        )
        found = newest(self._store, wanted, lambda run: status in ("", status_of(run)), limit)
        return await array([run_row(run) for run in runs] async for runs in found)

    @needs(Scope.READ)
    async def read(self, caller: Caller, query: ById) -> RunRow:
        return run_row(await self._intake.find(query.id))

    @needs(Scope.OPERATE)
    async def cancel(self, caller: Caller, query: ById) -> RunStatus:
        run = await self._intake.find(query.id)
        if run.state not in FINAL:
            try:
                run = await self._dispatcher.cancel(run.id)
            except Conflict:  # it has ended since it was read
                run = await self._intake.find(query.id)
        return RunStatus(run.id, status_of(run))

    @needs(Scope.READ)
    async def node_runs(self, caller: Caller, query: ByTaskId) -> list[NodeRun]:
        """Every attempt of every node, in order of start."""
        return await node_runs(self._store, await self._intake.find(query.task_id))


def routes(centre: FlowCentre) -> Sequence[APIRoute]:
    return [
        _route("POST", "/flows", centre.create, errors=(409,)),
        _route("POST", "/flows/version", centre.publish, errors=(404, 409)),
        _route("POST", "/tasks", centre.start, errors=(404, 409)),
        _route("GET", "/tasks", centre.runs, result=list[RunRow], errors=(400,)),
        _route("GET", "/tasks/get", centre.read, errors=(404,)),
        _route("POST", "/tasks/cancel", centre.cancel, errors=(404,)),
        _route("GET", "/tasks/runs", centre.node_runs, errors=(404,)),
    ]


_route = partial(route, prefix="", tag="flow centre")


def _definition(body: VersionBody) -> Any:
    given = body.definition or body.definition_json
    if not given:
        raise Invalid("definition is missing")
    if not isinstance(given, str):
        return given
    try:
        return strict_json.parse(given.encode())
    except Invalid as error:
        raise Invalid(f"definition_json: {error}") from error
