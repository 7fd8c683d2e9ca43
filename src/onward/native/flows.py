"""Flows: what is published, which versions, and what is wrong with a definition (N-5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from onward.core.errors import Invalid
from onward.flow import graph
from onward.flow.catalog import FlowCatalog, Published, StoredFlow, Version, checked, version_id
from onward.flow.definition import DefinitionFaults
from onward.flow.parts import Flaw
from onward.native.caller import LISTS, SEES_ALL, Action, Caller, Scope, needs
from onward.wire.base import Number, Page
from onward.wire.flows import (
    CreateFlow,
    FlawView,
    FlowDefinition,
    FlowView,
    Validation,
    VersionBrief,
)

LISTED = 100  # versions shown of one flow, the newest


class Flows:
    def __init__(self, catalog: FlowCatalog) -> None:
        self._catalog = catalog

    @needs(*SEES_ALL)
    async def list(self, caller: Caller) -> Page[FlowView]:
        """Newest first."""
        return Page(items=tuple(_flow_view(flow) for flow in await self._catalog.all()))

    @needs(Scope.OPERATE)
    async def create(self, caller: Caller, body: CreateFlow) -> FlowView:
        """The flow of this name, made if there was none; with a definition, a version of it."""
        if body.definition is not None:
            checked(body.definition)  # a flow is not made for a version that is refused
        flow = await self._catalog.create(body.name)
        if body.definition is None:
            return _flow_view(flow)
        published = await self._catalog.publish(flow.id, body.definition)
        await caller.audit(Action.FLOW_PUBLISH, flow.name, version=published.version.version)
        return _with_version(_flow_view(await self._catalog.find(flow.id)), published)

    @needs(*LISTS)
    async def validate(self, caller: Caller, body: FlowDefinition) -> Validation:
        """Everything that is wrong with a definition, at once, and what looks doubtful."""
        try:
            definition = checked(body.definition)
        except DefinitionFaults as error:
            return Validation(valid=False, faults=_flaws(error.flaws), warnings=[])
        except Invalid as error:
            flaw = Flaw(None, error.pointer, str(error))
            return Validation(valid=False, faults=_flaws([flaw]), warnings=[])
        return Validation(
            valid=True,
            faults=[],
            warnings=_flaws(definition.warnings),
            nodes=graph.outline(definition),
            mermaid=graph.mermaid(definition),
        )

    @needs(*SEES_ALL)
    async def read(self, caller: Caller, flow: str) -> FlowView:
        """With its newest version, and a list of its versions."""
        found = await self._catalog.find(flow)
        view = _flow_view(found)
        if not found.version:
            return msgspec.structs.replace(view, versions=[])
        newest = await self._catalog.pick(found.id)
        numbers = range(found.version, max(0, found.version - LISTED), -1)
        ids = (version_id(found.id, number) for number in numbers)
        versions = [_brief((await self._catalog.read(id)).version) for id in ids]
        return msgspec.structs.replace(_with_version(view, newest), versions=versions)

    @needs(*SEES_ALL)
    async def read_version(self, caller: Caller, flow: str, number: Number) -> FlowView:
        return _version_view(await self._catalog.pick(flow, number))

    @needs(Scope.OPERATE)
    async def publish(self, caller: Caller, flow: str, body: FlowDefinition) -> FlowView:
        """The next version of a flow."""
        published = await self._catalog.publish(flow, body.definition)
        version = published.version
        await caller.audit(Action.FLOW_PUBLISH, version.name, version=version.version)
        return _version_view(published)


def _flow_view(flow: StoredFlow) -> FlowView:
    return FlowView(
        name=flow.name,
        version=flow.version,
        id=flow.id,
        created_at=flow.created_at,
        links={
            "self": f"/api/v2/flows/{flow.id}",
            "runs": f"/api/v2/runs?flow={quote(flow.name)}",
        },
    )


def _version_view(published: Published) -> FlowView:
    version = published.version
    return _with_version(FlowView(name=version.name, version=version.version), published)


def _with_version(flow: FlowView, published: Published) -> FlowView:
    version, definition = published
    brief: dict[str, Any] = msgspec.structs.asdict(_brief(version))
    return msgspec.structs.replace(
        flow,
        **brief,
        flow_id=version.flow_id,
        definition=version.definition,
        warnings=_flaws(definition.warnings),
        nodes=graph.outline(definition),
        mermaid=graph.mermaid(definition),
    )


def _brief(version: Version) -> VersionBrief:
    return VersionBrief(
        version_id=version.id,
        version=version.version,
        status=version.status,
        published_at=version.created_at,
    )


def _flaws(flaws: Sequence[Flaw]) -> Sequence[FlawView]:
    return [FlawView(node=flaw.node, field=flaw.field, message=flaw.message) for flaw in flaws]
