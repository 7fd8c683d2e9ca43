"""What a run's log and its calls tell of it: every attempt of every node (S4-3, S4-11), and the
shared state at any step (docs/adr/0014).

Nothing of this is stored as such: a node run is an attempt of a child, or, of a node that calls no
service, a pair of events in the run's own log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from onward.core.contract import Query, TaskStore
from onward.core.follow import history
from onward.core.policy import overrides_of
from onward.core.task import FINAL, Instant, Json, State, Task, TaskId, encode, fault_of
from onward.flow.fork import UNDO
from onward.flow.nodes import CALLING, MANY
from onward.flow.parts import Definition
from onward.flow.replay import Ends, RunReplay
from onward.flow.runs import CallPlace, answer_of, call_of, node_of, place_of, start_of
from onward.flow.step import ChildResult, NodeNote
from onward.wire.base import NodeStatus
from onward.wire.runs import NodeRun

PAGE = 500
MOST_CHILDREN = 20_000  # of one run
MOST_READ = 5_000  # children whose own log is read
CHUNK = 256
STARTED, FINISHED = "node.started", "node.finished"
NODE_EVENTS = frozenset({STARTED, FINISHED})
RUNNING: Final = "running"
OK: Final = "ok"
ERROR: Final = "error"
CANCELED: Final = "canceled"
ENDINGS: Mapping[str, NodeStatus] = {
    "task.succeeded": OK,
    "task.retrying": ERROR,
    "task.failed": ERROR,
    "task.reclaimed": ERROR,
    "task.canceled": CANCELED,
}
ENDED: Mapping[State, NodeStatus] = {State.SUCCEEDED: OK, State.CANCELED: CANCELED}
LOST = "the worker went away while it ran"

NodeStep = dict[str, Any]  # the events of one step, merged


class _Placed(msgspec.Struct, frozen=True):
    """A row, and where in its run it belongs."""

    seq: int
    index: int
    row: NodeRun

    def order(self) -> tuple[Instant, int, int, int]:
        return self.row.started_at or 0, self.seq, self.index, self.row.attempt_no


async def node_runs(store: TaskStore, run: Task) -> Sequence[NodeRun]:
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
    rows = _with_actions(placed, steps)
    if run.state is State.CANCELED and all(row.status != CANCELED for row in rows):
        rows.append(_canceled(run))
    return rows


async def calls_of(store: TaskStore, run: Task) -> AsyncIterator[tuple[Task, CallPlace]]:
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


async def retry_states(store: TaskStore, runs: Sequence[Task]) -> Sequence[Json]:
    """At which try the call is that each run waits for; "{}" if nothing of it has failed."""
    calls = [call_of(run) for run in runs]
    known = [call for call in calls if call is not None]
    found = dict(zip(known, await store.look(known), strict=True)) if known else {}
    return [_retry_state(found.get(call)) if call is not None else "{}" for call in calls]


def _retry_state(call: Task | None) -> Json:
    if call is None or not call.failures:
        return "{}"
    waits = call.state is State.SCHEDULED
    return encode(
        {
            "task_id": call.id,
            "attempt_no": call.attempt,
            "failures": call.failures,
            "max_retries": overrides_of(call.overrides).max_retries,
            "last_error": error_text(call.error),
            "next_at": call.run_at if waits else None,
        }
    )


async def replayed(
    store: TaskStore, run: Task, definition: Definition
) -> tuple[RunReplay, list[NodeNote]]:
    """The run's shared state at each step, rebuilt, and the notes that it was rebuilt from."""
    start = start_of(run.payload)
    notes = [note async for note, _ in _notes(store, run)]
    replay = RunReplay(definition, start.shared, start.params, start.inside)
    replay.through(notes, await _ends(store, run, notes))
    return replay, notes


def error_text(error: Json | None) -> str:
    fault = fault_of(error)
    return "" if fault is None else fault.message


