"""A run and its node runs as rows of the flow centre's tables (S4-3, S4-11).

Nothing of this is stored as such: a run is a task with a journal, a node run is an attempt of a
child, or, of a node that calls nobody, a pair of events in the run's own log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from onward.core.contract import Query, TaskStore
from onward.core.follow import history
from onward.core.phase import phase
from onward.core.task import FINAL, Instant, Json, State, Task, TaskId, encode, fault_of
from onward.doors.vocabulary import FLOWS
from onward.flow.runs import Place, memory_of, node_of, place_of, shared_of, start_of

PAGE = 500
MOST_CHILDREN = 20_000  # of one run
MOST_READ = 5_000  # children whose own log is read
CALLING = frozenset({"executor", "local", "parallel", "foreach", "compensation"})
STARTED, FINISHED = "node.started", "node.finished"
NODE_EVENTS = frozenset({STARTED, FINISHED})
RUNNING, OK, ERROR, CANCELED = "running", "ok", "error", "canceled"
ENDINGS = {
    "task.succeeded": OK,
    "task.retrying": ERROR,
    "task.failed": ERROR,
    "task.reclaimed": ERROR,
    "task.canceled": CANCELED,
}
LOST = "the worker went away while it ran"

Step = dict[str, Any]  # what the run's log says of one step


class RunRow(msgspec.Struct, kw_only=True):
    id: TaskId
    flow_version_id: str
    status: str
    params_json: Json
    shared_json: Json
    current_node_key: str
    last_action: str
    step_count: int
    retry_state_json: Json = "{}"
    lease_owner: str
    lease_expiry: Instant | None
    request_id: str
    created_at: Instant
    updated_at: Instant
    error_text: str


class NodeRun(msgspec.Struct, kw_only=True):
    id: str
    task_id: TaskId
    node_key: str
    attempt_no: int = 1
    status: str = RUNNING
    prep_json: Json = ""
    exec_input_json: Json = ""
    exec_output_json: Json = ""
    error_text: str = ""
    action: str = ""
    started_at: Instant | None = None
    finished_at: Instant | None = None
    worker_id: str = ""
    worker_url: str = ""


class _Placed(msgspec.Struct, frozen=True):
    """A row, and where in its run it belongs."""

    seq: int
    index: int
    row: NodeRun

    def order(self) -> tuple[Instant, int, int, int]:
        return self.row.started_at or 0, self.seq, self.index, self.row.attempt_no


def status_of(run: Task) -> str:
    return FLOWS[phase(run)]


def run_row(run: Task) -> RunRow:
    start, memory = start_of(run.payload), memory_of(run)
    held = run.state is State.RUNNING
    return RunRow(
        id=run.id,
        flow_version_id=start.version,
        status=status_of(run),
        params_json=encode(start.params),
        shared_json=encode(shared_of(run)),
        current_node_key=node_of(run),
        last_action="" if memory is None else memory.last_action,
        step_count=0 if memory is None else memory.step_count,
        lease_owner=(run.worker or "") if held else "",
        lease_expiry=run.lease_until if held else None,
        request_id=run.key or "",
        created_at=run.created_at,
        updated_at=run.finished_at or run.queued_at or run.created_at,
        error_text=error_text(run.error),
    )


async def node_runs(store: TaskStore, run: Task) -> list[NodeRun]:
    """Every attempt of every node, in order of start."""
    steps = await _steps(store, run)
    placed: list[_Placed] = []
    read = 0
    async for child, place in calls_of(store, run):
        read += 1
        attempts = await _logged(store, child) if read <= MOST_READ else _unlogged(child)
        placed += [
            _Placed(place.seq, place.index, _called(child, place, number, attempt))
            for number, attempt in enumerate(attempts, start=1)
        ]
    placed += _uncalled(run, steps, placed)
    placed.sort(key=_Placed.order)
    _tell_actions(placed, steps)
    if run.state is State.CANCELED and all(each.row.status != CANCELED for each in placed):
        placed.append(_Placed(0, 0, _canceled(run)))
    return [each.row for each in placed]


async def calls_of(store: TaskStore, run: Task) -> AsyncIterator[tuple[Task, Place]]:
    """The calls of services that this run has made, oldest first."""
    children: list[Task] = []
    query = Query(parent=run.id, limit=PAGE)
    while True:
        page = await store.find(query)
        children += page.items
        if page.next is None or len(children) >= MOST_CHILDREN:
            break
        query = msgspec.structs.replace(query, after=page.next)
    for child in reversed(children):
        place = place_of(child)
        if place is not None and place.generation == run.generation:
            yield child, place


async def _steps(store: TaskStore, run: Task) -> Mapping[int, Step]:
    """What the run's log says of each step, by its number."""
    steps: dict[int, Step] = {}
    async for event in history(store, run.id):
        if event.generation == run.generation and event.type in NODE_EVENTS and event.data:
            data = msgspec.json.decode(event.data)
            step = steps.setdefault(data["seq"], {"started_at": event.at})
            step.update(data)
            if event.type == FINISHED:
                step["finished_at"] = event.at
    return steps


