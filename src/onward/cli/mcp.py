"""`onward mcp`: MCP on stdin and stdout, for clients that start their servers themselves.

A bridge to /mcp of a running server: each line in is a call there, each answer a line out. Knows
of MCP only what the way to HTTP needs, and keeps going when the server does not.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from onward.cli.commands import Options, option
from onward.cli.terminal import USAGE, fail
from onward.urls import shown

if TYPE_CHECKING:
    import httpx2

VERSION = "io.modelcontextprotocol/protocolVersion"
NAMES = {"tools/call": "name", "tasks/get": "taskId", "tasks/update": "taskId"}
INTERNAL = -32603
SILENCE_S = 120.0  # the server pings an answer that takes long
AGAIN_S, AWAY_S = 1.0, 60.0  # how soon a call that was cut is taken up again, and how long
GOODBYE_S = 2.0  # for answers under way when stdin is closed


OPTIONS: Options = {
    "session": option(
        "--session",
        "The session that its tasks belong to; by default one of this process alone.",
        envvar="ONWARD_SESSION",
        show_default=False,
    ),
    "only": option("--only", "Offer the tools of these services alone: a name, or several a,b."),
}


def mcp(session: str | None, only: str | None, server: str | None) -> None:
    """Speak MCP on stdin and stdout: the tools of a running server, for an agent's configuration.

    $ {"command": "onward", "args": ["mcp", "--session", "me", "--only", "report"]}
    """
    from onward.client.address import server_url
    from onward.core.task import new_id

    try:
        url = server_url(server)
    except ValueError as error:
        fail(USAGE, "cannot speak MCP", str(error), "check --server and ONWARD_URL")
    # One that the user named binds the tools; ours holds where a call names none.
    named = {"onward-session": session} if session else {"mcp-session-id": f"mcp-{new_id()}"}
    asyncio.run(Bridge(url, named, only).run())


class Bridge:
    def __init__(self, url: str, session: Mapping[str, str], only: str | None = None) -> None:
        import httpx2

        from onward.client.address import http_options, key_of

        self._url = url
        self._query = {} if only is None else {"services": only}
        self._http = httpx2.AsyncClient(
            **http_options(url, key=key_of()), timeout=httpx2.Timeout(SILENCE_S, connect=5.0)
        )
        self._http.headers.update(
            {
                "accept": "application/json, text/event-stream",
                "content-type": "application/json",
                **session,
            }
        )
        self._version: str | None = None  # agreed on in the initialize call of an older client
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        async with self._http:
            async for line in _lines():
                self._take(line)
            if self._under_way:
                await asyncio.wait(self._under_way.values(), timeout=GOODBYE_S)
            for call in list(self._under_way.values()):
                call.cancel()

    def _take(self, line: bytes) -> None:
        import msgspec

        try:
            message = msgspec.json.decode(line)
        except msgspec.DecodeError:
            _write({"jsonrpc": "2.0", "id": None, "error": _fault(-32700, "Parse error")})
            return
        if not isinstance(message, dict):
            _write({"jsonrpc": "2.0", "id": None, "error": _fault(-32600, "Invalid request")})
            return
        params = message.get("params")
        given: Mapping[str, Any] = params if isinstance(params, dict) else {}
        if message.get("method") == "notifications/cancelled" and self._version is None:
            # Over HTTP, newer clients cancel by hanging up.
            abandoned = self._under_way.get(repr(given.get("requestId")))
            if abandoned is not None:
                abandoned.cancel()
            return
        call = asyncio.create_task(self._call(line, message, given))
        key = repr(message.get("id", call))  # "1" is another call than 1
        self._under_way[key] = call
        call.add_done_callback(lambda _: self._under_way.pop(key, None))

    async def _call(self, line: bytes, message: dict[str, Any], given: Mapping[str, Any]) -> None:
        import httpx2

        try:
            request = self._http.build_request(
                "POST",
                "/mcp",
                params=self._query,
                content=line,
                headers=self._headers(message, given),
            )
            async for answer in Answers(self._http, request).all():
                if message.get("method") == "initialize":
                    self._version = answer.get("result", {}).get("protocolVersion")
                _write(answer)
        except (httpx2.HTTPError, ValueError) as error:
            self._excuse(message, error)

    def _headers(self, message: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, str]:
        meta = given.get("_meta")
        version = meta.get(VERSION) if isinstance(meta, dict) else None
        if version is None:
            return {} if self._version is None else {"mcp-protocol-version": self._version}
        method = str(message.get("method"))
        headers = {"mcp-protocol-version": str(version), "mcp-method": method}
        name = given.get(NAMES.get(method, ""))
        return {**headers, "mcp-name": name} if isinstance(name, str) else headers

    def _excuse(self, message: Mapping[str, Any], error: Exception) -> None:
        why = (
            f"no answer from {shown(self._url)}: {error}; is the server up? `onward up` starts one"
        )
        if "id" in message:
            _write({"jsonrpc": "2.0", "id": message["id"], "error": _fault(INTERNAL, why)})
        print(why, file=sys.stderr)


class Answers:
    """What comes back for one call. A stream that is cut before its answer is taken up again by its
    first event's id, if the server sent one; it may have been restarted meanwhile.
    """

    def __init__(self, http: httpx2.AsyncClient, request: httpx2.Request) -> None:
        self._http = http
        self._request = request
        self._id = ""  # of the last event
        self._over = False

    async def all(self) -> AsyncGenerator[dict[str, Any], None]:
        import httpx2

        until = monotonic() + AWAY_S
        while True:
            try:
                async for answer in self._read():
                    until = monotonic() + AWAY_S
                    yield answer
            except httpx2.TransportError:
                if not self._id or monotonic() > until:
                    raise
            if self._ended:
                return
            await asyncio.sleep(AGAIN_S)
            headers = {**self._request.headers, "last-event-id": self._id}
            headers.pop("content-length", None)
            self._request = self._http.build_request("GET", self._request.url, headers=headers)

    @property
    def _ended(self) -> bool:
        """With the answer, or so that there is nothing to take up."""
        return self._over or not self._id

    async def _read(self) -> AsyncGenerator[dict[str, Any], None]:
        import httpx2
        import msgspec

        response = await self._http.send(self._request, stream=True)
        try:
            kind = response.headers.get("content-type", "")
            if kind.startswith("text/event-stream"):
                async for sent in httpx2.EventSource(response):
                    self._id = sent.id or self._id
                    if sent.data:
                        answer = msgspec.json.decode(sent.data)
                        self._over = "result" in answer or "error" in answer
                        yield answer
                return
            self._over = True
            body = await response.aread()
            if body and kind.startswith("application/json"):  # a notification has no answer
                yield msgspec.json.decode(body)
            elif response.is_error:
                why = body[:300].decode(errors="replace")
                raise ValueError(f"HTTP {response.status_code} {why}")
        finally:
            await response.aclose()


async def _lines() -> AsyncGenerator[bytes, None]:
    """What comes in, line by line. By a thread, since stdin may be a pipe, a file or a terminal."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        line = b"\n"
        while line:
            line = sys.stdin.buffer.readline()
            loop.call_soon_threadsafe(queue.put_nowait, line)

    threading.Thread(target=read, daemon=True).start()
    while line := await queue.get():
        if line.strip():
            yield line


def _fault(code: int, message: str) -> dict[str, Any]:
    return {"code": code, "message": message}


def _write(message: Mapping[str, Any]) -> None:
    import msgspec

    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()
