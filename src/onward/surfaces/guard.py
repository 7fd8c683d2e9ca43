"""Before every door: how large a body may be, whose page may speak to us, a number for each call.

Decides from headers alone, so a call that is in order pays for one look at them. Never reads a body
on its own; one without a length is counted as the door reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from itertools import count
from typing import Any

import structlog
from starlette.requests import ClientDisconnect

from onward.surfaces.wire import INTERNAL, error_body

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 1 << 20
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
SINGLE = (b"host", b"origin", b"content-length")
NOSNIFF = (b"x-content-type-options", b"nosniff")

log = structlog.get_logger("onward.guard")
_given_id = re.compile(rb"[A-Za-z0-9._-]{1,64}").fullmatch
_server_id = secrets.token_hex(4)
_number = count(1)


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Guard:
    def __init__(
        self,
        app: App,
        *,
        max_body: int = MAX_BODY,
        allowed_hosts: Collection[str] = (),
        allowed_origins: Collection[str] = (),
    ) -> None:
        self._app = app
        self._max_body = max_body
        self._hosts = {host.lower() for host in allowed_hosts}
        self._origins = {origin.lower().rstrip("/") for origin in allowed_origins}
        self._good_hosts: set[tuple[str | None, bytes]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        call = _Call(scope, receive, send, self._max_body, _request_id(headers))
        try:
            self._check(scope, headers)
        except Refusal as refusal:
            await call.refuse(refusal)
            return
        if scope["type"] == "http" and b"content-length" not in headers:
            receive = call.count
        try:
            await self._app(scope, receive, call.send)
        except ClientDisconnect:
            pass  # gone in the middle of its body, or refused there by us: nobody to tell
        except asyncio.CancelledError:
            # The server stops and cannot wait for this one: say so instead of hanging up.
            await call.refuse(Refusal(503, "stopping", "Server is stopping"))
        except Exception as error:
            log.error(
                "a call failed",
                request_id=call.request_id,
                method=scope.get("method", "WEBSOCKET"),
                path=scope["path"],
                exc_info=error,
            )
            await call.refuse(Refusal(500, "internal", INTERNAL))
        else:
            if call.held:
                await call.release()

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if len(headers) != len(scope["headers"]):
            _refuse_twins(scope["headers"])
        host = headers.get(b"host")
        server = scope.get("server")
        if (server and server[0], host) not in self._good_hosts:
            self._check_host(scope, host)
        http = scope["type"] == "http"
        origin = headers.get(b"origin")
        if origin is not None and not (http and scope["method"] in SAFE):
            self._check_origin(origin, host)
        if http:
            self._check_body(headers)

    def _check_body(self, headers: dict[bytes, bytes]) -> None:
        length = headers.get(b"content-length")
        if length is not None and not length.isdigit():
            raise Refusal(400, "invalid_request", "Content-Length is not a number")
        if length is not None and (len(length) > 18 or int(length) > self._max_body):
            raise _too_large(self._max_body)
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        transfer = headers.get(b"transfer-encoding", b"chunked").strip().lower()
        if encoding not in (b"identity", b"") or transfer != b"chunked":
            raise Refusal(415, "unsupported", "A compressed body is not accepted; send it as it is")

    def _check_host(self, scope: Scope, host: bytes | None) -> None:
        """A page that re-points its own name at 127.0.0.1 still says that name here."""
        if host is None:
            if scope.get("http_version") == "1.0":
                return
            raise Refusal(400, "invalid_request", "The Host header is missing")
        server = scope.get("server")
        address = server[0] if server else None
        if _is_loopback(address) and not self._known(host.decode("latin-1").lower()):
            raise Refusal(421, "bad_host", "Unknown Host; name it in ONWARD_ALLOWED_HOSTS")
        if len(self._good_hosts) < 256:
            self._good_hosts.add((address, host))

    def _known(self, host: str) -> bool:
        name, _, port = host.rpartition(":")
        if not (name and port.isdigit()) or host.endswith("]"):
            name = host
        if {host, name} & self._hosts or name == "localhost" or name.endswith(".localhost"):
            return True
        return _address(name.removeprefix("[").removesuffix("]")) is not None

    def _check_origin(self, origin: bytes, host: bytes | None) -> None:
        """A browser sends another page's request with our user's rights, and says whose it is."""
        said = origin.decode("latin-1").lower()
        own = host.decode("latin-1").lower() if host else None
        if said.partition("://")[2] != own and said not in self._origins:
            raise Refusal(403, "bad_origin", "This page may not do that here")


class _Call:
    """One call as the guard sees it: what was sent already, and how much came in."""

    __slots__ = ("_limit", "_receive", "_room", "_scope", "_send", "_started", "held", "request_id")

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, max_body: int, request_id: str
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limit = self._room = max_body
        self._started = False
        self.held: list[Message] | None = None
        self.request_id = request_id
        scope.setdefault("state", {})["request_id"] = request_id

    async def send(self, message: Message) -> None:
        if self._room < 0:
            return  # refused already: what the door makes of the cut body interests nobody
        if not self._started:
            kind = message["type"]
            if kind == "http.response.start" or kind == "websocket.accept":
                given = message.get("headers") or ()
                message["headers"] = [*given, *self._own_headers()]
                if message.get("status") == 500 and self.held is None:
                    self.held = []
            # Starlette answers a fault in its own words and then raises: until the door is through,
            # a 500 may still have to be said in this door's words.
            if self.held is not None:
                self.held.append(message)
                return
            self._started = True
        await self._send(message)

    async def release(self) -> None:
        held, self.held, self._started = self.held or [], None, True
        for message in held:
            await self._send(message)

    async def count(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        self._room -= len(message.get("body", b""))
        if self._room >= 0:
            return message
        if not self._started:
            await self.refuse(_too_large(self._limit))
        return {"type": "http.disconnect"}

    async def refuse(self, refusal: Refusal) -> None:
        if self._started or self._scope["type"] == "websocket":
            await self._hang_up()
            return
        self._started = True
        kind, body = error_body(
            self._scope["path"], refusal.status, refusal.code, refusal.message, self.request_id
        )
        headers = [
            (b"content-type", kind.encode()),
            (b"content-length", str(len(body)).encode()),
            *self._own_headers(),
        ]
        start = {"type": "http.response.start", "status": refusal.status, "headers": headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})

    async def _hang_up(self) -> None:
        """Too late for a status: an answer that breaks off is how the caller learns of it."""
        if self._scope["type"] == "websocket":
            # A socket that closed meanwhile takes no second goodbye.
            with contextlib.suppress(RuntimeError, OSError):
                code = 1011 if self._started else 1008
                await self._send({"type": "websocket.close", "code": code})

    def _own_headers(self) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
        return (b"x-request-id", self.request_id.encode()), NOSNIFF


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id")
    if given is not None and _given_id(given):
        return given.decode()
    return f"{_server_id}{next(_number):06x}"


def _refuse_twins(headers: Collection[tuple[bytes, bytes]]) -> None:
    """Two of these, and we and whoever is before us may each believe another one."""
    names = [name for name, _ in headers]
    for name in SINGLE:
        if names.count(name) > 1:
            raise Refusal(400, "invalid_request", f"More than one {name.decode()} header")


def _too_large(limit: int) -> Refusal:
    return Refusal(413, "too_large", f"The body is larger than {limit} bytes")


def _is_loopback(address: str | None) -> bool:
    found = _address(address) if address else None
    return found is None or found.is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
