"""Lists that are one array, however long they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from onward.core.contract import PAGE_BYTES

FURTHER = 500  # tasks on a page after the first, when most of those before did not fit
JSON = "application/json"


async def array(
    parts: AsyncIterator[Sequence[Any]], before: bytes = b"", after: bytes = b""
) -> Response:
    """All parts as one JSON array. If it is long, the rest is read while the beginning is sent: a
    list has no place to stop at, and must not be held in memory whole.
    """
    begun: list[bytes] = []
    spent = 0
    async for part in parts:
        if part:
            begun.append(_inside(part))
            spent += len(begun[-1])
        if spent > PAGE_BYTES:
            sent = _sent(before + b"[" + b",".join(begun), parts, b"]" + after)
            return StreamingResponse(sent, media_type=JSON)
    return Response(before + b"[" + b",".join(begun) + b"]" + after, media_type=JSON)


async def _sent(
    begun: bytes, parts: AsyncIterator[Sequence[Any]], after: bytes
) -> AsyncIterator[bytes]:
    yield begun
    async for part in parts:
        if part:
            yield b"," + _inside(part)
    yield after


def _inside(part: Sequence[Any]) -> bytes:
    return msgspec.json.encode(part)[1:-1]
