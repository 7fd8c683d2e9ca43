"""The MCP server behind /mcp: the agent door's tools, and one to call for each task type.

A direct call waits for its result for a while, reports progress, and then returns the task's id; a
client that declares the tasks extension gets a handle instead (tasks.py). Decides nothing about
tasks: toolbox.py does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, nullcontext, suppress
from typing import Any

import msgspec
from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    CancelledNotificationParams,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
)
from mcp_types import Tool as McpTool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from onward import __version__
from onward.core.errors import Invalid, NotFound
from onward.core.follow import follow
from onward.core.phase import Phase, phase
from onward.core.task import FINAL, State, Task, TaskId
from onward.doors.hints import TOOLS, with_hint
from onward.doors.mcp.door import KEY, Exchange
from onward.doors.mcp.resuming import Kept, Resumptions, first_event
from onward.doors.mcp.tasks import McpTasks, created, declared
from onward.doors.streaming import EventStream
from onward.errors import OnwardError
from onward.native.tools.toolbox import Toolbox, ToolReply, renamed, session_among
from onward.native.tools.tools import RESULT, SessionArgument, Tool, ToolKind
from onward.wire.base import MAX_BODY

Call = ServerRequestContext[Any, Any]

ALIVE_S = 15.0
DEFERRED_WAIT_MS = 1_000  # a task that is over by then is returned at once, without a handle
INSTRUCTIONS = (
    "Hand off work and move on. Tools named after a task type do it and wait a while for the "
    "result. Tools that end in _task_tool answer at once with a task_id; get_task_result_tool "
    "gives the result later. `notifications` in an answer are news of earlier tasks: tell the user."
)


def build(
    toolbox: Toolbox, *, wait_ms: int, ready: Callable[[], bool]
) -> tuple[StreamableHTTPSessionManager, McpHandlers]:
    handlers = McpHandlers(toolbox, wait_ms=wait_ms, ready=ready)
    server: Server[Any] = Server(
        "onward",
        version=__version__,
        title="Onward",
        instructions=INSTRUCTIONS,
        on_list_tools=handlers.tools,
        # No argument of ours travels in a header, so none is compared with one.
        get_tool_input_schema=lambda _: None,
    )
    server.add_request_handler("tools/call", CallToolRequestParams, handlers.call)
    server.add_notification_handler(
        "notifications/cancelled", CancelledNotificationParams, handlers.canceled
    )
    McpTasks(toolbox, handlers.result).install(server)
    # Host and Origin are the guard's, before every door.
    manager = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=MAX_BODY)
    return manager, handlers


class _ToolCall(msgspec.Struct):
    """A call in progress: its task, once that is submitted, and whether the client gave it up."""

    task: TaskId | None = None
    given_up: bool = False


class McpHandlers:
    def __init__(self, toolbox: Toolbox, *, wait_ms: int, ready: Callable[[], bool]) -> None:
        self._toolbox = toolbox
        self._dispatcher = toolbox.dispatcher
        self._kept = Resumptions(toolbox.dispatcher)
        self._wait_ms = wait_ms
        self._ready = ready
        self._calls: dict[tuple[str, object], _ToolCall] = {}  # by session and request

    async def tools(self, call: Call, _: PaginatedRequestParams | None) -> ListToolsResult:
        exchange = exchange_of(call)
        found = await self._toolbox.tools(
            exchange.caller, session=_naming(exchange), direct=True, only=exchange.only
        )
        # A call that a client may get a handle for has no output of one form.
        handles = declared(call)
        return ListToolsResult(
            tools=[_shape(tool, handles and tool.kind is ToolKind.CALL) for tool in found]
        )

    async def call(self, call: Call, params: CallToolRequestParams) -> HandlerResult:
        with self._under_way(call) as begun:
            return await self._run(call, params, begun)

    async def _run(
        self, call: Call, params: CallToolRequestParams, begun: _ToolCall
    ) -> HandlerResult:
        exchange = exchange_of(call)
        arguments = params.arguments or {}
        try:
            tool = await self._toolbox.find(
                exchange.caller,
                params.name,
                session=_naming(exchange),
                direct=True,
                only=exchange.only,
            )
        except NotFound as error:
            raise MCPError(code=INVALID_PARAMS, message=str(error)) from error
        try:
            if tool.kind is ToolKind.CALL:
                return await self._direct(call, tool, arguments, begun)
            # A session that the client did not choose is only what holds where it names none.
            named = arguments.get("session_id") is not None
            bound = exchange.chosen if named else exchange.session
            reply = await self._toolbox.run(exchange.caller, tool, arguments, bound)
        except OnwardError as error:
            return _refusal(error)
        exchange.replies.append(reply)
        return CallToolResult(content=_texts(_json(reply.body)), structured_content=_plain(reply))

    async def canceled(self, call: Call, params: CancelledNotificationParams) -> None:
        """How an older client cancels a call; a newer one closes the connection."""
        session = exchange_of(call).session
        about = None if session is None else self._calls.get((session, params.request_id))
        if about is not None:
            about.given_up = True
            if about.task is not None:  # else it is canceled as soon as it is submitted
                # By itself: this call ends with its response, and would cut the cancellation short.
                self._dispatcher.spawn(self._cancel(about.task))

    async def result(self, exchange: Exchange, task: Task) -> CallToolResult:
        """What a direct call returns, now that the task or the time to wait for it is over."""
        report, reply = await self._toolbox.report(exchange.caller, task)
        exchange.replies.append(reply)
        news = [stored.notification.message for stored in reply.notifications]
        return CallToolResult(
            content=_texts(_text(task, report.message), *news),
            structured_content=_plain(reply),
            is_error=task.state in FINAL and task.state is not State.SUCCEEDED,
        )

    async def resume(self, exchange: Exchange, last_event_id: str) -> EventStream | None:
        """The answer of a call whose connection was lost; None: there is none of this id."""
        kept = await self._kept.find(last_event_id, exchange.session)
        if kept is None:
            return None
        try:
            task = await self._toolbox.task(exchange.caller, kept.task, kept.of)
        except NotFound:  # another key's
            return None
        return EventStream(self._resumed(exchange, last_event_id, kept, task), nullcontext())

    async def _resumed(
        self, exchange: Exchange, last_event_id: str, kept: Kept, task: Task
    ) -> AsyncGenerator[bytes]:
        yield first_event(last_event_id)
        over = asyncio.ensure_future(self._over(exchange, task))
        try:
            while not (await asyncio.wait({over}, timeout=ALIVE_S))[0]:
                yield b": alive\n\n"
            body = {
                "result": (await over).model_dump(by_alias=True, mode="json", exclude_none=True)
            }
        except OnwardError as error:
            body = {"error": {"code": INTERNAL_ERROR, "message": str(error)}}
        finally:
            over.cancel()
        message = {"jsonrpc": "2.0", "id": kept.request, **body}
        yield b"event: message\ndata: " + msgspec.json.encode(message) + b"\n\n"

    async def _over(self, exchange: Exchange, task: Task) -> CallToolResult:
        if not self._stands(task):
            await self._dispatcher.wait(task.id, timeout_ms=self._wait_ms)
        found = await self._toolbox.task(exchange.caller, task.id, task.session)
        return await self.result(exchange, found)

    def _stands(self, task: Task) -> bool:
        """A call does not wait for a person, nor for a service that is down."""
        shut = self._dispatcher.pressure.breakers.shut(task.queue)
        return phase(task) is Phase.WAITING_APPROVAL or shut is not None

    @contextmanager
    def _under_way(self, call: Call) -> Iterator[_ToolCall]:
        here, begun = (exchange_of(call).session or "", call.request_id), _ToolCall()
        self._calls[here] = begun
        try:
            yield begun
        finally:
            # Unless another client of the session has a call of the same number by now.
            if self._calls.get(here) is begun:
                del self._calls[here]

    async def _direct(
        self, call: Call, tool: Tool, arguments: Mapping[str, Any], begun: _ToolCall
    ) -> HandlerResult:
        exchange = exchange_of(call)
        session, elsewhere = exchange.session, False
        if tool.names_session and arguments.get("session_id") is not None:
            session = session_among(arguments, exchange.chosen)
            elsewhere = session != exchange.session
        payload = _payload(tool, arguments)
        submitting = asyncio.ensure_future(self._submit(call, tool, payload, session))
        try:
            task = await asyncio.shield(submitting)
        except asyncio.CancelledError:
            # Given up while the task was being submitted: it is in the ledger, or soon will be.
            if self._gave_up(call):
                self._dispatcher.spawn(self._take_back(submitting))
            raise
        except Invalid as error:
            raise (error if tool.raw_payload else renamed(error, "arguments")) from error
        begun.task = task.id
        if begun.given_up:
            self._dispatcher.spawn(self._cancel(task.id))
        # A handle is looked up in the session of the connection: it would not be found there.
        deferred = declared(call) and not elsewhere
        wait_ms = min(self._wait_ms, DEFERRED_WAIT_MS) if deferred else self._wait_ms
        task = await self._until_over(call, task, wait_ms)
        if deferred and task.state not in FINAL:
            return created(task, self._dispatcher)
        return await self.result(exchange, task)

    async def _submit(self, call: Call, tool: Tool, payload: Any, session: str | None) -> Task:
        exchange = exchange_of(call)
        task = await self._toolbox.submit(
            exchange.caller, tool, tool.task_types[0], payload, session=session
        )
        if exchange.resumable and task.state not in FINAL:
            id = call.request_id or 0
            about = Kept(task=task.id, request=id, session=exchange.session, of=session)
            await self._kept.keep(exchange.resumable, about)
        return task

    async def _until_over(self, call: Call, task: Task, wait_ms: int) -> Task:
        if self._stands(task):
            return task
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._watch(call, task.id)
        except asyncio.CancelledError:
            if self._gave_up(call):
                self._dispatcher.spawn(self._cancel(task.id))
            raise
        return await self._toolbox.task(exchange_of(call).caller, task.id, task.session)

    async def _watch(self, call: Call, task: TaskId) -> None:
        furthest = -1.0
        async with aclosing(follow(self._dispatcher.backend, task)) as batches:
            async for events in batches:
                for event in events:
                    if event.type != "task.progress" or event.data is None:
                        continue
                    data = msgspec.json.decode(event.data)
                    if data["progress"] > furthest:  # a client may rely on it going up
                        furthest = data["progress"]
                        await call.session.report_progress(furthest, 1.0, data.get("message"))

    def _gave_up(self, call: Call) -> bool:
        """A newer client cancels by closing the connection. It means nothing if an older one does,
        or if this server stops and closes it.
        """
        return call.protocol_version in MODERN_PROTOCOL_VERSIONS and self._ready()

    async def _take_back(self, submitting: asyncio.Future[Task]) -> None:
        with suppress(OnwardError):
            await self._cancel((await submitting).id)

    async def _cancel(self, task: TaskId) -> None:
        with suppress(OnwardError):
            await self._dispatcher.cancel(task)


def exchange_of(call: Call) -> Exchange:
    exchange: Exchange = call.request.scope["state"][KEY]  # type: ignore[union-attr]
    return exchange


def _naming(exchange: Exchange) -> SessionArgument:
    if exchange.session is None:
        return SessionArgument.REQUIRED
    return SessionArgument.OPTIONAL if exchange.issued else SessionArgument.BOUND


def _payload(tool: Tool, arguments: Mapping[str, Any]) -> Any:
    ours = {"session_id"} if tool.names_session else set()
    given = {name: value for name, value in arguments.items() if name not in ours}
    if not tool.raw_payload:
        return given
    if set(given) != {"payload"}:
        raise Invalid(f"{tool.name} takes one argument, payload", pointer="/payload")
    return given["payload"]


def _shape(tool: Tool, deferred: bool) -> McpTool:
    return McpTool(
        name=tool.name,
        description=tool.description,
        input_schema=dict(tool.parameters),
        output_schema=None if deferred else dict(tool.output),
    )


def _text(task: Task, message: str) -> str:
    if task.state is State.SUCCEEDED:
        result = msgspec.json.decode(task.result or "null")
        return result if isinstance(result, str) else task.result or "null"
    if task.state in FINAL:
        return message
    return f"{message} It is not over yet: {RESULT} with task_id {task.id} gives the result later."


def _refusal(error: OnwardError) -> CallToolResult:
    text = with_hint(error, TOOLS)
    body: dict[str, Any] = {"code": error.code, "message": str(error)}
    if isinstance(error, Invalid) and error.pointer:
        body["pointer"] = error.pointer
    return CallToolResult(content=_texts(text), structured_content={"error": body}, is_error=True)


def _texts(*texts: str) -> list[Any]:
    return [TextContent(type="text", text=text) for text in texts]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _plain(reply: ToolReply) -> Any:
    return msgspec.json.decode(msgspec.json.encode(reply.body))
