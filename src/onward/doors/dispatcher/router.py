"""POST /api/openai and GET /api/task/{taskId}: wait for a result, or poll for it (S0-1 … S0-11).

The request is read by hand: this is the busiest door, and Express calls it past the framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from onward.core import strict_json
from onward.core.errors import Invalid, NotFound
from onward.core.phase import phase
from onward.core.task import Ending, State, Task
from onward.doors.dispatcher.submission import DispatcherDoor, error_text
from onward.doors.json_reply import answer
from onward.doors.refusal import PlainError
from onward.doors.route import UseCaseRoute, route
from onward.doors.vocabulary import SYNC
from onward.native.caller import READS, Caller, Scope, needs

PATH = "/api/openai"
NAME_LIMIT = 128


class DispatchRequest(msgspec.Struct, rename={"waits_not": "async"}):
    """`messages` or `data` is required; other fields go to the worker as they are."""

    model: str | UnsetType = UNSET
    messages: list[Any] | UnsetType = UNSET
    data: Any = None
    group: str = "default"
    timeout: float | UnsetType = UNSET  # milliseconds
    waits_not: bool = False


class Dispatched(msgspec.Struct, rename="camel"):
    task_id: str
    status: Literal["executing", "queued"]


class DispatchResult(msgspec.Struct, rename="camel"):
    task_id: str
    result: Any


class TaskStatus(msgspec.Struct, rename="camel", kw_only=True):
    task_id: str
    status: Literal["queued", "executing", "completed", "failed"]
    enqueued_at: int | UnsetType = UNSET
    position: int | UnsetType = UNSET
    worker_id: str | UnsetType | None = UNSET
    started_at: int | UnsetType | None = UNSET
    result: Any = UNSET
    completed_at: int | UnsetType | None = UNSET
    error: str | UnsetType = UNSET
    failed_at: int | UnsetType | None = UNSET


class Dispatch:
    def __init__(self, door: DispatcherDoor) -> None:
        self._door = door

    @needs(Scope.SUBMIT)
    async def submit(self, caller: Caller, raw: bytes) -> Response:
        """Wait for the result; with `async`, return the task's id at once."""
        body = strict_json.parse_object(raw, clamped="timeout")
        group, waits = _checked(body)
        timeout_ms = self._door.timeout_ms(body)
        task = await self._door.task(caller, body, group, timeout_ms=timeout_ms, waits=waits)
        if not waits:
            running = await self._door.hand_in(task)
            return answer(Dispatched(task.id, "executing" if running else "queued"))
        await self._door.require_worker(group)
        return _ended(task, await self._door.hand_in_and_wait(task, timeout_ms))

    @needs(*READS)
    async def status(self, caller: Caller, task_id: str) -> TaskStatus:
        """Where the task is, and its result once it has one."""
        for _ in range(2):  # once more if it was claimed between the two readings
            task = await self._door.find(caller, task_id)
            found = None if task is None else await self._status(task)
            if found is not None:
                return found
        raise NotFound("no such task")

    async def _status(self, task: Task) -> TaskStatus | None:
        match SYNC[phase(task)]:
            case "queued":
                position = await self._door.dispatcher.backend.tasks.position(task.id)
                if position is None and task.state is State.QUEUED:
                    return None
                return TaskStatus(
                    task_id=task.id,
                    status="queued",
                    enqueued_at=task.created_at,
                    position=position or 1,
                )
            case "executing":
                return TaskStatus(
                    task_id=task.id,
                    status="executing",
                    worker_id=task.worker,
                    started_at=task.started_at,
                )
            case "completed":
                return TaskStatus(
                    task_id=task.id,
                    status="completed",
                    result=msgspec.Raw((task.result or "null").encode()),
                    completed_at=task.finished_at,
                )
            case _:
                return TaskStatus(
                    task_id=task.id,
                    status="failed",
                    error=error_text(task.state, task.error),
                    failed_at=task.finished_at,
                )


def routes(dispatch: Dispatch) -> Sequence[UseCaseRoute]:
    return [
        route(
            "POST", PATH, dispatch.submit, accepts=DispatchRequest, errors=(500,),
            result=(Dispatched, DispatchResult), prefix="", tag="dispatcher",
        ),
        route("GET", "/api/task/{task_id}", dispatch.status, prefix="", tag="dispatcher"),
    ]  # fmt: skip


def _checked(body: dict[str, Any]) -> tuple[str, bool]:
    """The group, and whether the caller waits."""
    for name, kind, words in _FIELDS:
        if name in body and not isinstance(body[name], kind):
            raise Invalid(f"{name} must be {words}", pointer=f"/{name}")
    if body.get("messages") is None and body.get("data") is None:
        raise Invalid("messages or data is required")
    group = body.get("group", "default")
    if not 0 < len(group) <= NAME_LIMIT or not group.isprintable():
        raise Invalid(f"group must be 1 to {NAME_LIMIT} printable characters", pointer="/group")
    return group, not body.get("async", False)


_FIELDS: tuple[tuple[str, type, str], ...] = (
    ("model", str, "a string"),
    ("messages", list, "a list"),
    ("group", str, "a string"),
    ("async", bool, "true or false"),
)


def _ended(task: Task, ending: Ending | None) -> Response:
    if ending is None:
        return answer(PlainError("Task timeout"), 500)
    if ending.state is State.SUCCEEDED:
        # The worker's bytes, unchanged.
        return answer(DispatchResult(task.id, msgspec.Raw((ending.result or "null").encode())))
    return answer(PlainError(error_text(ending.state, ending.error)), 500)
