"""/flows and /tasks: the flow centre in its own words (S4-1 … S4-3, S4-12)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from fastapi import Query as QueryParam
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from onward.core import strict_json
from onward.core.contract import Query
from onward.core.errors import Conflict, Invalid
from onward.core.task import FINAL, State
from onward.doors.flows.body import described, read_body, refusing_as_400
from onward.doors.flows.rows import node_runs, run_row, status_of
from onward.doors.listing import FURTHER, array
from onward.doors.route import BadBody, answer
from onward.flow.catalog import Flows
from onward.flow.runs import Start
from onward.native.reads import fitting
from onward.native.run_intake import Intake

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


class FlowBody(msgspec.Struct):
    name: str


# null and empty texts are as good as absent: clients that encode whole records send them.
class VersionBody(msgspec.Struct):
    flow_id: str
    definition: Any = None
    definition_json: Any = None


class RunBody(msgspec.Struct):
    flow_id: str | None = None
    flow: str | None = None
    params: dict[str, Any] | None = None
    shared: dict[str, Any] | None = None
    request_id: Annotated[str, Meta(max_length=255)] | None = None


def build(flows: Flows, intake: Intake) -> APIRouter:
    router = APIRouter(tags=["flow centre"])
    dispatcher = intake.dispatcher
    store = dispatcher.backend.tasks

    @router.post("/flows", openapi_extra=described(FlowBody))
    async def create(request: Request) -> Response:
        body = await read_body(FlowBody, request)
        with refusing_as_400():
            flow = await flows.create(body.name)
        return answer({"id": flow.id, "name": flow.name})

    @router.post("/flows/version", openapi_extra=described(VersionBody))
    async def publish(request: Request) -> Response:
        body = await read_body(VersionBody, request)
        with refusing_as_400():
            version, _ = await flows.publish(body.flow_id, _definition(body))
        return answer(
            {
                "id": version.id,
                "flow_id": version.flow_id,
                "version": version.version,
                "status": version.status,
            }
        )

    @router.post("/tasks", openapi_extra=described(RunBody))
    async def start(request: Request) -> Response:
        body = await read_body(RunBody, request)
        given = Start(params=body.params or {}, shared=body.shared or {})
        with refusing_as_400():
            flow = body.flow_id or body.flow
            if not flow:
                raise Invalid("name a flow by flow_id or flow")
            run = await intake.start(flow, given, request_id=body.request_id or None)
        return answer({"id": run, "status": "pending"})

    @router.get("/tasks")
    async def listing(status: str = "", limit: Limit = LISTED) -> Response:
        if status and status not in STORED:
            raise BadBody(Invalid(f"status {status!r} is none of {', '.join(STORED)}"))
        query = Query(states=STORED.get(status, frozenset()), profiles=intake.profiles, limit=limit)
        pages = fitting(store, query, lambda run: status in ("", status_of(run)), at_a_time=FURTHER)
        return await array([run_row(run) for run in page.items] async for page in pages)

    @router.get("/tasks/get")
    async def read(id: str = "") -> Response:
        return answer(run_row(await intake.find(id)))

    @router.post("/tasks/cancel")
    async def cancel(id: str = "") -> Response:
        run = await intake.find(id)
        if run.state not in FINAL:
            try:
                run = await dispatcher.cancel(run.id)
            except Conflict:  # it has ended since it was read
                run = await intake.find(id)
        return answer({"id": run.id, "status": status_of(run)})

    @router.get("/tasks/runs")
    async def runs(task_id: str = "") -> Response:
        return answer(await node_runs(store, await intake.find(task_id)))

    return router


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
