"""/api/v2/encryption: which keys there are by name, and sealing anew what rests under older ones.

Never says a key. One call is one step of a rotation, so that a caller may show how far it is, and
stop anywhere; a step begins where the one before says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field
from starlette.responses import Response

from onward.core.errors import Conflict
from onward.doors.rest.shapes import Strict
from onward.doors.route import StrictRoute, answer

Step = Callable[[str, bool], Awaitable[Any]]  # where to begin, and whether only to look


class RotateBody(Strict):
    after: Annotated[str, Field(max_length=1000)] = ""
    dry_run: bool = False


class KeysShape(BaseModel):
    sealing: str | None
    keys: list[str]


class RotatedShape(BaseModel):
    looked_at: int
    resealed: int
    unreadable: int
    held: dict[str, int]
    next: str | None


def build(keys: Sequence[str], step: Step | None) -> APIRouter:
    """Without keys nothing is sealed, and there is no step to make."""
    router = APIRouter(prefix="/api/v2/encryption", tags=["operations"], route_class=StrictRoute)

    @router.get("", response_model=KeysShape)
    async def read() -> Response:
        return answer({"sealing": keys[0] if keys else None, "keys": keys})

    @router.post("/rotate", response_model=RotatedShape)
    async def rotate(body: Annotated[RotateBody | None, Body()] = None) -> Response:
        said = body or RotateBody()
        if step is None:
            raise Conflict(
                "nothing is encrypted here: the server has no keys",
                hint="onward keys encryption new prints one; set it as ONWARD_ENCRYPTION_KEYS",
            )
        return answer(await step(said.after, said.dry_run))

    return router
