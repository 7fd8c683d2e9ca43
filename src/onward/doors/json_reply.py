"""JSON as every door writes it; long bodies are zipped for callers that accept it."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

ZIPPED_FROM = 4 * 1024  # bytes of an answer: a list, not a task
ZIPPED_ASIDE_FROM = 128 * 1024  # about a millisecond: longer, and the others wait for it
ZIP_LEVEL = 1  # JSON shrinks to a tenth at once; more effort saves little


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
