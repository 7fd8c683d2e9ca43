"""GET /api/v2/runs/{id}/shared?at=: a run's shared state before and after any of its steps (S4-14).

Rebuilt from the log for whoever asks (docs/adr/0014); a finished run's is compared with what it
ended with, and said not to be `exact` where they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.responses import Response

from onward.core.contract import TaskStore
from onward.core.errors import NotFound
from onward.core.follow import history
from onward.core.task import FINAL, Task, TaskId, encode
from onward.flow.catalog import Flows
from onward.flow.replay import Ends, Moment, Replay
from onward.flow.runs import answer_of, memory_of, shared_of, start_of
from onward.flow.scope import own
from onward.flow.step import Answer, Note
from onward.surfaces.console.masking import Masked, Masking
from onward.surfaces.flows.intake import Intake
from onward.surfaces.flows.rows import NODE_EVENTS, calls_of
from onward.surfaces.route import StrictRoute, answer

MANY = frozenset({"foreach", "parallel"})
CHUNK = 256


class SharedShape(BaseModel):
    at: int
    steps: int
    node: str | None
    kind: str | None
    inside: str | None  # the subflow whose state this is; None: the run's own
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    changed: list[str]
    unknown: dict[str, str]
    exact: bool | None


def build(flows: Flows, intake: Intake, masking: Masking) -> APIRouter:
    router = APIRouter(prefix="/api/v2/runs", tags=["runs"], route_class=StrictRoute)
    store = intake.dispatcher.backend.tasks

    @router.get("/{run_id}/shared", response_model=SharedShape)
    async def shared(
        run_id: str, at: Annotated[int | None, Query(ge=0)] = None, masked: Masked = False
    ) -> Response:
        run = await intake.find(run_id)
        start = start_of(run.payload)
        _, definition = await flows.read(start.version)
        notes = await _notes(store, run)
        replay = Replay(definition, start.shared, start.params)
        replay.through(notes, await _ends(store, run, notes))
        steps = max(replay.moments, default=0)
        moment = replay.moments.get(steps if at is None else at)
        if moment is None and at:
            raise NotFound(f"there is no step {at}", hint=f"the run has made {steps}")
        told = _at_step(moment) if moment is not None else _at_start(start.shared)
        texts = await masking.texts(masked, encode(told["before"]), encode(told["after"]))
        before, after = (msgspec.Raw(text.encode()) for text in texts)
        exact = _exact(run, replay)
        return answer({**told, "before": before, "after": after, "steps": steps, "exact": exact})

    return router


def _at_start(shared: Mapping[str, Any]) -> dict[str, Any]:
    told = {"at": 0, "node": None, "kind": None, "inside": None, "before": None}
    return {**told, "after": own(shared), "changed": [], "unknown": {}}


def _at_step(moment: Moment) -> dict[str, Any]:
    inside, _, _ = moment.node.rpartition("/")
    before, after = moment.before, moment.after
    changed = [] if after is None else [key for key in after if after[key] != before.get(key, ...)]
    fresh = [key for key in moment.unknown if key not in moment.unknown_before]
    return {
        "at": moment.seq,
        "node": moment.node,
        "kind": moment.kind,
        "inside": inside or None,
        "before": before,
        "after": after,
        "changed": changed + fresh,
        "unknown": moment.unknown,
    }


async def _notes(store: TaskStore, run: Task) -> list[Note]:
    return [
        Note(event.type, msgspec.json.decode(event.data))  # type: ignore[arg-type]
        async for event in history(store, run.id)
        if event.generation == run.generation and event.type in NODE_EVENTS and event.data
    ]


async def _ends(store: TaskStore, run: Task, notes: list[Note]) -> Ends:
    over = [note.data for note in notes if note.type == "node.finished"]
    ids = [told["child"] for told in over if told["status"] == "ok" and "child" in told]
    single: dict[TaskId, Answer] = {}
    for at in range(0, len(ids), CHUNK):
        part = ids[at : at + CHUNK]
        single |= zip(part, map(answer_of, await store.get(part)), strict=True)
    many: dict[int, dict[int, Answer]] = {}
    if any(told["kind"] in MANY for told in over):
        async for child, place in calls_of(store, run):
            many.setdefault(place.seq, {})[place.index] = answer_of(child)
    return Ends(single, many)


def _exact(run: Task, replay: Replay) -> bool | None:
    """Whether all of it ends where the run did; None: it has not ended, or not all is known."""
    if run.state not in FINAL or replay.unknown or memory_of(run) is None:
        return None
    return own(shared_of(run)) == replay.shared
