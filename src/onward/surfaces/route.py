"""How a door with typed bodies reads and answers: strict JSON in, one encoder out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from fastapi import HTTPException
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from onward.core import strict_json
from onward.core.errors import Invalid


class BadBody(HTTPException):
    """Carries an Invalid through FastAPI, which lets only its own out of body parsing."""

    def __init__(self, error: Invalid) -> None:
        super().__init__(400, str(error))
        self.error = error


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return strict_json.parse(await self.body())
        except Invalid as error:
            raise BadBody(error) from error


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            # A body is JSON or it is refused, whatever it calls itself: curl calls it a form.
            named = [pair for pair in request.scope["headers"] if pair[0] != b"content-type"]
            scope = {**request.scope, "headers": [*named, (b"content-type", b"application/json")]}
            return await handle(_StrictRequest(scope, request.receive))

        return strict


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(body),
        status,
        dict(headers) if headers else None,
        media_type="application/json",
    )
