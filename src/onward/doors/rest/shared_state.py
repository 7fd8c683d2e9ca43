"""GET /api/v2/runs/{id}/shared?at=: a run's shared state before and after any of its steps (S4-14).

Rebuilt from the log for whoever asks (docs/adr/0014); a finished run's is compared with what it
ended with, and said not to be `exact` where they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from onward.core.errors import NotFound
from onward.core.task import FINAL, Task, encode
from onward.doors.flows.past import replayed
from onward.doors.rest.shapes import Masked, Number
from onward.doors.route import StrictRoute, answer
from onward.flow.catalog import Flows
from onward.flow.replay import Moment, Replay
from onward.flow.runs import memory_of, shared_of, start_of
from onward.flow.scope import own
from onward.native.masking import Masking
from onward.native.run_intake import Intake


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
    async def shared(run_id: str, at: Number | None = None, masked: Masked = False) -> Response:
        run = await intake.find(run_id)
        start = start_of(run.payload)
        _, definition = await flows.read(start.version)
        replay, _ = await replayed(store, run, definition)
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


def _exact(run: Task, replay: Replay) -> bool | None:
    """Whether all of it ends where the run did; None: it has not ended, or not all is known."""
    if run.state not in FINAL or replay.unknown or memory_of(run) is None:
        return None
    return own(shared_of(run)) == replay.shared
