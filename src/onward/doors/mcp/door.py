"""/mcp: the tools for clients that speak MCP, by streamable HTTP (S2-1).

Stateless: each call stands for itself, so any server on the ledger can reply to it, also one that
was started after a kill. The session is in the URL (`?session_id=`), in a header, or in the session
id that an older client got with its first reply. MCP itself is in server.py, which is loaded with
the first call, because that takes a second. GET takes up a call whose connection was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.responses import Response

from onward.core.errors import Forbidden, Invalid, NotFound
from onward.doors.callers import caller_of
from onward.doors.errors import refuse, render
from onward.doors.mcp import resuming
from onward.doors.refusal import Refusal
from onward.doors.streaming import EVENT_STREAM
from onward.native.caller import Caller, scopes_of
from onward.native.tools.toolbox import Toolbox, ToolReply, named_services
from onward.wire.sessions import is_session

PATH = "/mcp"
SESSION, ISSUED, VERSION = b"onward-session", b"mcp-session-id", b"mcp-protocol-version"
LAST_EVENT = b"last-event-id"
KEY = "onward.mcp"  # where an exchange is found in the scope's state

Serve = Callable[[Any, Any, Any], Awaitable[None]]
Resume = Callable[["Exchange", str], Awaitable[Response | None]]


class Exchange(msgspec.Struct):
    """One HTTP request: who makes it, for which session, and the replies of its tools."""

    caller: Caller
    session: str | None
    issued: bool = False  # the server chose the session, when the client connected
    only: Collection[str] | None = None  # the services whose tools it is offered; None: all
    replies: list[ToolReply] = []
    over: bool = False  # the last byte was written
    resumable: str | None = None  # the id under which the call may be taken up again

    @property
    def chosen(self) -> str | None:
        """The session that the client chose: its calls name no other."""
        return None if self.issued else self.session


class McpDoor:
    def __init__(self, toolbox: Toolbox, *, wait_ms: int, ready: Callable[[], bool]) -> None:
        self._toolbox = toolbox
        self.scopes = scopes_of(toolbox.run)
        self._wait_ms = wait_ms
        self._ready = ready
        self._opening = asyncio.Lock()
        self._closing = asyncio.Event()
        self._opened: tuple[Serve, Resume] | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        if self._keeper is not None:
            await self._keeper

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._opened is None and find_spec("mcp") is None:
            missing = Refusal(501, "not_installed", "pip install 'onward[mcp]'")
            await _send(send, *render(PATH, missing), status=501)
            return
        headers = dict(scope["headers"])
        try:
            caller = caller_of(scope)
            caller.require(*self.scopes)
            query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            session, issued = _session(query, headers)
            only = named_services(query["services"][0]) if "services" in query else None
            exchange = Exchange(caller, session, issued, only)
            looks = scope["method"] != "POST"
            await self._toolbox.enter(caller, exchange.session, looks=looks)
        except (Forbidden, Invalid, NotFound) as error:
            id = scope.get("state", {}).get("request_id", "")
            await refuse(PATH, id, error)(scope, receive, send)
            return
        scope.setdefault("state", {})[KEY] = exchange
        serve, resume = await self._open()
        if scope["method"] != "POST":
            last = headers.get(LAST_EVENT, b"").decode("latin-1")
            found = await resume(exchange, last) if last and scope["method"] == "GET" else None
            if found is None:
                text = "POST calls; GET with the Last-Event-ID of a call takes it up again"
                refusal = Refusal(405, "method_not_allowed", text)
                await _send(send, *render(PATH, refusal), status=405, allow="POST")
                return
            serve = found
        await self._answer(serve, exchange, headers, scope, receive, send)

    async def _answer(
        self,
        serve: Serve,
        exchange: Exchange,
        headers: Mapping[bytes, bytes],
        scope: Any,
        receive: Any,
        send: Any,
    ) -> None:
        version = headers.get(VERSION, b"").decode("latin-1")
        # A client of an older version begins without naming a version, and keeps the id it gets.
        calls = scope["method"] == "POST"
        newcomer = calls and exchange.session is None and not version
        peek = resuming.Peek(receive)
        if calls and not newcomer and resuming.may_resume(version, exchange.session):
            exchange.resumable = resuming.new_id()

        async def watched(message: Any) -> None:
            begins = message["type"] == "http.response.start" and message["status"] == 200
            if newcomer and begins:
                issued = (ISSUED, resuming.new_session(peek.body).encode())
                message["headers"] = [*message["headers"], issued]
            await send(message)
            if exchange.resumable and begins and _is_stream(message):
                first = resuming.first_event(exchange.resumable)
                await send({"type": "http.response.body", "body": first, "more_body": True})
            if message["type"] == "http.response.body" and not message.get("more_body"):
                exchange.over = True

        await serve(scope, peek if newcomer else receive, watched)
        if exchange.over:
            for reply in exchange.replies:
                await self._toolbox.acknowledge(exchange.caller, reply)

    async def _open(self) -> tuple[Serve, Resume]:
        if self._opened is not None:
            return self._opened
        async with self._opening:
            if self._opened is None:
                build = await asyncio.to_thread(_load)
                manager, handlers = build(self._toolbox, wait_ms=self._wait_ms, ready=self._ready)
                running = asyncio.Event()
                self._keeper = asyncio.create_task(self._keep(manager, running))
                await running.wait()
                self._opened = manager.handle_request, handlers.resume
            return self._opened

    async def _keep(self, manager: Any, running: asyncio.Event) -> None:
        async with manager.run():
            running.set()
            await self._closing.wait()


def _load() -> Any:
    from onward.doors.mcp.server import build

    return build


def _session(
    query: Mapping[str, Sequence[str]], headers: dict[bytes, bytes]
) -> tuple[str | None, bool]:
    named = query["session_id"][0] if "session_id" in query else None
    if named is None and SESSION in headers:
        named = headers[SESSION].decode("utf-8", "replace")
    issued = named is None and ISSUED in headers
    if issued:
        named = headers[ISSUED].decode("utf-8", "replace")
    if named is not None and not is_session(named):
        raise Invalid("session_id is a text of 1 to 128 characters", pointer="session_id")
    return named, issued


def _is_stream(start: Mapping[str, Any]) -> bool:
    kind = dict(start["headers"]).get(b"content-type", b"")
    return bool(kind.startswith(EVENT_STREAM.encode()))


async def _send(send: Any, kind: str, body: bytes, *, status: int, **more: str) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in more.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
