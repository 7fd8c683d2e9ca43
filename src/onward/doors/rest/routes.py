"""Every path of /api/v2, and the use case it leads to. The only place where these are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypedDict

from msgspec import UNSET
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from onward.doors.access import LOGOUT_COOKIE, login_cookie
from onward.doors.errors import problem_of
from onward.doors.hints import step_text
from onward.doors.route import PREFIX, Reply, UseCaseRoute, route
from onward.native.approvals import Approvals
from onward.native.attempts import Attempts
from onward.native.attention import Attention
from onward.native.audit import Audit
from onward.native.batches import Batches, HandedInEach
from onward.native.callbacks import CallbackKeys
from onward.native.dead_letters import DeadLetters
from onward.native.encryption import Encryption
from onward.native.explain import Explained
from onward.native.flows import Flows
from onward.native.health import Health
from onward.native.keys import Keys, LoggedIn
from onward.native.limits import Limits
from onward.native.live import Live
from onward.native.log import Log
from onward.native.metrics import Metrics
from onward.native.operations import Operations
from onward.native.queues import Queues
from onward.native.runs import Runs
from onward.native.schedules import Schedules, Written
from onward.native.series import Series
from onward.native.services import Services
from onward.native.sessions import Sessions
from onward.native.tasks import Submitted, Tasks
from onward.native.tools.toolbox import Toolbox, ToolReply
from onward.native.workers import Workers
from onward.wire.base import Page
from onward.wire.batches import HandedIn, HandedInAll, SubmitMany
from onward.wire.health import HealthView, Readiness
from onward.wire.keys import Me
from onward.wire.live import Change, Snapshot
from onward.wire.operations import OperationView
from onward.wire.runs import RunView
from onward.wire.schedules import ScheduleDetail
from onward.wire.tasks import Explanation, TaskView
from onward.wire.tools import ToolResult

BATCH_PATH = f"{PREFIX}/tasks/batch"
BUSY = (("POST", f"{PREFIX}/tasks"),)  # what Express calls past the framework
TASK, EFFECT = "/tasks/{task_id}", "/tasks/{task_id}/effects/{name:path}"


class _Made(TypedDict, total=False):
    """How the result of a use case becomes a reply."""

    reply: Callable[[Any], Reply]
    statuses: Sequence[int]
    result: Any


def task_routes(tasks: Tasks) -> Sequence[UseCaseRoute]:
    return [
        route(
            "POST",
            "/tasks",
            tasks.submit,
            reply=_submitted,
            statuses=(200, 202),
            result=TaskView,
            errors=(404, 409),  # the key's task is gone, or its row cannot be read
        ),
        route("GET", "/tasks", tasks.list, result=Page[TaskView]),
        route("GET", TASK, tasks.read),
        route("POST", f"{TASK}/cancel", tasks.cancel, errors=(409,)),
        route("POST", f"{TASK}/retry", tasks.replay, errors=(409,)),
        route("GET", f"{TASK}/explain", tasks.explain, reply=_explained, result=Explanation),
        route("GET", f"{TASK}/events", tasks.events, stream=tasks.follow),
    ]


def batch_routes(batches: Batches) -> Sequence[UseCaseRoute]:
    return [
        route(
            "POST",
            "/tasks/batch",
            batches.submit,
            reply=_handed_in,
            result=HandedInAll,
            accepts=SubmitMany,
            errors=(404, 409),  # the batch that they would join
        ),
        route("GET", "/batches/{batch_id}", batches.read),
    ]


def _handed_in(found: HandedInEach) -> Reply:
    items = tuple(
        HandedIn(id=one, task=found.tasks.get(one, UNSET))
        if isinstance(one, str)
        else HandedIn(error=problem_of(one))
        for one in found.items
    )
    return Reply(HandedInAll(batch=found.batch, items=items))


def operation_routes(operations: Operations) -> Sequence[UseCaseRoute]:
    begun: _Made = {"reply": _begun, "statuses": (200, 202), "result": OperationView}
    one = "/operations/{operation_id}"
    return [
        route("POST", "/tasks/cancel", operations.cancel_tasks, **begun),
        route("POST", "/tasks/retry", operations.retry_tasks, **begun),
        route("POST", "/tasks/delete", operations.delete_tasks, **begun),
        route("GET", "/operations", operations.list),
        route("GET", one, operations.read),
        route("POST", f"{one}/cancel", operations.stop, errors=(409,)),
    ]


def _begun(found: OperationView) -> Reply:
    return Reply(found, 200 if found.id is UNSET else 202)


def attempt_routes(attempts: Attempts) -> Sequence[UseCaseRoute]:
    return [
        route("POST", f"{TASK}/progress", attempts.progress, status=204, errors=(409,)),
        route("POST", f"{TASK}/chunks", attempts.chunk, status=204, errors=(409,)),
        route("POST", f"{TASK}/logs", attempts.log, status=204, errors=(409,)),
        route("GET", f"{TASK}/logs", attempts.logs),
        route("POST", EFFECT, attempts.begin, errors=(409,)),
        route("PUT", EFFECT, attempts.finish, errors=(409,)),
        route("DELETE", EFFECT, attempts.undo, status=204, errors=(409,)),
    ]


def approval_routes(approvals: Approvals) -> Sequence[UseCaseRoute]:
    one = "/approvals/{approval_id}"
    return [
        route("GET", "/approvals", approvals.list),
        route("GET", one, approvals.read),
        route("POST", f"{one}/approve", approvals.approve, errors=(409,)),
        route("POST", f"{one}/reject", approvals.reject, errors=(409,)),
    ]


def dead_letter_routes(dead_letters: DeadLetters) -> Sequence[UseCaseRoute]:
    return [
        route("GET", "/dead-letters", dead_letters.list),
        route("POST", "/dead-letters/replay", dead_letters.replay),
        route("POST", "/dead-letters/abandon", dead_letters.abandon),
    ]


def attention_routes(attention: Attention) -> Sequence[UseCaseRoute]:
    return [route("GET", "/attention", attention.list)]


def queue_routes(queues: Queues) -> Sequence[UseCaseRoute]:
    return [
        route("GET", "/queues", queues.list),
        route("GET", "/queues/{name}", queues.read),
        route("POST", "/queues/{name}/pause", queues.pause),
        route("POST", "/queues/{name}/resume", queues.resume),
    ]


def limit_routes(limits: Limits) -> Sequence[UseCaseRoute]:
    return [
        route("GET", "/limits", limits.list),
        route("GET", "/limits/{name}", limits.read),
        route("PUT", "/limits/{name}", limits.put),
        route("DELETE", "/limits/{name}", limits.remove),
    ]


def service_routes(services: Services) -> Sequence[UseCaseRoute]:
    return [
        route("GET", "/services", services.list),
        route("POST", "/services", services.declare, status=201, errors=(409,)),
        route("GET", "/services/{name}", services.read),
        route("DELETE", "/services/{name}", services.remove),
    ]


def worker_routes(workers: Workers) -> Sequence[UseCaseRoute]:
    return [
        route("GET", "/workers", workers.list),
        route("POST", "/workers/{worker_id}/drain", workers.drain, errors=(409,)),
        route("DELETE", "/workers/{worker_id}/drain", workers.undrain, errors=(409,)),
    ]


def log_routes(log: Log) -> Sequence[UseCaseRoute]:
    return [
        route("GET", "/log/readers", log.readers),
        route("DELETE", "/log/readers/{name}", log.forget),
    ]


def encryption_routes(encryption: Encryption) -> Sequence[UseCaseRoute]:
    return [
        route("GET", "/encryption", encryption.read),
        route("POST", "/encryption/rotate", encryption.rotate, errors=(409,)),
    ]


def callback_routes(callbacks: CallbackKeys) -> Sequence[UseCaseRoute]:
    return [route("GET", "/me/callback-secret", callbacks.secret)]


def key_routes(keys: Keys, audit: Audit) -> Sequence[UseCaseRoute]:
    def logged_in(found: LoggedIn) -> Reply:
        return Reply(found.me, cookie=login_cookie(found.token))

    def logged_out(_: None) -> Reply:
        return Reply(None, 204, cookie=LOGOUT_COOKIE)

    return [
        route("GET", "/keys", keys.list),
        route("POST", "/keys", keys.create, status=201, errors=(409,)),
        route("DELETE", "/keys/{key_id}", keys.revoke, status=204, errors=(409,)),
        route("GET", "/me", keys.me),
        route("POST", "/login", keys.login, reply=logged_in, statuses=(200,), result=Me),
        route("POST", "/logout", keys.logout, reply=logged_out, statuses=(204,)),
        route("GET", "/audit", audit.list),
    ]


def live_routes(live: Live, series: Series) -> Sequence[UseCaseRoute]:
    return [
        route("GET", "/live", live.listen, events={"snapshot": Snapshot, "change": Change}),
        route("GET", "/series", series.read),
    ]


def health_routes(health: Health, metrics: Metrics) -> Sequence[UseCaseRoute]:
    """At the root, where probes and Prometheus look."""

    def well(found: HealthView) -> Reply:
        return Reply(found, 503 if found.status == "unhealthy" else 200)

    def ready(found: Readiness) -> Reply:
        return Reply(found, 200 if found.ready else 503)

    both = (200, 503)
    return [
        route("GET", "/health", health.read, reply=well, statuses=both, prefix="", tag="health"),
        route("GET", "/ready", health.ready, reply=ready, statuses=both, prefix="", tag="health"),
        route("GET", "/metrics", metrics.read, media=CONTENT_TYPE_LATEST, prefix="", tag="health"),
    ]


def _submitted(done: Submitted) -> Reply:
    headers = {"location": done.task.links["self"]}
    if done.retry_after_s is not None:
        headers["retry-after"] = str(done.retry_after_s)
    return Reply(done.task, 200 if done.over else 202, headers)


def _explained(found: Explained) -> Reply:
    step = found.step
    hint = step if step is None or isinstance(step, str) else step_text(step)
    return Reply(
        Explanation(
            id=found.id,
            phase=found.phase.value,
            reason=found.reason,
            sentence=found.sentence,
            eta=found.eta,
            hint=hint,
            limit=found.limit,
        )
    )


def flow_routes(flows: Flows) -> Sequence[UseCaseRoute]:
    return [
        route("GET", "/flows", flows.list),
        route("POST", "/flows", flows.create, errors=(409,)),
        route("POST", "/flows/validate", flows.validate),
        route("GET", "/flows/{flow}", flows.read),
        route("GET", "/flows/{flow}/versions/{number}", flows.read_version),
        route("POST", "/flows/{flow}/versions", flows.publish, errors=(409,)),
    ]


def run_routes(runs: Runs) -> Sequence[UseCaseRoute]:
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


def schedule_routes(schedules: Schedules) -> Sequence[UseCaseRoute]:
    made = _Made(reply=_written, statuses=(201, 200), result=ScheduleDetail)
    return [
        route("GET", "/schedules", schedules.list),
        route("POST", "/schedules", schedules.create, errors=(409,), **made),
        route("POST", "/schedules/preview", schedules.preview),
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


def session_routes(sessions: Sessions) -> Sequence[UseCaseRoute]:
    one = "/sessions/{session_id:path}"  # an id may have slashes: the longer paths come first
    return [
        route("GET", "/sessions", sessions.list),
        route("GET", f"{one}/tasks", sessions.tasks),
        route(
            "POST",
            f"{one}/tasks",
            sessions.submit,
            reply=_submitted,
            statuses=(200, 202),
            result=TaskView,
        ),
        route("GET", f"{one}/tasks/{{task_id}}", sessions.task),
        route("GET", f"{one}/notifications", sessions.notifications, stream=sessions.follow),
        route(
            "POST",
            f"{one}/notifications/{{notification_id}}/ack",
            sessions.acknowledge,
            errors=(409,),
        ),
        route("GET", f"{one}/preferences", sessions.preferences),
        route("PUT", f"{one}/preferences", sessions.prefer),
        route("GET", one, sessions.read),
    ]


def tool_routes(toolbox: Toolbox) -> Sequence[UseCaseRoute]:
    def reply(found: ToolReply) -> Reply:
        # Acknowledged once it is written out and not before: else a connection that is cut
        # meanwhile would lose the notifications.
        sent = partial(toolbox.acknowledge, reply=found) if found.notifications else None
        return Reply(found.body, sent=sent)

    return [
        route("GET", "/tools", toolbox.list),
        route("POST", "/tools/{name}", toolbox.call, errors=(409,), reply=reply, result=ToolResult),
    ]
