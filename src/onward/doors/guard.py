"""Before every door: how large a body may be, whose page may speak to us, who calls (access.py), a
number for each call.

Decides from headers alone, so a call that is in order pays for one look at them. Never reads a body
on its own; one without a length is counted as the door reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from itertools import count
from types import MappingProxyType
from typing import Any

import structlog
from starlette.requests import ClientDisconnect

from onward.core.errors import Unauthorized
from onward.doors.access import PROTOCOL, Access, unauthorized
from onward.doors.errors import render
from onward.doors.refusal import Refusal
from onward.native.caller import OPERATOR
from onward.wire.base import MAX_BODY

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

INTERNAL = "Internal error"  # all that a caller learns of a fault of ours
# What any request may be refused with here, whatever its path.
STATUSES = (400, 401, 403, 413, 415, 421, 429, 500, 503)
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
SINGLE = (b"host", b"origin", b"content-length", b"authorization", b"x-api-key")
# No browser guesses at a type, and no other site's page embeds an answer as an image or a script.
FIXED_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
ORIGIN_HINT = (
    "if the page is yours: name its origin in ONWARD_ALLOWED_ORIGINS, or let the proxy pass on "
    "Host with its port (nginx: proxy_set_header Host $http_host)"
)

log = structlog.get_logger("onward.guard")
_given_id = re.compile(rb"[A-Za-z0-9._-]{1,64}").fullmatch
_server_id = secrets.token_hex(4)
_number = count(1)


class Guard:
    def __init__(
        self,
        app: App,
        access: Access,
        *,
        max_body: int = MAX_BODY,
        larger: Mapping[str, int] = MappingProxyType({}),  # by path
        allowed_hosts: Collection[str] = (),
        allowed_origins: Collection[str] = (),
        answered: Counter[int] | None = None,
    ) -> None:
        self._app = app
        self._access = access
        self._keys = access.keys
        self._max_body = max_body
        self._larger = larger
        self._hosts = {host.lower() for host in allowed_hosts}
        self._origins = {origin.lower().rstrip("/") for origin in allowed_origins}
        self._answered: Counter[int] = Counter() if answered is None else answered
        self._good_hosts: set[tuple[str | None, bytes]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        most = self._larger.get(scope["path"], self._max_body)
        call = _GuardedCall(scope, receive, send, most, _request_id(headers), self._answered)
        caller = OPERATOR
        try:
            self._check(scope, headers, most)
            if not self._keys.open:
                caller = scope["state"]["caller"] = self._access.caller(scope, headers)
        except Refusal as refusal:
            await call.refuse(refusal)
            return
        if scope["type"] == "http":
            if b"content-length" not in headers:
                receive = call.count
            if scope["method"] == "HEAD":  # answered as a GET, without its body
                call.head_only = True
                scope = {**scope, "method": "GET"}
        try:
            with self._keys.calling(caller):
                await self._app(scope, receive, call.send)
        except ClientDisconnect:
            pass  # gone in the middle of its body, or refused there by us: no caller is left
        except asyncio.CancelledError:
            if self._keys.is_dead(caller):
                await call.refuse(unauthorized(Unauthorized("this key is revoked, or has expired")))
            else:
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

    def _check(self, scope: Scope, headers: dict[bytes, bytes], most: int) -> None:
        if len(headers) != len(scope["headers"]):
            _refuse_twins(scope["headers"])
        host = headers.get(b"host")
        server = scope.get("server")
        if (server and server[0], host) not in self._good_hosts:
            self._check_host(scope, host)
        http = scope["type"] == "http"
        site = headers.get(b"sec-fetch-site")
        if site is not None or b"origin" in headers:
            self._check_page(site, headers, host, reads=http and scope["method"] in SAFE)
        if http:
            self._check_body(headers, most)

    def _check_body(self, headers: dict[bytes, bytes], most: int) -> None:
        length = headers.get(b"content-length")
        if length is not None and not length.isdigit():
            raise Refusal(400, "invalid_request", "Content-Length is not a number")
        if length is not None and (len(length) > 18 or int(length) > most):
            raise _too_large(most)
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

    def _check_page(
        self,
        site: bytes | None,
        headers: dict[bytes, bytes],
        host: bytes | None,
        *,
        reads: bool,
    ) -> None:
        """A browser sends another page's request with our user's rights, and names that page.

        Sec-Fetch-Site is the browser's own comparison with the address that it asked, so it holds
        behind a proxy that rewrites Host; a page cannot set it. Older browsers send Origin alone.
        """
        if site in (b"same-origin", b"none"):
            return
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if origin in self._origins:
            return
        if reads:
            # Another site's page would start scans and hold streams open; a link to us is welcome.
            if site != b"cross-site" or _is_navigation(headers):
                return
        elif site is None and host and origin.partition("://")[2] == host.decode("latin-1").lower():
            return
        raise Refusal(403, "bad_origin", "This page may not do that here", hint=ORIGIN_HINT)


class _GuardedCall:
    """One call as the guard sees it: what was sent already, and how much came in."""

    __slots__ = (
        "_answered", "_limit", "_receive", "_room", "_scope", "_send", "_started", "head_only",
        "held", "request_id",
    )  # fmt: skip

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        max_body: int,
        request_id: str,
        answered: Counter[int],
    ) -> None:
        self._answered = answered  # by status
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limit = self._room = max_body
        self._started = False
        self.held: list[Message] | None = None
        self.head_only = False
        self.request_id = request_id
        scope.setdefault("state", {})["request_id"] = request_id

    async def send(self, message: Message) -> None:
        if self._room < 0:
            return  # refused already: what the door makes of the cut body is of no interest
        if not self._started:
            kind = message["type"]
            if kind == "http.response.start" or kind == "websocket.accept":
                given = message.get("headers") or ()
                message["headers"] = [*given, *self._own_headers()]
                if kind == "websocket.accept" and PROTOCOL in self._scope.get("subprotocols", ()):
                    message.setdefault("subprotocol", PROTOCOL)
                if message.get("status") == 500 and self.held is None:
                    self.held = []
            # Starlette answers a fault in its own words and then raises: until the door is through,
            # a 500 may still have to be written in this door's words.
            if self.held is not None:
                self.held.append(message)
                return
            self._started = True
            if kind == "http.response.start":
                self._answered[message["status"]] += 1
        if self.head_only and message["type"] == "http.response.body":
            # The first part of a body ends the answer: a stream would else go on unseen. The
            # server reports a disconnect to the door, and nothing more of it is sent.
            self._room, message = -1, {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def release(self) -> None:
        held, self.held, self._started = self.held or [], None, True
        self._answered[500] += 1
        for message in held:
            await self.send(message)

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
        socket = self._scope["type"] == "websocket"
        # How a handshake is refused with a status and a body; a plain close is 403 without one.
        answers = not socket or "websocket.http.response" in self._scope.get("extensions", ())
        if self._started or not answers:
            await self._hang_up(refusal)
            return
        self._started = True
        self._answered[refusal.status] += 1
        kind, body = render(self._scope["path"], refusal, self.request_id)
        headers = [
            (b"content-type", kind.encode()),
            (b"content-length", str(len(body)).encode()),
            *((name.encode(), value.encode()) for name, value in refusal.headers.items()),
            *self._own_headers(),
        ]
        of = "websocket.http" if socket else "http"
        start = {"type": f"{of}.response.start", "status": refusal.status, "headers": headers}
        await self._send(start)
        await self._send({"type": f"{of}.response.body", "body": body})

    async def _hang_up(self, refusal: Refusal) -> None:
        """Too late for a status: an answer that breaks off is how the caller learns of it."""
        if self._scope["type"] == "websocket":
            # A socket that closed meanwhile takes no second goodbye.
            with contextlib.suppress(RuntimeError, OSError):
                code = 1011 if self._started and refusal.status >= 500 else 1008
                await self._send({"type": "websocket.close", "code": code})

    def _own_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return (b"x-request-id", self.request_id.encode()), *FIXED_HEADERS


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id")
    if given is not None and _given_id(given):
        return given.decode()
    return f"{_server_id}{next(_number):06x}"


def _refuse_twins(headers: Collection[tuple[bytes, bytes]]) -> None:
    """Two of these, and we and the proxy before us may each believe another one."""
    names = [name for name, _ in headers]
    for name in SINGLE:
        if names.count(name) > 1:
            raise Refusal(400, "invalid_request", f"More than one {name.decode()} header")


def _is_navigation(headers: dict[bytes, bytes]) -> bool:
    """A person followed a link; the page that has it sees nothing of the answer."""
    top = headers.get(b"sec-fetch-dest", b"document") == b"document"
    return top and headers.get(b"sec-fetch-mode") == b"navigate"


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
