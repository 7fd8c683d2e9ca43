"""/flows and /tasks: the flow centre in its own words (S4-1 … S4-3, S4-12)."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from fastapi import Query as QueryParam
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from onward.core import strict_json
from onward.core.errors import Conflict, Invalid
from onward.core.task import FINAL, State
from onward.doors.callers import caller_of
from onward.doors.flows.body import described, read_body, refusing_as_400
from onward.doors.flows.rows import run_row, status_of
from onward.doors.listing import array
from onward.doors.route import BadBody, answer
from onward.native.flows import Flows
from onward.native.runs import Runs
from onward.wire.flows import CreateFlow, FlowDefinition
from onward.wire.runs import StartRun

LISTED = 100
STORED: dict[str, frozenset[State]] = {
    "pending": frozenset({State.QUEUED, State.SCHEDULED}),
    "running": frozenset({State.QUEUED, State.SCHEDULED, State.RUNNING, State.WAITING}),
    "canceling": frozenset({State.QUEUED, State.RUNNING, State.WAITING}),
    "completed": frozenset({State.SUCCEEDED}),
    "failed": frozenset({State.FAILED, State.DEAD}),
    "canceled": frozenset({State.CANCELED}),
}


Limit = Annotated[int, QueryParam(ge=1, le=1000)]


class NewFlow(msgspec.Struct):
    name: str


# null and empty texts are as good as absent: clients that encode whole records send them.
class NewVersion(msgspec.Struct):
    flow_id: str
    definition: Any = None
    definition_json: Any = None


class NewRun(msgspec.Struct):
    flow_id: str | None = None
    flow: str | None = None
    params: dict[str, Any] | None = None
    shared: dict[str, Any] | None = None
    request_id: Annotated[str, Meta(max_length=255)] | None = None


def build(flows: Flows, runs: Runs) -> APIRouter:
    router = APIRouter(tags=["flow centre"])

    @router.post("/flows", openapi_extra=described(NewFlow))
    async def create(request: Request) -> Response:
        body = await read_body(NewFlow, request)
        with refusing_as_400():
            flow = await flows.create(caller_of(request.scope), CreateFlow(name=body.name))
        return answer({"id": flow.id, "name": flow.name})

    @router.post("/flows/version", openapi_extra=described(NewVersion))
    async def publish(request: Request) -> Response:
        body = await read_body(NewVersion, request)
        with refusing_as_400():
            definition = FlowDefinition(definition=_definition(body))
            version = await flows.publish(caller_of(request.scope), body.flow_id, definition)
        return answer(
            {
                "id": version.version_id,
                "flow_id": version.flow_id,
                "version": version.version,
                "status": version.status,
            }
        )

    @router.post("/tasks", openapi_extra=described(NewRun))
    async def start(request: Request) -> Response:
        body = await read_body(NewRun, request)
        with refusing_as_400():
            flow = body.flow_id or body.flow
            if not flow:
                raise Invalid("name a flow by flow_id or flow")
            given = StartRun(
                flow=flow,
                params=body.params or {},
                shared=body.shared or {},
                request_id=body.request_id or None,
            )
            run = await runs.begin(caller_of(request.scope), given)
        return answer({"id": run, "status": "pending"})

    @router.get("/tasks")
    async def listing(request: Request, status: str = "", limit: Limit = LISTED) -> Response:
        if status and status not in STORED:
            raise BadBody(Invalid(f"status {status!r} is none of {', '.join(STORED)}"))
        states = STORED.get(status, frozenset())
        caller = caller_of(request.scope)
        found = await runs.newest(caller, states, lambda run: status in ("", status_of(run)), limit)
        return await array([run_row(run) for run in part] async for part in found)

    @router.get("/tasks/get")
    async def read(request: Request, id: str = "") -> Response:
        return answer(run_row(await runs.record(caller_of(request.scope), id)))

    @router.post("/tasks/cancel")
    async def cancel(request: Request, id: str = "") -> Response:
        caller = caller_of(request.scope)
        run = await runs.record(caller, id)
        if run.state not in FINAL:
            with suppress(Conflict):  # it has ended since it was read
                await runs.cancel(caller, id)
            run = await runs.record(caller, id)
        return answer({"id": run.id, "status": status_of(run)})

    @router.get("/tasks/runs")
    async def node_runs(request: Request, task_id: str = "") -> Response:
        return answer(await runs.node_runs(caller_of(request.scope), task_id))

    return router


def _definition(body: NewVersion) -> Any:
    given = body.definition or body.definition_json
    if not given:
        raise Invalid("definition is missing")
    if not isinstance(given, str):
        return given
    try:
        return strict_json.parse(given.encode())
    except Invalid as error:
        raise Invalid(f"definition_json: {error}") from error
