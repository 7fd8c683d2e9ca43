"""How a door with typed bodies reads and answers: strict JSON in, one encoder out.

Long answers are zipped for those who accept it.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from fastapi import HTTPException
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from onward.core import strict_json
from onward.core.errors import Invalid

ZIPPED_FROM = 4 * 1024  # bytes of an answer: a list, not a task
ZIPPED_ASIDE_FROM = 128 * 1024  # about a millisecond: longer, and the others wait for it
ZIP_LEVEL = 1  # JSON shrinks to a tenth at once; more effort saves little


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
            response = await handle(_StrictRequest(scope, request.receive))
            await zip_if_long(request, response)
            return response

        return strict


async def zip_if_long(request: Request, response: Response) -> None:
    if len(getattr(response, "body", b"")) < ZIPPED_FROM:  # a stream has no body
        return
    response.headers["vary"] = "accept-encoding"
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return
    body = bytes(response.body)
    if len(body) < ZIPPED_ASIDE_FROM:
        response.body = gzip.compress(body, ZIP_LEVEL, mtime=0)
    else:
        response.body = await asyncio.to_thread(gzip.compress, body, ZIP_LEVEL, mtime=0)
    response.headers["content-encoding"] = "gzip"
    response.headers["content-length"] = str(len(response.body))


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(body),
        status,
        dict(headers) if headers else None,
        media_type="application/json",
    )
