"""/api/v2/log/readers: who reads the log, how far they are, and forgetting one that is gone."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from onward.core.errors import NotFound
from onward.core.readers import Readers
from onward.doors.route import StrictRoute, answer


class ReaderShape(BaseModel):
    name: str
    cursor: str
    behind_ms: int
    seen_at: int | None
    silent_ms: int
    retired: bool


class ReadersShape(BaseModel):
    items: list[ReaderShape]
    next: str | None


def build(readers: Readers) -> APIRouter:
    router = APIRouter(prefix="/api/v2/log/readers", tags=["log"], route_class=StrictRoute)

    @router.get("", response_model=ReadersShape)
    async def list_readers() -> Response:
        return answer({"items": await readers.list(), "next": None})

    @router.delete("/{name}", status_code=204)
    async def forget(name: str) -> Response:
        if not await readers.forget(name):
            raise NotFound("no reader of the log has this name")
        return Response(status_code=204)

    return router
