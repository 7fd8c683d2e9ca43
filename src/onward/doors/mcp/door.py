"""/mcp: the tools for clients that speak MCP, by streamable HTTP (S2-1).

Stateless: each call stands for itself, so any server on the ledger can reply to it, also one that
was started after a kill. The session is in the URL (`?session_id=`), in a header, or in the session
id that an older client got with its first reply. MCP itself is in server.py, which is loaded with
the first call, because that takes a second.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qs

import msgspec

from onward.core.errors import Forbidden, Invalid, NotFound
from onward.doors.callers import caller_of
from onward.doors.errors import refuse, render
from onward.doors.refusal import Refusal
from onward.native.caller import Caller, scopes_of
from onward.native.tools.toolbox import Toolbox, ToolReply, named_services
from onward.wire.sessions import is_session

PATH = "/mcp"
SESSION, ISSUED, VERSION = b"onward-session", b"mcp-session-id", b"mcp-protocol-version"
KEY = "onward.mcp"  # where an exchange is found in the scope's state

Serve = Callable[[Any, Any, Any], Awaitable[None]]


class Exchange(msgspec.Struct):
    """One HTTP request: who makes it, for which session, and the replies of its tools."""

    caller: Caller
    session: str | None
    issued: bool = False  # the server chose the session, when the client connected
    only: Collection[str] | None = None  # the services whose tools it is offered; None: all
    replies: list[ToolReply] = []
    over: bool = False  # the last byte was written


class McpDoor:
    def __init__(self, toolbox: Toolbox, *, wait_ms: int, ready: Callable[[], bool]) -> None:
        self._toolbox = toolbox
        self.scopes = scopes_of(toolbox.run)
        self._wait_ms = wait_ms
        self._ready = ready
        self._opening = asyncio.Lock()
        self._closing = asyncio.Event()
        self._serve: Serve | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        if self._keeper is not None:
            await self._keeper

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._serve is None and find_spec("mcp") is None:
            missing = Refusal(501, "not_installed", "pip install 'onward[mcp]'")
            await _send(send, *render(PATH, missing))
            return
        headers = dict(scope["headers"])
        try:
            caller = caller_of(scope)
            caller.require(*self.scopes)
            query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            session, issued = _session(query, headers)
            only = named_services(query["services"][0]) if "services" in query else None
            exchange = Exchange(caller, session, issued, only)
            await self._toolbox.enter(caller, exchange.session)
        except (Forbidden, Invalid, NotFound) as error:
            id = scope.get("state", {}).get("request_id", "")
            await refuse(PATH, id, error)(scope, receive, send)
            return
        scope.setdefault("state", {})[KEY] = exchange
        # A client of an older version begins without naming a version, and keeps the id it gets.
        newcomer = exchange.session is None and VERSION not in headers

        async def watched(message: Any) -> None:
            if newcomer and message["type"] == "http.response.start" and message["status"] == 200:
                message["headers"] = [*message["headers"], (ISSUED, uuid.uuid4().hex.encode())]
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                exchange.over = True

        serve = self._serve or await self._open()
        await serve(scope, receive, watched)
        if exchange.over:
            for reply in exchange.replies:
                await self._toolbox.acknowledge(exchange.caller, reply)

    async def _open(self) -> Serve:
        async with self._opening:
            if self._serve is None:
                build = await asyncio.to_thread(_load)
                manager = build(self._toolbox, wait_ms=self._wait_ms, ready=self._ready)
                running = asyncio.Event()
                self._keeper = asyncio.create_task(self._keep(manager, running))
                await running.wait()
                self._serve = manager.handle_request
            return self._serve

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


async def _send(send: Any, kind: str, body: bytes) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 501, "headers": headers})
    await send({"type": "http.response.body", "body": body})
