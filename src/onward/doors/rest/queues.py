"""/api/v2/queues: what waits where, who serves it, pause and resume (N-5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field
from starlette.responses import Response

from onward.core.dispatch import Dispatcher
from onward.core.errors import NotFound
from onward.core.task import Lane, State
from onward.doors.rest.shapes import Strict
from onward.doors.route import StrictRoute, answer
from onward.workers.roster import Roster


class PauseBody(Strict):
    by: Annotated[str, Field(max_length=200)] | None = None
    reason: Annotated[str, Field(max_length=1000)] | None = None


class QueueShape(BaseModel):
    name: str
    paused: dict[str, Any] | None
    breaker: dict[str, Any] | None
    workers: int
    slots: int
    queued: int
    retrying: int
    states: dict[str, int]


class QueuesShape(BaseModel):
    items: list[QueueShape]
    next: str | None


def build(dispatcher: Dispatcher, roster: Roster) -> APIRouter:
    router = APIRouter(prefix="/api/v2/queues", tags=["queues"], route_class=StrictRoute)
    pressure = dispatcher.pressure

    async def queues() -> Mapping[str, Mapping[str, Any]]:
        states: dict[str, Counter[State]] = {}
        retrying: Counter[str] = Counter()
        for (queue, lane, state), count in (await dispatcher.backend.tasks.counts()).items():
            states.setdefault(queue, Counter())[state] += count
            if lane is Lane.RETRY and state is State.QUEUED:
                retrying[queue] += count
        for member in roster.members():
            for queue in member.queues:
                states.setdefault(queue, Counter())
        for queue in pressure.pauses.paused():
            states.setdefault(queue, Counter())
        return {queue: _queue(queue, states[queue], retrying[queue]) for queue in sorted(states)}

    def _queue(queue: str, states: Counter[State], retrying: int) -> Mapping[str, Any]:
        taking = [member for member in roster.members() if not member.draining]
        serving = [member for member in taking if queue in member.queues]
        return {
            "name": queue,
            "paused": pressure.pauses.paused().get(queue),
            "breaker": pressure.breakers.readings().get(queue),
            "workers": len(serving),
            "slots": sum(member.slots for member in serving),
            "queued": states[State.QUEUED],
            "retrying": retrying,
            "states": {state: states[state] for state in State},
        }

    @router.get("", response_model=QueuesShape)
    async def listing() -> Response:
        return answer({"items": list((await queues()).values()), "next": None})

    @router.get("/{name}", response_model=QueueShape)
    async def read(name: str) -> Response:
        return answer(await find(name))

    @router.post("/{name}/pause", response_model=QueueShape)
    async def pause(name: str, body: Annotated[PauseBody | None, Body()] = None) -> Response:
        """Accepts work, hands out none, until it is resumed; what runs goes on."""
        given = body or PauseBody()
        await pressure.pauses.pause(name, by=given.by, reason=given.reason)
        return answer(await find(name))

    @router.post("/{name}/resume", response_model=QueueShape)
    async def resume(name: str) -> Response:
        before = await find(name)
        await pressure.pauses.resume(name)
        return answer((await queues()).get(name, {**before, "paused": None}))

    async def find(name: str) -> Mapping[str, Any]:
        found = (await queues()).get(name)
        if found is None:
            raise NotFound(f"no queue {name!r}", hint="GET /api/v2/queues lists what there is")
        return found

    return router