def _uncalled(run: Task, steps: Mapping[int, Step], called: Sequence[_Placed]) -> list[_Placed]:
    """Steps that no call tells of: the node makes none, it was stopped before, or it is gone."""
    told = {each.seq for each in called}
    return [
        _Placed(seq, 0, _inline(run, seq, step))
        for seq, step in steps.items()
        if seq not in told and ("status" in step or step["kind"] not in CALLING)
    ]


def _tell_actions(placed: Sequence[_Placed], steps: Mapping[int, Step]) -> None:
    """An action is its node's: it stands with the last row of the step."""
    last = {each.seq: each.row for each in placed}
    for seq, row in last.items():
        row.action = steps.get(seq, {}).get("action") or ""


def _inline(run: Task, seq: int, step: Step) -> NodeRun:
    given = _text(step, "input")
    fault = step.get("error")
    # A subflow's node is not told that the run was canceled inside it.
    over = run.state is State.CANCELED
    return NodeRun(
        id=f"{run.id}:{seq}",
        task_id=run.id,
        node_key=step["node"],
        status=step.get("status", CANCELED if over else RUNNING),
        prep_json=given,
        exec_input_json=given,
        exec_output_json=_text(step, "output"),
        error_text=fault["message"] if fault else "",
        started_at=step["started_at"],
        finished_at=step.get("finished_at", run.finished_at if over else None),
    )


def _canceled(run: Task) -> NodeRun:
    """The one record of a cancel that no node has seen."""
    return NodeRun(
        id=f"{run.id}:0",
        task_id=run.id,
        node_key=node_of(run),
        status=CANCELED,
        started_at=run.finished_at,
        finished_at=run.finished_at,
    )


class _Attempt(msgspec.Struct):
    started_at: Instant
    worker: str = ""
    url: str = ""
    status: str = RUNNING
    error: str = ""
    finished_at: Instant | None = None


def _called(child: Task, place: Place, number: int, attempt: _Attempt) -> NodeRun:
    given = encode(called_with(child))
    return NodeRun(
        id=f"{child.id}:{number}",
        task_id=child.parent or "",
        node_key=place.node,
        attempt_no=number,
        status=attempt.status,
        prep_json=given,
        exec_input_json=given,
        exec_output_json=(child.result or "") if attempt.status == OK else "",
        error_text=attempt.error,
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
        worker_id=attempt.worker,
        worker_url=attempt.url,
    )


async def _logged(store: TaskStore, child: Task) -> Sequence[_Attempt]:
    """The attempts that a task's log tells of; one that was handed back untouched is none."""
    attempts: list[_Attempt] = []
    current: _Attempt | None = None
    async for event in history(store, child.id):
        data = msgspec.json.decode(event.data) if event.data else {}
        if event.type == "task.claimed":
            current = _Attempt(event.at, data.get("worker") or "")
            attempts.append(current)
        elif current is None:
            continue
        elif event.type in ("task.sent", "task.delivered"):
            current.worker = data.get("worker") or current.worker
            current.url = data.get("url") or ""
        elif event.type == "task.released":
            attempts.pop()
            current = None
        elif event.type in ENDINGS:
            current.status, current.finished_at = ENDINGS[event.type], event.at
            if current.status == ERROR:
                current.error = (data.get("error") or {}).get("message") or LOST
            current = None
    return attempts


def _unlogged(child: Task) -> Sequence[_Attempt]:
    """The last attempt alone, of a run with so many calls that nobody reads every log."""
    if child.started_at is None:
        return ()
    attempt = _Attempt(child.started_at, child.worker or "", finished_at=child.finished_at)
    if child.state in FINAL:
        attempt.status = {State.SUCCEEDED: OK, State.CANCELED: CANCELED}.get(child.state, ERROR)
    if attempt.status == ERROR:
        attempt.error = error_text(child.error)
    return (attempt,)


def called_with(child: Task) -> Any:
    """The input of a call, whichever way its service wants it."""
    payload = msgspec.json.decode(child.payload)
    whole = isinstance(payload, dict) and payload.keys() == {"input", "params"}
    return payload["input"] if whole else payload


def error_text(error: Json | None) -> str:
    fault = fault_of(error)
    return "" if fault is None else fault.message


def _text(step: Step, name: str) -> Json:
    return encode(step[name]) if name in step else ""
