"""/api/v2/runs: start a flow, see its graph, signal, cancel, fork from any node (N-5, S4-10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Body, Query
from pydantic import Field, model_validator
from starlette.responses import Response

from onward.core.contract import Page, TaskStore
from onward.core.contract import Query as LedgerQuery
from onward.core.errors import NotFound
from onward.core.task import FINAL, State, Task
from onward.doors.flows.rows import RUNNING, NodeRun, node_runs
from onward.doors.rest.flows import drawn
from onward.doors.rest.shapes import Cursor, Key, Masked, Strict, native
from onward.doors.route import StrictRoute, answer
from onward.flow.catalog import Flows
from onward.flow.runs import Start, memory_of, node_of, shared_of, start_of
from onward.native.masking import Masking
from onward.native.run_intake import Intake
from onward.native.slow_reads import SlowReads

# Of a list that is only looked at: a row needs none of it, and it may be megabytes.
LEFT_OUT = dict.fromkeys(("payload", "result", "params", "shared"))
ROWS_EACH = 4  # rows of the ledger that a node run is read from: a call, and most of its events
WaitMs = Annotated[int, Query(ge=0, le=600_000)]


class RunBody(Strict):
    flow: Annotated[str, Field(min_length=1, max_length=255)]
    version: Annotated[int, Field(ge=1, lt=1 << 53)] | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    shared: dict[str, Any] = Field(default_factory=dict)
    request_id: Key | None = None


class SignalBody(Strict):
    name: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    key: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    value: Any = True

    @model_validator(mode="after")
    def _named(self) -> SignalBody:
        if (self.name is None) == (self.key is None):
            raise ValueError(
                "give name or key: the node that waits, or the shared key it waits for"
            )
        return self


class ForkBody(Strict):
    from_node: Annotated[str, Field(min_length=1, max_length=255)]
    shared: dict[str, Any] | None = None
    anyway: bool = False


def build(flows: Flows, intake: Intake, masking: Masking) -> APIRouter:
    router = APIRouter(prefix="/api/v2/runs", tags=["runs"], route_class=StrictRoute)
    dispatcher = intake.dispatcher
    store = dispatcher.backend.tasks
    calls: SlowReads[Sequence[NodeRun]] = SlowReads()

    @router.post("", status_code=202)
    async def start(body: Annotated[RunBody, Body()], wait_ms: WaitMs = 0) -> Response:
        await masking.refuse_in_run(body.params, "params")
        await masking.refuse_in_run(body.shared, "shared")
        given = Start(params=body.params, shared=body.shared)
        id = await intake.start(body.flow, given, request_id=body.request_id, version=body.version)
        if wait_ms:
            await dispatcher.wait(id, timeout_ms=wait_ms)
        return _made(await intake.find(id))

    @router.get("")
    async def listing(
        flow: str | None = None,
        state: Annotated[list[State] | None, Query()] = None,
        cursor: Cursor | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        id: Annotated[list[str] | None, Query(max_length=100)] = None,
        brief: bool = False,
        masked: Masked = False,
    ) -> Response:
        if id:  # named ones are looked up, whatever else is said
            found = await store.look(list(dict.fromkeys(id)))
            page = Page([one for one in found if one and one.profile in intake.profiles], None)
        else:
            name = None if flow is None else (await flows.find(flow)).name
            page = await store.find(
                LedgerQuery(
                    states=frozenset(state or ()),
                    profiles=intake.profiles,
                    type=None if name is None else f"flow:{name}",
                    after=cursor,
                    limit=limit,
                )
            )
        items = [{**told(run), **(LEFT_OUT if brief else {})} for run in page.items]
        if not brief:
            items = [dict(await masking.run(item, masked)) for item in items]
        return answer({"items": items, "next": page.next})

    @router.get("/{run_id}")
    async def read(run_id: str, wait_ms: WaitMs = 0, masked: Masked = False) -> Response:
        run = await intake.find(run_id)
        if wait_ms and run.state not in FINAL:
            await dispatcher.wait(run_id, timeout_ms=wait_ms)
            run = await intake.find(run_id)
        rows = await calls.get(
            (run.id, run.generation, run.state in FINAL), lambda: _counted(store, run)
        )
        rows = [msgspec.structs.replace(row) for row in rows]  # these are masked, those are kept
        try:
            _, definition = await flows.read(start_of(run.payload).version)
            picture = drawn(definition, _states(run, rows))
        except NotFound:  # a run of no version: it has failed, and says so
            picture = {"nodes": [], "mermaid": ""}
        for row in rows:
            texts = (row.prep_json, row.exec_input_json, row.exec_output_json)
            shown = await masking.texts(masked, *texts)
            row.prep_json, row.exec_input_json, row.exec_output_json = shown
        whole = await masking.run(told(run), masked)
        return answer({**whole, **picture, "node_runs": rows})

    @router.post("/{run_id}/signal")
    async def signal(run_id: str, body: Annotated[SignalBody, Body()]) -> Response:
        run = await intake.find(run_id)
        return answer(told(await intake.signal(run, body.name or body.key or "", body.value)))

    @router.post("/{run_id}/cancel")
    async def cancel(run_id: str) -> Response:
        run = await intake.find(run_id)
        return answer(told(await dispatcher.cancel(run.id)))

    @router.post("/{run_id}/fork", status_code=202)
    async def fork(run_id: str, body: Annotated[ForkBody, Body()]) -> Response:
        """A new run of the same version from this node on; the old one stays as it is."""
        run = await intake.find(run_id)
        await masking.refuse_in_run(body.shared, "shared")
        id = await intake.fork(run, body.from_node, body.shared, anyway=body.anyway)
        return _made(await intake.find(id))

    return router


async def _counted(store: TaskStore, run: Task) -> tuple[Sequence[NodeRun], int]:
    rows = await node_runs(store, run)
    return rows, len(rows) * ROWS_EACH


def _made(run: Task) -> Response:
    status = 200 if run.state in FINAL else 202
    return answer(told(run), status, {"location": f"/api/v2/runs/{run.id}"})


def told(run: Task) -> Mapping[str, Any]:
    """A run without its graph: the native task, with what only a run has."""
    start, memory = start_of(run.payload), memory_of(run)
    path = f"/api/v2/runs/{run.id}"
    return {
        **native(run),
        "flow": start.flow,
        "flow_version_id": start.version,
        "params": start.params,
        "shared": shared_of(run),
        "current_node": node_of(run),
        "last_action": None if memory is None else memory.last_action,
        "step_count": 0 if memory is None else memory.step_count,
        "forked_from": start.forked_from,
        "waiting_for": run.waiting_for,
        "links": {
            "self": path,
            "signal": f"{path}/signal",
            "cancel": f"{path}/cancel",
            "fork": f"{path}/fork",
            "events": f"/api/v2/tasks/{run.id}/events",
            "explain": f"/api/v2/tasks/{run.id}/explain",
        },
    }


def _states(run: Task, rows: Sequence[NodeRun]) -> Mapping[str, str]:
    """How each node stands: its last word, or running while the run is at it."""
    told = {row.node_key: row.status for row in rows}
    if run.state not in FINAL and memory_of(run) is not None:
        told[node_of(run)] = RUNNING
    return told
