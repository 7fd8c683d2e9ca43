"""/flows and /tasks: the flow centre in its own words (S4-1 … S4-3, S4-12)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response

from onward.core import strict_json
from onward.core.errors import Conflict, Invalid
from onward.core.task import FINAL, State, Task
from onward.doors.flows.rows import RunRow, run_row, status_of
from onward.doors.listing import array
from onward.doors.route import UseCaseRoute, route
from onward.native.caller import ACTS, LISTS, READS, Caller, Scope, needs
from onward.native.flows import Flows
from onward.native.masking import Masking
from onward.native.runs import Runs
from onward.wire.base import Limit
from onward.wire.base import Query as QueryParameters
from onward.wire.flows import CreateFlow, FlowDefinition
from onward.wire.runs import NodeRun, StartRun

LISTED = 100
STORED: dict[str, frozenset[State]] = {
    "pending": frozenset({State.QUEUED, State.SCHEDULED}),
    "running": frozenset({State.QUEUED, State.SCHEDULED, State.RUNNING, State.WAITING}),
    "canceling": frozenset({State.QUEUED, State.RUNNING, State.WAITING}),
    "completed": frozenset({State.SUCCEEDED}),
    "failed": frozenset({State.FAILED, State.DEAD}),
    "canceled": frozenset({State.CANCELED}),
}


class NewFlow(msgspec.Struct):
    name: str


class FlowCreated(msgspec.Struct):
    id: str
    name: str


# null and empty texts are as good as absent: clients that encode whole records send them.
class NewVersion(msgspec.Struct):
    flow_id: str
    definition: Any = None
    definition_json: Any = None


class VersionPublished(msgspec.Struct):
    id: str
    flow_id: str
    version: int
    status: str


class NewRun(msgspec.Struct):
    flow_id: str | None = None
    flow: str | None = None
    params: dict[str, Any] | None = None
    shared: dict[str, Any] | None = None
    request_id: Annotated[str, Meta(max_length=255)] | None = None


class RunStatus(msgspec.Struct):
    id: str
    status: str


class ListedFlows(QueryParameters, frozen=True):
    status: str = ""
    limit: Limit = LISTED


class ById(QueryParameters, frozen=True):
    id: str = ""


class ByTaskId(QueryParameters, frozen=True):
    task_id: str = ""


class FlowCentre:
    def __init__(self, flows: Flows, runs: Runs, masking: Masking) -> None:
        self._masking = masking
        self._flows = flows
        self._runs = runs

    @needs(Scope.OPERATE)
    async def create(self, caller: Caller, body: NewFlow) -> FlowCreated:
        flow = await self._flows.create(caller, CreateFlow(name=body.name))
        return FlowCreated(flow.id, flow.name)

    @needs(Scope.OPERATE)
    async def publish(self, caller: Caller, body: NewVersion) -> VersionPublished:
        definition = FlowDefinition(definition=_definition(body))
        made = await self._flows.publish(caller, body.flow_id, definition)
        return VersionPublished(made.version_id, made.flow_id, made.version, made.status)

    @needs(Scope.SUBMIT)
    async def start(self, caller: Caller, body: NewRun) -> RunStatus:
        """Start a run; with a `request_id`, once."""
        flow = body.flow_id or body.flow
        if not flow:
            raise Invalid("name a flow by flow_id or flow")
        given = StartRun(
            flow=flow,
            params=body.params or {},
            shared=body.shared or {},
            request_id=body.request_id or None,
        )
        return RunStatus(await self._runs.begin(caller, given), "pending")

    @needs(*LISTS)
    async def runs(self, caller: Caller, query: ListedFlows) -> Response:
        """The newest first."""
        status = query.status
        if status and status not in STORED:
            raise Invalid(f"status {status!r} is none of {', '.join(STORED)}")
        states = STORED.get(status, frozenset())
        found = await self._runs.newest(
            caller, states, lambda run: status in ("", status_of(run)), query.limit
        )
        return await array(await self._rows(caller, part) async for part in found)

    @needs(*READS)
    async def read(self, caller: Caller, query: ById) -> RunRow:
        (row,) = await self._rows(caller, [await self._runs.record(caller, query.id)])
        return row

    @needs(*ACTS)
    async def cancel(self, caller: Caller, query: ById) -> RunStatus:
        run = await self._runs.record(caller, query.id)
        if run.state not in FINAL:
            with suppress(Conflict):  # it has ended since it was read
                await self._runs.cancel(caller, query.id)
            run = await self._runs.record(caller, query.id)
        return RunStatus(run.id, status_of(run))

    @needs(*READS)
    async def node_runs(self, caller: Caller, query: ByTaskId) -> Sequence[NodeRun]:
        """Every attempt of every node, in order of start."""
        return await self._runs.node_runs(caller, query.task_id)

    async def _rows(self, caller: Caller, runs: Sequence[Task]) -> Sequence[RunRow]:
        retried = await self._runs.retry_states(caller, runs)
        return [
            await self._masked(run_row(run, state), caller.masks(run))
            for run, state in zip(runs, retried, strict=True)
        ]

    async def _masked(self, row: RunRow, masked: bool) -> RunRow:
        params, shared = await self._masking.texts(masked, row.params_json, row.shared_json)
        return msgspec.structs.replace(row, params_json=params, shared_json=shared)


def routes(centre: FlowCentre) -> Sequence[UseCaseRoute]:
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
