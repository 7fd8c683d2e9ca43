"""Every path of /api/v2, and the use case it leads to. The only place where these are written."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi.routing import APIRoute

from onward.doors.hints import step_text
from onward.doors.rest.route import Reply, Stream, route
from onward.doors.streaming import Places
from onward.native.approvals import Approvals
from onward.native.attempts import Attempts
from onward.native.dead_letters import DeadLetters
from onward.native.explain import Explained
from onward.native.queues import Queues
from onward.native.tasks import Submitted, Tasks
from onward.wire.base import Page
from onward.wire.tasks import Explanation, TaskView

MOST_FOLLOWERS = 1_000
TASK, EFFECT = "/tasks/{task_id}", "/tasks/{task_id}/effects/{name:path}"


def task_routes(tasks: Tasks) -> Sequence[APIRoute]:
    places = Places(MOST_FOLLOWERS, f"{MOST_FOLLOWERS} followers are connected already")
    followed = Stream(tasks.follow, lambda event: (event.n, event.type), places)
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
        route("GET", f"{TASK}/events", tasks.events, stream=followed),
    ]


def attempt_routes(attempts: Attempts) -> Sequence[APIRoute]:
    return [
        route("POST", f"{TASK}/progress", attempts.progress, status=204, errors=(409,)),
        route("POST", f"{TASK}/chunks", attempts.chunk, status=204, errors=(409,)),
        route("POST", EFFECT, attempts.begin, errors=(409,)),
        route("PUT", EFFECT, attempts.finish, errors=(409,)),
        route("DELETE", EFFECT, attempts.undo, status=204, errors=(409,)),
    ]


def approval_routes(approvals: Approvals) -> Sequence[APIRoute]:
    one = "/approvals/{approval_id}"
    return [
        route("GET", "/approvals", approvals.list),
        route("GET", one, approvals.read),
        route("POST", f"{one}/approve", approvals.approve, errors=(409,)),
        route("POST", f"{one}/reject", approvals.reject, errors=(409,)),
    ]


def dead_letter_routes(dead_letters: DeadLetters) -> Sequence[APIRoute]:
    return [
        route("GET", "/dead-letters", dead_letters.list),
        route("POST", "/dead-letters/replay", dead_letters.replay),
        route("POST", "/dead-letters/abandon", dead_letters.abandon),
    ]


def queue_routes(queues: Queues) -> Sequence[APIRoute]:
    return [
        route("GET", "/queues", queues.list),
        route("GET", "/queues/{name}", queues.read),
        route("POST", "/queues/{name}/pause", queues.pause),
        route("POST", "/queues/{name}/resume", queues.resume),
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
            phase=found.phase,
            reason=found.reason,
            sentence=found.sentence,
            eta=found.eta,
            hint=hint,
        )
    )
