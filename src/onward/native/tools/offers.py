"""Which services and flows agents are offered as tools.

A service: unless it was declared otherwise, and as long as a worker has served it within a day. A
flow: if its newest version asks for it. Decides nothing about the tools' form: tools.py does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.errors import NextStep, Step
from onward.core.task import Instant, encode
from onward.flow.catalog import FlowCatalog
from onward.native.tools.tools import OfferedFlow
from onward.services.catalog import Catalog, Declared
from onward.services.schemas import Schemas
from onward.workers.roster import Roster

DAY_MS = 24 * 3_600_000
NOTED_MS = 3_600_000  # how often it is written that a service is served
FRESH_MS = 1_000
LOOK_S = 60.0
KIND = "service_served"


class ToolOffers:
    def __init__(
        self, backend: Backend, clock: Clock, roster: Roster, catalog: Catalog, flows: FlowCatalog
    ) -> None:
        self._documents = backend.documents
        self._clock = clock
        self._roster = roster
        self._catalog = catalog
        self._flows = flows
        self._served_at: Mapping[str, Instant] = {}  # by service; as last read
        self._offered: Sequence[OfferedFlow] = ()
        self._read_at: Instant = 0
        self._schemas = Schemas()

    async def services(self) -> Sequence[Declared]:
        return [one for one in await self._catalog.all() if one.expose and not self._idle(one)]

    async def idle(self) -> Sequence[Declared]:
        """Those that would be offered if a worker served them."""
        return [one for one in await self._catalog.all() if one.expose and self._idle(one)]

    async def flows(self) -> Sequence[OfferedFlow]:
        now = self._clock.now()
        if now - self._read_at >= FRESH_MS:
            self._offered = await self._offers()
            self._read_at = now
        return self._offered

    async def flow(self, name: str) -> OfferedFlow | None:
        return next((flow for flow in await self.flows() if flow.name == name), None)

    def check(self, flow: OfferedFlow, payload: Any) -> None:
        """Invalid: it does not fit the schema of params that the flow's tool shows."""
        self._schemas.check(flow.parameters, payload, flow.name, NextStep(Step.LIST_TOOLS))

    async def look(self) -> None:
        """Note which services are served now, and read what other servers have noted. One that is
        new here counts as served: nothing is known of it yet.
        """
        now = self._clock.now()
        found = await self._documents.list(KIND, now=now)
        noted = {doc.key: msgspec.json.decode(doc.body, type=int) for doc in found}
        declared = {service.name: service for service in await self._catalog.all()}
        for name, service in declared.items():
            at = noted.get(name)
            if at is None or (now - at >= NOTED_MS and self._is_served(service)):
                await self._documents.put(KIND, name, encode(now), now=now)
                noted[name] = now
        for name in noted.keys() - declared.keys():
            await self._documents.delete(KIND, name)
            del noted[name]
        self._served_at = noted

    def _is_served(self, service: Declared) -> bool:
        serving = self._roster.serving()
        return any(serving.get(queue) for queue in (service.name, *service.task_types))

    def _idle(self, service: Declared) -> bool:
        # Who reads a stream is no member of the roster: of those services nothing is known.
        if service.via != "any" or self._is_served(service):
            return False
        return self._clock.now() - self._served_at.get(service.name, self._clock.now()) >= DAY_MS

    async def _offers(self) -> Sequence[OfferedFlow]:
        offered: list[OfferedFlow] = []
        for flow in await self._flows.all():
            if not flow.version:
                continue
            version, definition = await self._flows.pick(flow.id)
            if definition.tool is not None:
                described = definition.tool.description or definition.description or ""
                offered.append(
                    OfferedFlow(
                        name=flow.name,
                        version=version.version,
                        description=described,
                        parameters=definition.tool.parameters,
                    )
                )
        return offered