async def _notes(store: TaskStore, run: Task) -> AsyncIterator[tuple[NodeNote, Instant]]:
    """What the run's log says of its nodes, and when."""
    async for event in history(store, run.id):
        if event.generation == run.generation and event.type in NODE_EVENTS and event.data:
            yield NodeNote(event.type, msgspec.json.decode(event.data)), event.at  # type: ignore[arg-type]


async def _ends(store: TaskStore, run: Task, notes: list[NodeNote]) -> Ends:
    over = [note.data for note in notes if note.type == FINISHED]
    ids = [data["child"] for data in over if data["status"] == OK and "child" in data]
    single: dict[TaskId, ChildResult] = {}
    for at in range(0, len(ids), CHUNK):
        part = ids[at : at + CHUNK]
        single |= zip(part, map(answer_of, await store.get(part)), strict=True)
    many: dict[int, dict[int, ChildResult]] = {}
    if any(data["kind"] in MANY for data in over):
        async for child, place in calls_of(store, run):
            many.setdefault(place.seq, {})[place.index] = answer_of(child)
    return Ends(single, many)


async def _steps(store: TaskStore, run: Task) -> Mapping[int, NodeStep]:
    """What the run's log says of each step, by its number."""
    steps: dict[int, NodeStep] = {}
    async for note, at in _notes(store, run):
        step = steps.setdefault(note.data["seq"], {"started_at": at})
        step.update(note.data)
        if note.type == FINISHED:
            step["finished_at"] = at
    return steps


def _uncalled(run: Task, steps: Mapping[int, NodeStep], called: Sequence[_Placed]) -> list[_Placed]:
    """Steps without a call: the node makes none, it was stopped before, or the call is gone."""
    known = {each.seq for each in called}
    calling = CALLING | {UNDO}
    return [
        _Placed(seq, 0, _inline(run, seq, step))
        for seq, step in steps.items()
        if seq not in known and ("status" in step or step["kind"] not in calling)
    ]


def _with_actions(placed: Sequence[_Placed], steps: Mapping[int, NodeStep]) -> list[NodeRun]:
    """An action belongs to its node: it stands in the last row of the step."""
    last = {each.seq: at for at, each in enumerate(placed)}
    rows = [each.row for each in placed]
    for seq, at in last.items():
        if action := steps.get(seq, {}).get("action"):
            rows[at] = msgspec.structs.replace(rows[at], action=action)
    return rows


def _inline(run: Task, seq: int, step: NodeStep) -> NodeRun:
    given = _text(step, "input")
    fault = step.get("error")
    # The log has no end for a subflow's node when the run is canceled inside it.
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
    status: NodeStatus = RUNNING
    error: str = ""
    finished_at: Instant | None = None


def _called(child: Task, place: CallPlace, number: int, attempt: _Attempt) -> NodeRun:
    return NodeRun(
        id=f"{child.id}:{number}",
        task_id=child.parent or "",
        node_key=place.node,
        attempt_no=number,
        status=attempt.status,
        prep_json=encode(_input_of(child)),
        exec_input_json=child.payload,
        exec_output_json=(child.result or "") if attempt.status == OK else "",
        error_text=attempt.error,
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
        worker_id=attempt.worker,
        worker_url=attempt.url,
    )


async def _logged(store: TaskStore, child: Task) -> Sequence[_Attempt]:
    """The attempts in a task's log; one that was handed back untouched is none."""
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
    """The last attempt alone, of a run with too many calls to read every log."""
    if child.started_at is None:
        return ()
    attempt = _Attempt(child.started_at, child.worker or "", finished_at=child.finished_at)
    if child.state in FINAL:
        attempt.status = ENDED.get(child.state, ERROR)
    if attempt.status == ERROR:
        attempt.error = error_text(child.error)
    return (attempt,)


def _input_of(child: Task) -> Any:
    """The input of a call, in either form of its payload."""
    payload = msgspec.json.decode(child.payload)
    whole = isinstance(payload, dict) and payload.keys() == {"input", "params"}
    return payload["input"] if whole else payload


def _text(step: NodeStep, name: str) -> Json:
    return encode(step[name]) if name in step else ""
