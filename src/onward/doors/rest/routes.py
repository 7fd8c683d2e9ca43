"""Every path of /api/v2, and the use case it leads to. The only place where these are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from fastapi.routing import APIRoute

from onward.doors.rest.route import Reply, route
from onward.native.flows import Flows
from onward.native.queues import Queues
from onward.native.runs import Runs
from onward.native.schedules import Schedules, Written
from onward.wire.runs import RunView
from onward.wire.schedules import ScheduleDetail
from onward.wire.tasks import TaskView


class _Made(TypedDict, total=False):
    """How the result of a use case becomes a reply."""

    reply: Callable[[Any], Reply]
    statuses: Sequence[int]
    result: Any


def queue_routes(queues: Queues) -> Sequence[APIRoute]:
    return [
        route("GET", "/queues", queues.list),
        route("GET", "/queues/{name}", queues.read),
        route("POST", "/queues/{name}/pause", queues.pause),
        route("POST", "/queues/{name}/resume", queues.resume),
    ]


def flow_routes(flows: Flows) -> Sequence[APIRoute]:
    return [
        route("GET", "/flows", flows.list),
        route("POST", "/flows", flows.create, errors=(409,)),
        route("POST", "/flows/validate", flows.validate),
        route("GET", "/flows/{flow}", flows.read),
        route("GET", "/flows/{flow}/versions/{number}", flows.read_version),
        route("POST", "/flows/{flow}/versions", flows.publish, errors=(409,)),
    ]


def run_routes(runs: Runs) -> Sequence[APIRoute]:
    made = _Made(reply=_accepted, statuses=(202, 200))
    return [
        route("POST", "/runs", runs.start, errors=(404,), **made),
        route("GET", "/runs", runs.list, errors=(404,)),
        route("GET", "/runs/{run_id}", runs.read),
        route("GET", "/runs/{run_id}/shared", runs.shared),
        route("POST", "/runs/{run_id}/signal", runs.signal, errors=(409,)),
        route("POST", "/runs/{run_id}/cancel", runs.cancel, errors=(409,)),
        route("POST", "/runs/{run_id}/fork", runs.fork, errors=(409,), **made),
    ]


def schedule_routes(schedules: Schedules) -> Sequence[APIRoute]:
    made = _Made(reply=_written, statuses=(201, 200), result=ScheduleDetail)
    return [
        route("GET", "/schedules", schedules.list),
        route("POST", "/schedules", schedules.create, errors=(409,), **made),
        route("GET", "/schedules/{name}", schedules.read),
        route("PUT", "/schedules/{name}", schedules.replace, errors=(409,), **made),
        route("DELETE", "/schedules/{name}", schedules.remove, status=204),
        route("POST", "/schedules/{name}/pause", schedules.pause, errors=(409,)),
        route("POST", "/schedules/{name}/resume", schedules.resume, errors=(409,)),
        route(
            "POST",
            "/schedules/{name}/trigger",
            schedules.trigger,
            errors=(409,),
            reply=_triggered,
            statuses=(202,),
        ),
    ]


def _accepted(run: RunView) -> Reply:
    return Reply(run, 200 if run.over else 202, {"location": run.links["self"]})


def _triggered(task: TaskView) -> Reply:
    return Reply(task, 202, {"location": task.links["self"]})


def _written(written: Written) -> Reply:
    return Reply(written.schedule, 201 if written.new else 200)
