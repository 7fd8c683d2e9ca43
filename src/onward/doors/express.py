"""Endpoints straight on ASGI, for calls whose own work costs less than a framework's layers.

The framework knows the same endpoints, for the document and for a server that mounts it elsewhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from onward.doors import errors
from onward.doors.callers import caller_of
from onward.errors import OnwardError
from onward.native.caller import Caller

Endpoint: TypeAlias = Callable[[Caller, bytes], Awaitable[Response]]


class Express:
    def __init__(self, app: Any, endpoints: Mapping[tuple[str, str], Endpoint]) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            endpoint = self._endpoints.get((scope["method"], scope["path"]))
            if endpoint is not None:
                try:
                    response = await endpoint(caller_of(scope), await _body(receive))
                except OnwardError as error:
                    request_id = scope.get("state", {}).get("request_id", "")
                    response = errors.refuse(scope["path"], request_id, error)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _body(receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> bytes:
    message = await receive()
    whole: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        whole += message.get("body", b"")
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return whole
