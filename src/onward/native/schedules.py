"""Schedules: create, replace, list, pause, resume, trigger, remove (N-5, R-7).

A schedule's work is checked when it comes in, as any submission is, and submitted anew each time
it is due, so that what its service declares by then holds.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.contract import Key as LedgerKey
from onward.core.errors import Invalid, NotFound
from onward.core.task import Json, TaskId, encode, new_id
from onward.flow.catalog import FlowCatalog
from onward.native.caller import OPERATOR, SEES_ALL, Action, Caller, Scope, needs
from onward.native.masking import Masking
from onward.native.runs import Runs
from onward.native.scheduling import rules
from onward.native.scheduling.rules import Schedule
from onward.native.scheduling.scheduler import Scheduler
from onward.native.scheduling.timetable import Timetable
from onward.native.session_keys import marked
from onward.native.submission import Submissions
from onward.native.views import task_view
from onward.wire.base import Key, Page
from onward.wire.runs import StartRun
from onward.wire.schedules import (
    ScheduleBody,
    ScheduleDetail,
    ScheduleName,
    SchedulePreview,
    ScheduleQuery,
    ScheduleRead,
    ScheduleTimes,
    ScheduleView,
)
from onward.wire.tasks import Submit, TaskView

V = TypeVar("V", bound=ScheduleView)

UPCOMING = 5
TIMES = ScheduleTimes.__struct_fields__
WORK = [
    field for field in ScheduleBody.__struct_fields__ if field not in (*TIMES, "name", "paused")
]
OF_A_FLOW = ("flow", "params", "priority", "session_id")  # the rest of the work is a task's
_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


class Written(NamedTuple):
    schedule: ScheduleDetail
    new: bool


class ScheduledWork:
    """What a schedule runs: checked when it comes in, submitted when it is due."""

    def __init__(
        self, submissions: Submissions, flows: FlowCatalog, runs: Runs, masking: Masking
    ) -> None:
        self._submissions = submissions
        self._flows = flows
        self._runs = runs
        self._masking = masking

    async def submit(self, schedule: Schedule, key: LedgerKey) -> TaskId:
        work: dict[str, Any] = msgspec.json.decode(schedule.work)
        if "flow" in work:
            caller = msgspec.structs.replace(OPERATOR, key=schedule.owner)
            return await self._runs.begin(caller, StartRun(**work), key=key)
        return await self._submissions.hand_in(msgspec.convert(work, Submit), key, schedule.owner)

    async def check(self, body: ScheduleBody) -> None:
        if (body.type is None) == (body.flow is None):
            raise Invalid("give either type, for a task, or flow, for a run", pointer="/type")
        if body.type is not None:
            if body.params is not None:
                raise Invalid("params go with a flow; a task has its payload", pointer="/params")
            await self._submissions.check(body.type, body.queue or body.type, body.payload)
            return
        for field in WORK:
            if field not in OF_A_FLOW and getattr(body, field) is not None:
                raise Invalid(f"{field} is a task's; a flow has params", pointer=f"/{field}")
        await self._masking.refuse_in_run(body.params, "params")
        try:
            await self._flows.pick(body.flow or "")
        except NotFound as error:
            raise Invalid(str(error), pointer="/flow", step=error.step) from error


class Schedules:
    def __init__(
        self, backend: Backend, clock: Clock, work: ScheduledWork, masking: Masking
    ) -> None:
        self._store = backend.tasks
        self._clock = clock
        self._work = work
        self._masking = masking
        self.timetable = Timetable(backend, clock)
        self.scheduler = Scheduler(backend, clock, self.timetable, work.submit)

    @needs(*SEES_ALL)
    async def list(self, caller: Caller, query: ScheduleQuery) -> Page[ScheduleView]:
        """By name; the cursor is the last name of the page before."""
        every = await self.timetable.all()
        found = [schedule for schedule in every if schedule.name > query.cursor]
        more = found[query.limit - 1].name if len(found) > query.limit else None
        views = [ScheduleView(**_fields(schedule)) for schedule in found[: query.limit]]
        return Page(
            items=tuple([await self._masked(view, caller, query.masked) for view in views]),
            next=more,
        )

    @needs(*SEES_ALL)
    async def read(self, caller: Caller, name: str, query: ScheduleRead) -> ScheduleDetail:
        """With its next instants, and what became of the last ones."""
        schedule = await self.timetable.find(name)
        return await self._masked(_detail(schedule), caller, query.masked)

    @needs(*SEES_ALL)
    async def preview(self, caller: Caller, body: ScheduleTimes) -> SchedulePreview:
        """When such a schedule would run, or what is wrong with its times. Nothing is kept."""
        try:
            rules.check_times(body)
        except Invalid as error:
            return SchedulePreview(description="", upcoming=(), fault=str(error))
        now = self._clock.now()
        times = {field: getattr(body, field) for field in TIMES}
        schedule = Schedule(**times, name="", id="", work=Json("{}"), created_at=now)
        return SchedulePreview(
            description=_described(schedule),
            upcoming=tuple(islice(rules.instants(schedule, now), UPCOMING)),
        )

    @needs(Scope.OPERATE)
    async def create(self, caller: Caller, body: ScheduleBody) -> Written:
        """Refused if there is another one of this name; the same once more is the same schedule."""
        if body.name is None:
            raise Invalid("name: a schedule is known by its name", pointer="/name")
        checked = await self._checked(caller, body.name, body)
        schedule, new = await self.timetable.create(checked)
        return Written(await self._changed(caller, schedule, "create"), new)

    @needs(Scope.OPERATE)
    async def replace(self, caller: Caller, name: ScheduleName, body: ScheduleBody) -> Written:
        """Created, or replaced by what the body says."""
        if body.name not in (None, name):
            raise Invalid(f"name: it is {name!r} in the path", pointer="/name")
        checked = await self._checked(caller, name, body)
        schedule, new = await self.timetable.replace(checked, paused=body.paused)
        return Written(await self._changed(caller, schedule, "replace"), new)

    @needs(Scope.OPERATE)
    async def remove(self, caller: Caller, name: ScheduleName) -> None:
        """Tasks that it made stay as they are."""
        await self.timetable.remove(name)
        await caller.audit(Action.SCHEDULE_CHANGE, name, change="remove")

    @needs(Scope.OPERATE)
    async def pause(self, caller: Caller, name: str) -> ScheduleDetail:
        """What falls into the pause is not made up for."""
        paused = await self.timetable.change(name, lambda found, _: rules.paused(found))
        return await self._changed(caller, paused, "pause")

    @needs(Scope.OPERATE)
    async def resume(self, caller: Caller, name: str) -> ScheduleDetail:
        """From now on."""
        resumed = await self.timetable.change(name, rules.resumed)
        return await self._changed(caller, resumed, "resume")

    @needs(Scope.OPERATE)
    async def trigger(
        self, caller: Caller, name: str, idempotency_key: Key | None = None
    ) -> TaskView:
        """Run it now, beside its times, also while it is paused; returns the task."""
        id = await self.scheduler.trigger(name, marked(idempotency_key, None, caller.key))
        await caller.audit(Action.SCHEDULE_CHANGE, name, change="trigger", task=id)
        (task,) = await self._store.get([id])
        if task is None:
            raise NotFound("the task of this key is past its retention")
        return task_view(await self._masking.task(task, caller))

    async def _changed(self, caller: Caller, schedule: Schedule, change: str) -> ScheduleDetail:
        await caller.audit(Action.SCHEDULE_CHANGE, schedule.name, change=change)
        return await self._masked(_detail(schedule), caller)

    async def _checked(self, caller: Caller, name: str, body: ScheduleBody) -> Schedule:
        """Invalid says what is wrong with it."""
        await self._work.check(body)
        rules.check_times(body)
        work = {field: getattr(body, field) for field in WORK}
        times = {field: getattr(body, field) for field in TIMES}
        return Schedule(
            **times,
            name=name,
            id=new_id(),
            work=encode({field: value for field, value in work.items() if value is not None}),
            created_at=self._clock.now(),
            owner=caller.key,
            paused=bool(body.paused),
        )

    async def _masked(self, view: V, caller: Caller, asked: bool = False) -> V:
        hidden = caller.hides(asked)
        payload = await self._masking.payload(view.type, view.queue, view.payload, hidden)
        params = await self._masking.params(view.params, hidden)
        return msgspec.structs.replace(view, payload=payload, params=params)


def _detail(schedule: Schedule) -> ScheduleDetail:
    return ScheduleDetail(
        **_fields(schedule),
        upcoming=rules.upcoming(schedule, UPCOMING),
        history=schedule.history,
    )


def _fields(schedule: Schedule) -> dict[str, Any]:
    """Of a `ScheduleView`."""
    path = f"/api/v2/schedules/{quote(schedule.name, safe='')}"
    same = (*TIMES, "name", "paused", "next_run_at", "last_run_at", "last_task_id", "created_at")
    return {
        **msgspec.json.decode(schedule.work),
        **{field: getattr(schedule, field) for field in same},
        "description": _described(schedule),
        "last_outcome": schedule.history[0].outcome if schedule.history else None,
        "links": {
            "self": path,
            **{verb: f"{path}/{verb}" for verb in ("pause", "resume", "trigger")},
        },
    }


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
