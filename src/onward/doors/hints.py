"""The next step after an error, in the words of its reader: a path or a tool."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from types import MappingProxyType
from typing import TypeAlias

from onward.core.errors import CoreError, NextStep, Step
from onward.errors import OnwardError

Words: TypeAlias = Mapping[Step, str]

HTTP: Words = MappingProxyType(
    {
        Step.APPROVE: "onward approvals approve {about}   or   onward approvals reject {about}",
        Step.ASK_AGAIN: "onward task retry {about} asks again",
        Step.CALL_LIST_TOOL: "{about} lists the tasks of a session",
        Step.CHECK_LEDGER: "onward doctor looks at the ledger",
        Step.LIST_APPROVALS: "GET /api/v2/approvals lists what is open",
        Step.FORK_ELSEWHERE: (
            "fork from {about!r} (--from {about}), or fork all the same"
            ' with "anyway": true (--anyway)'
        ),
        Step.LIST_FLOWS: "GET /api/v2/flows lists what there is",
        Step.LIST_QUEUES: "GET /api/v2/queues lists what there is",
        Step.LIST_RUNS: "GET /api/v2/runs lists what there is",
        Step.LIST_SCHEDULES: "GET /api/v2/schedules lists what there is",
        Step.LIST_TASKS: "GET /api/v2/tasks lists what there is",
        Step.LIST_SESSIONS: "GET /api/v2/sessions lists those with tasks",
        Step.LIST_SESSION_TASKS: "GET /api/v2/sessions/{about}/tasks lists yours",
        Step.LIST_TOOLS: "GET /api/v2/tools lists what there is",
        Step.LIST_WORKERS: "GET /api/v2/workers lists them",
        Step.MAKE_KEY: ("onward keys encryption new prints one; set it as ONWARD_ENCRYPTION_KEYS"),
        Step.PUT_LIMIT: "PUT /api/v2/limits/{about} makes it",
        Step.PUBLISH_VERSION: "POST /flows/version publishes one",
        Step.REMOVE_SERVICE: "DELETE /api/v2/services/{about}, or use another type",
        Step.REPLACE_SCHEDULE: "PUT /api/v2/schedules/{about} replaces it",
        Step.REPLAY_DEAD: "fix the cause, then: onward dlq replay {about}",
        Step.RESUME_QUEUE: "onward queue resume {quoted}",
        Step.RUN_AGAIN: "onward task retry {about} runs it again",
        Step.SEND_KEY: (
            "send a key as Authorization: Bearer <token>; `onward keys create` makes one"
        ),
        Step.SHOW_BREAKERS: "GET /health shows every breaker",
        Step.SHOW_SERVICE: "GET /api/v2/services/{about} shows the schema",
        Step.START_STREAM_WORKER: "start one, for example: onward worker module:attr --via streams",
        Step.START_WORKER: "start a worker {about}, for example: onward worker module:attr",
        Step.SHOW_RUN: "onward run show {about}",
        Step.SIGNAL_LATER: (
            "send it again later; if its queue is paused: onward queue resume {about}"
        ),
        Step.SUBMIT_NOW: "POST /api/v2/tasks runs something now",
    }
)
TOOLS: Words = MappingProxyType(
    {
        **HTTP,
        Step.SHOW_SERVICE: "the input schema of the tool shows what {about} takes",
        Step.SUBMIT_NOW: "call the tool of the service to run it now",
    }
)


def step_text(step: NextStep, words: Words = HTTP) -> str:
    return words[step.what].format(about=step.about, quoted=quote(step.about))


def hint_text(error: OnwardError, words: Words = HTTP) -> str | None:
    if isinstance(error, CoreError) and error.step is not None:
        return step_text(error.step, words)
    return error.hint


def with_hint(error: OnwardError, words: Words = HTTP) -> str:
    """For those who read one text and no more."""
    hint = hint_text(error, words)
    return f"{error}; {hint}" if hint else str(error)
