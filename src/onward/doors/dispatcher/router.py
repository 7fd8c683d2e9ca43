"""POST /api/openai and GET /api/task/{taskId}: wait for a result, or poll for it (S0-1 … S0-11).

Plain requests and responses, no per-request model machinery: this is the busiest door.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from onward.core import strict_json
from onward.core.errors import Invalid, NotFound, NoWorker, OnwardError, QueueFull, TooBusy
from onward.core.phase import phase
from onward.core.task import Ending, State, Task, encode
from onward.doors.dispatcher.submission import Door, error_text
from onward.doors.vocabulary import SYNC

PATH = "/api/openai"
NAME_LIMIT = 128


def build(door: Door) -> APIRouter:
    router = APIRouter(tags=["dispatcher"])

    @router.post(PATH, openapi_extra=_REQUEST)
    async def post(request: Request) -> Response:
        return await submit(door, await request.body())

    @router.get("/api/task/{task_id}")
    async def status(task_id: str) -> Response:
        for _ in range(2):  # once more if it was claimed between the two readings
            task = await door.find(task_id)
            if task is None:
                return _json(404, b'{"error":"Task not found"}')
            body = await _status(door, task)
            if body is not None:
                return _json(200, encode(body).encode())
        return _json(404, b'{"error":"Task not found"}')

    return router


async def submit(door: Door, raw: bytes) -> Response:
    try:
        return await _submit(door, raw)
    except OnwardError as error:
        return refusal(error)


async def _submit(door: Door, raw: bytes) -> Response:
    body = strict_json.parse_object(raw)
    group, waits = _checked(body)
    timeout_ms = door.timeout_ms(body)
    task = await door.task(body, group, timeout_ms=timeout_ms, waits=waits)
    if not waits:
        running = await door.hand_in(task)
        status = "executing" if running else "queued"
        return _json(200, f'{{"taskId":"{task.id}","status":"{status}"}}'.encode())
    await door.require_worker(group)
    ending = await door.hand_in_and_wait(task, timeout_ms)
    return _ended(task, ending)


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
        return _json(500, b'{"error":"Task timeout"}')
    if ending.state is State.SUCCEEDED:
        # The worker's bytes, unchanged.
        return _json(200, f'{{"taskId":"{task.id}","result":{ending.result}}}'.encode())
    return _json(500, encode({"error": error_text(ending.state, ending.error)}).encode())


async def _status(door: Door, task: Task) -> dict[str, Any] | None:
    word = SYNC[phase(task)]
    body: dict[str, Any] = {"taskId": task.id, "status": word}
    match word:
        case "queued":
            position = await door.dispatcher.backend.tasks.position(task.id)
            if position is None and task.state is State.QUEUED:
                return None
            body |= {"enqueuedAt": task.created_at, "position": position or 1}
        case "executing":
            body |= {"workerId": task.worker, "startedAt": task.started_at}
        case "completed":
            result = msgspec.Raw((task.result or "null").encode())
            body |= {"result": result, "completedAt": task.finished_at}
        case _:
            error = error_text(task.state, task.error)
            body |= {"error": error, "failedAt": task.finished_at}
    return body


def refusal(error: OnwardError) -> Response:
    match error:
        case Invalid():
            return _json(400, encode({"error": f"Invalid request: {error}"}).encode())
        case NoWorker():
            return _json(503, b'{"error":"No worker available"}')
        case QueueFull():
            after = {"retry-after": str(error.retry_after_s)}
            return _json(503, b'{"error":"Queue is full"}', after)
        case NotFound():
            return _json(404, b'{"error":"Task not found"}')
        case TooBusy():
            return _json(503, encode({"error": str(error)}).encode(), {"retry-after": "1"})
        case _:
            raise error


def _json(status: int, body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


_REQUEST = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "model": {"type": "string"},
                        "messages": {"type": "array", "items": {}},
                        "data": {},
                        "group": {"type": "string", "default": "default"},
                        "timeout": {"type": "number", "description": "milliseconds"},
                        "async": {"type": "boolean", "default": False},
                    },
                }
            }
        },
    }
}
