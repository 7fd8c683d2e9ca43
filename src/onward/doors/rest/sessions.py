"""POST /api/v2/sessions/{session_id}/tasks: as POST /api/v2/tasks, within a session."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from onward.core.task import FINAL
from onward.doors.rest.route import caller_of
from onward.doors.rest.shapes import Key, Name, SubmitBody, TaskShape
from onward.doors.route import StrictRoute, answer
from onward.native.sessions import Sessions


def build(sessions: Sessions) -> APIRouter:
    router = APIRouter(prefix="/api/v2/sessions", tags=["sessions"], route_class=StrictRoute)

    @router.post(
        "/{session_id}/tasks", response_model=TaskShape, responses={202: {"model": TaskShape}}
    )
    async def submit(
        request: Request,
        session_id: Annotated[Name, Path()],
        body: Annotated[SubmitBody, Body()],
        wait_ms: Annotated[int, Query(ge=0, le=600_000)] = 0,
        idempotency_key: Annotated[Key | None, Header()] = None,
    ) -> Response:
        caller = caller_of(request.scope)
        task = await sessions.submit(caller, session_id, body, wait_ms, idempotency_key)
        return answer(task, 200 if task.state in FINAL else 202)

    return router
