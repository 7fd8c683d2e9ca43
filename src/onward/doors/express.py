"""Endpoints straight on ASGI, for calls whose own work costs less than a framework's layers.

The framework knows the same endpoints, for the document and for a server that mounts it elsewhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from onward.doors import errors
from onward.doors.callers import caller_of
from onward.doors.route import UseCaseRoute
from onward.errors import OnwardError
from onward.native.caller import Caller

Place: TypeAlias = tuple[str, str]  # method and path
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Endpoint: TypeAlias = Callable[[Caller, bytes], Awaitable[Response]]
_Call: TypeAlias = Callable[[Any, Any], Awaitable[Response]]


class Express:
    def __init__(
        self, app: Any, endpoints: Mapping[Place, Endpoint], routes: Sequence[UseCaseRoute] = ()
    ) -> None:
        """`endpoints` read their requests by hand; `routes` are the framework's own, if nothing is
        named in their paths.
        """
        self._app = app
        self._calls = {
            **{place: _by_hand(endpoint) for place, endpoint in endpoints.items()},
            **{(method, one.path): _routed(one) for one in routes for method in one.methods or ()},
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            call = self._calls.get((scope["method"], scope["path"]))
            if call is not None:
                try:
                    response = await call(scope, receive)
                except OnwardError as error:
                    request_id = scope.get("state", {}).get("request_id", "")
                    response = errors.refuse(scope["path"], request_id, error)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _by_hand(endpoint: Endpoint) -> _Call:
    async def call(scope: Any, receive: Receive) -> Response:
        return await endpoint(caller_of(scope), await _body(receive))

    return call


def _routed(route: UseCaseRoute) -> _Call:
    async def call(scope: Any, receive: Any) -> Response:
        response: Response = await route.endpoint(Request(scope, receive))
        return response

    return call


async def _body(receive: Receive) -> bytes:
    message = await receive()
    whole: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        whole += message.get("body", b"")
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return whole
