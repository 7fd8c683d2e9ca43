"""MCP's tasks extension: call now, fetch later, and a person is asked in between.

A task here is a task of ours, so a handle outlives the server. `input_required` is an open
approval: the client's user is asked, and the answer counts for exactly the payload that was shown.
A session sees its own; any other id is unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolResult, RequestParams

from onward.core.approval import Approval, Word, open_approval
from onward.core.dispatch import Dispatcher
from onward.core.errors import NotFound, OnwardError
from onward.core.task import FINAL, State, Task
from onward.surfaces.agents.mcp import KEY
from onward.surfaces.agents.toolbox import Toolbox
from onward.surfaces.vocabulary import Phase, phase
from onward.surfaces.wire import iso

EXTENSION = "io.modelcontextprotocol/tasks"
POLL_MS = 1_000
SHOWN = 2_000  # characters of a payload that a person is asked about

Call = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any]


def declared(call: Call) -> bool:
    """Whether this client can do with a handle instead of a result."""
    capabilities = call.session.client_capabilities
    return EXTENSION in ((capabilities.extensions if capabilities else None) or {})


def created(task: Task, dispatcher: Dispatcher) -> dict[str, Any]:
    return {"resultType": "task", **_outline(task, dispatcher)}


class Tasks:
    def __init__(
        self, toolbox: Toolbox, result: Callable[[Call, Task], Awaitable[CallToolResult]]
    ) -> None:
        self._toolbox = toolbox
        self._dispatcher = toolbox.dispatcher
        self._result = result

    def install(self, server: Server[Any]) -> None:
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", UpdateParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    async def get(self, call: Call, params: TaskParams) -> HandlerResult:
        task = await self._find(call, params.task_id)
        said = _outline(task, self._dispatcher)
        asked = open_approval(task, self._dispatcher.clock.now())
        if asked is not None:
            said["inputRequests"] = {_key(task, asked): _question(task, asked)}
        elif task.state in FINAL and task.state is not State.CANCELED:
            result = await self._result(call, task)
            said["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return said

    async def update(self, call: Call, params: UpdateParams) -> HandlerResult:
        task = await self._find(call, params.task_id)
        asked = open_approval(task, self._dispatcher.clock.now())
        # An answer to anything but the question that is open now is an answer to nothing.
        said = None if asked is None else params.input_responses.get(_key(task, asked))
        if asked is not None and isinstance(said, Mapping):
            with suppress(OnwardError):  # somebody else decided meanwhile: tasks/get tells how
                await self._decide(call, task, asked, said)
        return {}

    async def cancel(self, call: Call, params: TaskParams) -> HandlerResult:
        task = await self._find(call, params.task_id)
        with suppress(OnwardError):  # over already
            await self._dispatcher.cancel(task.id)
        return {}

    async def _decide(
        self, call: Call, task: Task, asked: Approval, said: Mapping[str, Any]
    ) -> None:
        content = said.get("content")
        form = content if isinstance(content, Mapping) else {}
        comment = form.get("comment")
        word = Word(
            by=f"mcp:{_client(call)}",
            comment=comment[:1000] if isinstance(comment, str) else None,
            generation=task.generation,
            digest=asked.digest,
        )
        if said.get("action") == "accept" and form.get("approve") is True:
            await self._dispatcher.approve(task.id, word)
        elif said.get("action") == "decline" or form.get("approve") is False:
            await self._dispatcher.reject(task.id, word)

    async def _find(self, call: Call, id: str) -> Task:
        session = call.request.scope["state"][KEY].session  # type: ignore[union-attr]
        try:
            return await self._toolbox.task(id, session)
        except NotFound as error:
            raise MCPError(code=INVALID_PARAMS, message=str(error)) from error


def _outline(task: Task, dispatcher: Dispatcher) -> dict[str, Any]:
    changed = task.finished_at or task.started_at or task.created_at
    return {
        "taskId": task.id,
        "status": _status(task),
        "statusMessage": _told(task),
        "createdAt": iso(task.created_at),
        "lastUpdatedAt": iso(changed),
        "ttlMs": dispatcher.profiles[task.profile].retention_ms,
        "pollIntervalMs": POLL_MS,
    }


def _told(task: Task) -> str:
    said = f"{task.type} is {phase(task).replace('_', ' ')}"
    if task.state is not State.RUNNING or task.progress is None:
        return f"{said}."
    far = msgspec.json.decode(task.progress)
    message = f", {far['message']}" if far.get("message") else ""
    return f"{said}: {far['progress']:.0%}{message}."


def _status(task: Task) -> str:
    match phase(task):
        case Phase.WAITING_APPROVAL:
            return "input_required"
        case Phase.CANCELED:
            return "cancelled"
        case Phase.SUCCEEDED | Phase.FAILED | Phase.DEAD:
            return "completed"  # a tool that failed has a result, too: it says isError
        case _:
            return "working"


def _key(task: Task, asked: Approval) -> str:
    return f"approval-{task.generation}-{asked.digest[:16]}"


def _question(task: Task, asked: Approval) -> Mapping[str, Any]:
    payload = task.payload if len(task.payload) <= SHOWN else f"{task.payload[:SHOWN]}…"
    why = f" ({asked.reason})" if asked.reason else ""
    form = {
        "type": "object",
        "properties": {
            "approve": {"type": "boolean", "title": "Let it run"},
            "comment": {"type": "string", "title": "Comment", "maxLength": 1000},
        },
        "required": ["approve"],
    }
    message = f"May {task.type} run{why}? It was asked for with: {payload}"
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": form},
    }


def _client(call: Call) -> str:
    params = call.session.client_params
    return params.client_info.name[:64] if params is not None else "client"
