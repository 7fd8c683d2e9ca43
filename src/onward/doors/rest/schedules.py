"""/api/v2/schedules: work that runs once, at intervals, or by cron (N-5, R-7).

A schedule is checked here as any submission is; what it runs is handed in here, too, each time
anew, so that what its service declares by then holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Body, Header, Query
from pydantic import Field
from starlette.responses import Response

from onward.core.contract import Key
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, NotFound
from onward.core.task import TaskId, encode, new_id
from onward.doors.rest.shapes import Key as KeyText
from onward.doors.rest.shapes import Masked, Ms, Name, Strict
from onward.doors.route import StrictRoute, answer
from onward.flow.catalog import Flows
from onward.flow.runs import Start, new_run
from onward.native.masking import Masking
from onward.native.scheduling import rules
from onward.native.scheduling.rules import Missed, Overlap, Schedule
from onward.native.scheduling.scheduler import Scheduler
from onward.native.submission import Submissions
from onward.native.views import task_view
from onward.wire.tasks import Submit

PATH = "/api/v2/schedules"
UPCOMING = 5
TIMES = ("cron", "every_ms", "run_at")
_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))
# Of a task, and not of a run.
TERMS = ("queue", "priority", "max_retries", "timeout_ms", "requires_approval", "session_id")
WORK = ("type", "payload", *TERMS, "flow", "params")

# Part of a path: no slash, and nothing that a path would swallow.
ScheduleName = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f/.][^\x00-\x1f\x7f/]*$")
]


class ScheduleBody(Strict):
    name: ScheduleName | None = None
    type: Name | None = None
    payload: Any = None
    flow: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    params: dict[str, Any] | None = None
    cron: Annotated[str, Field(max_length=200)] | None = None
    every_ms: Annotated[Ms, Field(ge=rules.EVERY_MS)] | None = None
    run_at: Annotated[int, Field(ge=0, le=rules.LATEST)] | None = None
    timezone: Annotated[str, Field(min_length=1, max_length=64)] = rules.ZONE
    queue: Name | None = None
    priority: Literal["high", "normal", "low"] | None = None
    max_retries: Annotated[int, Field(ge=0, le=1000)] | None = None
    timeout_ms: Annotated[int, Field(gt=0, le=365 * 24 * 3_600_000)] | None = None
    requires_approval: bool | None = None
    session_id: Name | None = None
    missed: Literal["skip", "once", "all"] = "once"
    overlap: Literal["allow", "skip"] = "allow"
    paused: bool | None = None


class Runs:
    """What a schedule runs, checked when it comes in and handed in when it is due."""

    def __init__(self, dispatcher: Dispatcher, submissions: Submissions, flows: Flows) -> None:
        self._dispatcher = dispatcher
        self._submissions = submissions
        self._flows = flows

    async def read(self, name: str, body: ScheduleBody) -> Schedule:
        """Invalid says what is wrong with it."""
        await self._check_work(body)
        given = [time for time in TIMES if getattr(body, time) is not None]
        if len(given) != 1:
            raise Invalid(
                "exactly one of cron, every_ms and run_at is wanted",
                pointer=f"/{given[1] if given else 'cron'}",
                hint=f"cron is {rules.CRON_EXAMPLE}",
            )
        rules.check_zone(body.timezone)
        if body.cron is not None:
            rules.check_cron(body.cron)
        work = {field: getattr(body, field) for field in WORK}
        return Schedule(
            name=name,
            id=new_id(),
            work=encode({field: said for field, said in work.items() if said is not None}),
            created_at=self._dispatcher.clock.now(),
            cron=body.cron,
            every_ms=body.every_ms,
            run_at=body.run_at,
            timezone=body.timezone,
            missed=Missed(body.missed),
            overlap=Overlap(body.overlap),
            paused=bool(body.paused),
        )

    async def _check_work(self, body: ScheduleBody) -> None:
        if (body.type is None) == (body.flow is None):
            raise Invalid("either type or flow is wanted: the task, or the run", pointer="/type")
        if body.type is not None:
            if body.params is not None:
                raise Invalid("params go with a flow; a task has its payload", pointer="/params")
            await self._submissions.check(body.type, body.queue or body.type, body.payload)
            return
        for field in ("payload", *TERMS):
            if getattr(body, field) is not None:
                raise Invalid(f"{field} is a task's; a flow has params", pointer=f"/{field}")
        try:
            await self._flows.pick(body.flow or "")
        except NotFound as error:
            raise Invalid(str(error), pointer="/flow", step=error.step) from error

    async def submit(self, schedule: Schedule, key: Key) -> TaskId:
        work: dict[str, Any] = msgspec.json.decode(schedule.work)
        if "flow" not in work:
            return await self._submissions.hand_in(msgspec.convert(work, Submit), key)
        published = await self._flows.pick(work["flow"])
        start = Start(params=work.get("params", {}))
        run = new_run(new_id(), published, self._dispatcher.clock.now(), start)
        return (await self._dispatcher.submit(run, key=key)).task


def build(dispatcher: Dispatcher, scheduler: Scheduler, runs: Runs, masking: Masking) -> APIRouter:
    router = APIRouter(prefix=PATH, tags=["schedules"], route_class=StrictRoute)
    timetable = scheduler.timetable

    async def masked_work(shown: Mapping[str, Any], masked: bool) -> Mapping[str, Any]:
        work = (shown["type"], shown["queue"], shown["payload"])
        payload = await masking.payload(*work, masked)
        return {**shown, "payload": payload}

    @router.get("")
    async def listing(
        cursor: Annotated[str, Query(max_length=128)] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        masked: Masked = False,
    ) -> Response:
        """By name; the cursor is the last name of the page before."""
        found = [schedule for schedule in await timetable.all() if schedule.name > cursor]
        more = found[limit - 1].name if len(found) > limit else None
        items = [await masked_work(brief(schedule), masked) for schedule in found[:limit]]
        return answer({"items": items, "next": more})

    @router.post("")
    async def create(body: Annotated[ScheduleBody, Body()]) -> Response:
        if body.name is None:
            raise Invalid("name: a schedule is known by its name", pointer="/name")
        schedule, new = await timetable.create(await runs.read(body.name, body))
        return _shown(schedule, 201 if new else 200)

    @router.put("/{name}")
    async def replace(name: ScheduleName, body: Annotated[ScheduleBody, Body()]) -> Response:
        if body.name not in (None, name):
            raise Invalid(f"name: it is {name!r} in the path", pointer="/name")
        read = await runs.read(name, body)
        schedule, new = await timetable.replace(read, paused=body.paused)
        return _shown(schedule, 201 if new else 200)

    @router.get("/{name}")
    async def read(name: str, masked: Masked = False) -> Response:
        return answer(await masked_work(_detailed(await timetable.find(name)), masked))

    @router.delete("/{name}", status_code=204)
    async def remove(name: str) -> Response:
        await timetable.remove(name)
        return Response(status_code=204)

    @router.post("/{name}/pause")
    async def pause(name: str) -> Response:
        return _shown(await timetable.change(name, lambda found, _: rules.paused(found)))

    @router.post("/{name}/resume")
    async def resume(name: str) -> Response:
        return _shown(await timetable.change(name, rules.resumed))

    @router.post("/{name}/trigger", status_code=202)
    async def trigger(
        name: str, idempotency_key: Annotated[KeyText | None, Header()] = None
    ) -> Response:
        """The task, as a submission answers it."""
        id = await scheduler.trigger(name, idempotency_key)
        (task,) = await dispatcher.backend.tasks.get([id])
        if task is None:
            raise NotFound("the task of this key is past its retention")
        return answer(task_view(task), 202, {"location": f"/api/v2/tasks/{id}"})

    return router


def brief(schedule: Schedule) -> Mapping[str, Any]:
    """A schedule in a list."""
    work: dict[str, Any] = msgspec.json.decode(schedule.work)
    path = f"{PATH}/{quote(schedule.name, safe='')}"
    last = schedule.history[0] if schedule.history else None
    return {
        "name": schedule.name,
        **{field: work.get(field) for field in WORK},
        "cron": schedule.cron,
        "every_ms": schedule.every_ms,
        "run_at": schedule.run_at,
        "timezone": schedule.timezone,
        "missed": schedule.missed,
        "overlap": schedule.overlap,
        "paused": schedule.paused,
        "description": _described(schedule),
        "next_run_at": schedule.next_run_at,
        "last_run_at": schedule.last_run_at,
        "last_task_id": schedule.last_task_id,
        "last_outcome": None if last is None else last.outcome,
        "created_at": schedule.created_at,
        "links": {
            "self": path,
            **{verb: f"{path}/{verb}" for verb in ("pause", "resume", "trigger")},
        },
    }


def _shown(schedule: Schedule, status: int = 200) -> Response:
    return answer(_detailed(schedule), status)


def _detailed(schedule: Schedule) -> Mapping[str, Any]:
    history = [
        {"at": entry.at, "outcome": entry.outcome, "task_id": entry.task_id, "reason": entry.reason}
        for entry in schedule.history
    ]
    return {**brief(schedule), "upcoming": rules.upcoming(schedule, UPCOMING), "history": history}


def _described(schedule: Schedule) -> str:
    if schedule.cron is not None:
        return rules.described(schedule.cron)
    return "Once" if schedule.every_ms is None else f"Every {_span(schedule.every_ms)}"


def _span(ms: int) -> str:
    for size, unit in _UNITS:
        if ms % size == 0:
            count = ms // size
            return unit if count == 1 else f"{count} {unit}s"
    return f"{ms / 1000} seconds"
