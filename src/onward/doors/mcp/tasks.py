"""MCP's tasks extension: call now, fetch later.

A task here is a task of the ledger, so a handle outlives the server. A session sees its own; any
other id is unknown. A task that waits for approval is `working`, never `input_required`: the client
that submitted a task cannot approve it, and over MCP a person's answer looks like the agent's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, CallToolResult, RequestParams

from onward.core.approval import awaited
from onward.core.dispatch import Dispatcher
from onward.core.errors import NotFound
from onward.core.phase import phase
from onward.core.task import FINAL, State, Task
from onward.doors.mcp.door import KEY, Exchange
from onward.doors.vocabulary import MCP
from onward.errors import OnwardError
from onward.native.tools.toolbox import Toolbox
from onward.native.views import progress_of
from onward.wire.times import iso

EXTENSION = "io.modelcontextprotocol/tasks"
POLL_MS = 1_000

Call = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any]


def declared(call: Call) -> bool:
    """Whether this client accepts a handle instead of a result."""
    capabilities = call.session.client_capabilities
    return EXTENSION in ((capabilities.extensions if capabilities else None) or {})


def created(task: Task, dispatcher: Dispatcher) -> dict[str, Any]:
    return {"resultType": "task", **_outline(task, dispatcher)}


class McpTasks:
    def __init__(
        self, toolbox: Toolbox, result: Callable[[Exchange, Task], Awaitable[CallToolResult]]
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
        found = _outline(task, self._dispatcher)
        if task.state in FINAL and task.state is not State.CANCELED:
            result = await self._result(_exchange(call), task)
            found["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return found

    async def update(self, call: Call, params: UpdateParams) -> HandlerResult:
        """No task waits for the client's input; one that waits for approval refuses it."""
        task = await self._find(call, params.task_id)
        if awaited(task):
            raise MCPError(
                code=INVALID_REQUEST,
                message=f"You handed this task in, so you cannot approve it. {_where(task)}",
            )
        return {}

    async def cancel(self, call: Call, params: TaskParams) -> HandlerResult:
        task = await self._find(call, params.task_id)
        with suppress(OnwardError):  # over already
            await self._toolbox.cancel(_exchange(call).caller, task)
        return {}

    async def _find(self, call: Call, id: str) -> Task:
        exchange = _exchange(call)
        try:
            return await self._toolbox.task(exchange.caller, id, exchange.session)
        except NotFound as error:
            raise MCPError(code=INVALID_PARAMS, message=str(error)) from error


def _exchange(call: Call) -> Exchange:
    found: Exchange = call.request.scope["state"][KEY]  # type: ignore[union-attr]
    return found


def _outline(task: Task, dispatcher: Dispatcher) -> dict[str, Any]:
    changed = task.finished_at or task.started_at or task.created_at
    return {
        "taskId": task.id,
        "status": MCP[phase(task)],
        "statusMessage": _message(task),
        "createdAt": iso(task.created_at),
        "lastUpdatedAt": iso(changed),
        "ttlMs": dispatcher.profiles[task.profile].retention_ms,
        "pollIntervalMs": POLL_MS,
    }


def _message(task: Task) -> str:
    if awaited(task):
        return f"{task.type} waits for a person's approval. {_where(task)}"
    text = f"{task.type} is {phase(task).replace('_', ' ')}"
    if task.state is not State.RUNNING or task.progress is None:
        return f"{text}."
    far = progress_of(task)
    message = f", {far.message}" if far.message else ""
    return f"{text}: {far.progress:.0%}{message}."


def _where(task: Task) -> str:
    command = f"onward approvals approve {task.id}.{task.generation}"
    return f"A person approves or rejects it on the page, at /ui/approvals, or with `{command}`."
