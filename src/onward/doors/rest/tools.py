"""/api/v2/tools: the agent door's tools over HTTP, also as OpenAI defines tools (S2-1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header, Query
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from onward.doors.rest.shapes import Key, Name
from onward.doors.route import StrictRoute, answer
from onward.native.tools.toolbox import Toolbox
from onward.native.tools.tools import Tool

Bound = Annotated[Name | None, Query(description="Whose tools they are: no argument of theirs.")]


def build(toolbox: Toolbox) -> APIRouter:
    router = APIRouter(prefix="/api/v2/tools", tags=["tools"], route_class=StrictRoute)

    @router.get("")
    async def tools(
        format: Literal["onward", "openai"] = "onward", session_id: Bound = None
    ) -> Response:
        found = await toolbox.tools(bound=session_id is not None)
        if format == "openai":
            return answer([tool.openai for tool in found])
        return answer({"items": [_shape(tool) for tool in found], "next": None})

    @router.post("/{name}")
    async def call(
        request: Request,
        name: str,
        arguments: Annotated[dict[str, Any], Body()],
        session_id: Bound = None,
        idempotency_key: Annotated[Key | None, Header()] = None,
    ) -> Response:
        tool = await toolbox.find(name)
        said = await toolbox.call(tool, arguments, bound=session_id, key=idempotency_key)
        response = answer(said.body)
        if said.told and not await request.is_disconnected():
            # Told once it is written out, and not before: else a cut would swallow the news.
            response.background = BackgroundTask(toolbox.arrived, said)
        return response

    return router


def _shape(tool: Tool) -> Mapping[str, Any]:
    return {
        "name": tool.name,
        "kind": tool.kind,
        "description": tool.description,
        "parameters": tool.parameters,
        "service": tool.service,
        "task_types": tool.task_types,
    }
