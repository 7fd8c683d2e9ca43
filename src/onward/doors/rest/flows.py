"""/api/v2/flows: what is published, which versions, and what is wrong with a definition (N-5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Body
from pydantic import Field
from starlette.responses import Response

from onward.doors.rest.shapes import Number, Strict
from onward.doors.route import StrictRoute, answer
from onward.flow import graph
from onward.flow.catalog import Flow, Flows, Published, Version, version_id
from onward.flow.definition import DefinitionFaults, parse
from onward.flow.parts import Definition, Flaw

LISTED = 100  # versions shown of one flow, the newest


class FlowBody(Strict):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    definition: Any = None


class DefinitionBody(Strict):
    definition: Any


def build(flows: Flows) -> APIRouter:
    router = APIRouter(prefix="/api/v2/flows", tags=["flows"], route_class=StrictRoute)

    @router.get("")
    async def listing() -> Response:
        return answer({"items": [_flow(flow) for flow in await flows.all()], "next": None})

    @router.post("")
    async def create(body: Annotated[FlowBody, Body()]) -> Response:
        """The flow of this name, made if there was none; with a definition, a version of it."""
        if body.definition is not None:
            parse(body.definition)  # a flow is not made for a version that is refused
        flow = await flows.create(body.name)
        if body.definition is None:
            return answer(_flow(flow))
        published = await flows.publish(flow.id, body.definition)
        return answer({**_flow(await flows.find(flow.id)), **_version(published)})

    @router.post("/validate")
    async def validate(body: Annotated[DefinitionBody, Body()]) -> Response:
        """Everything that is wrong with a definition, at once, and what looks doubtful."""
        try:
            definition = parse(body.definition)
        except DefinitionFaults as error:
            faults = [_flaw(flaw) for flaw in error.flaws]
            return answer({"valid": False, "faults": faults, "warnings": []})
        warnings = [_flaw(flaw) for flaw in definition.warnings]
        return answer({"valid": True, "faults": [], "warnings": warnings, **drawn(definition)})

    @router.get("/{flow}")
    async def read(flow: str) -> Response:
        found = await flows.find(flow)
        if not found.version:
            return answer({**_flow(found), "versions": []})
        newest = await flows.pick(found.id)
        numbers = range(found.version, max(0, found.version - LISTED), -1)
        versions = [
            _versioned((await flows.read(version_id(found.id, number))).version)
            for number in numbers
        ]
        return answer({**_flow(found), **_version(newest), "versions": versions})

    @router.get("/{flow}/versions/{number}")
    async def read_version(flow: str, number: Number) -> Response:
        return answer(_version(await flows.pick(flow, number)))

    @router.post("/{flow}/versions")
    async def publish(flow: str, body: Annotated[DefinitionBody, Body()]) -> Response:
        return answer(_version(await flows.publish(flow, body.definition)))

    return router


def drawn(definition: Definition, states: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """A definition as a picture and as rows to draw one from."""
    told = states or {}
    return {
        "nodes": [
            {
                "key": row.path,
                "kind": row.kind,
                "what": row.what,
                "depth": row.depth,
                "start": row.start,
                "status": told.get(row.path),
                "edges": [{"action": action, "to": to} for action, to in row.leads_to],
            }
            for row in graph.outline(definition)
        ],
        "mermaid": graph.mermaid(definition, states),
    }


def _flow(flow: Flow) -> Mapping[str, Any]:
    return {
        "id": flow.id,
        "name": flow.name,
        "version": flow.version,
        "created_at": flow.created_at,
        "links": {
            "self": f"/api/v2/flows/{flow.id}",
            "runs": f"/api/v2/runs?flow={quote(flow.name)}",
        },
    }


def _versioned(version: Version) -> Mapping[str, Any]:
    return {
        "version_id": version.id,
        "version": version.version,
        "status": version.status,
        "published_at": version.created_at,
    }


def _version(published: Published) -> Mapping[str, Any]:
    version, definition = published
    return {
        "flow_id": version.flow_id,
        "name": version.name,
        **_versioned(version),
        "definition": version.definition,
        "warnings": [_flaw(flaw) for flaw in definition.warnings],
        **drawn(definition),
    }


def _flaw(flaw: Flaw) -> Mapping[str, Any]:
    return {"node": flaw.node, "field": flaw.field, "message": flaw.message}
