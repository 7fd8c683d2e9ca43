"""FlowCatalog and their versions, kept in Documents. A version, once published, never changes.

A flow's name is as good as its id: two flows never share one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.errors import Conflict, Invalid, NextStep, NotFound, Step
from onward.core.task import Instant, encode, new_id
from onward.flow.definition import parse
from onward.flow.parts import Definition
from onward.services import schemas

FLOW, NAME, VERSION = "flow", "flow_name", "flow_version"
PUBLISHED: Final = "published"
MOST_PARSED = 1_000
MAX_NAME = 200
TRIES = 20  # so many may publish at the same moment


class StoredFlow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    created_at: Instant
    version: int = 0  # the newest; 0: none yet


class Version(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    flow_id: str
    name: str  # the flow's
    version: int
    definition: msgspec.Raw  # as it came
    created_at: Instant
    status: Literal["published"] = PUBLISHED


class Published(NamedTuple):
    version: Version
    definition: Definition


_decode_flow = msgspec.json.Decoder(StoredFlow).decode
_decode_version = msgspec.json.Decoder(Version).decode


class FlowCatalog:
    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._documents = backend.documents
        self._clock = clock
        self._parsed: dict[str, Published] = {}

    async def create(self, name: str) -> StoredFlow:
        """The flow of this name; a new one, if there is none."""
        if not name.strip() or len(name) > MAX_NAME:
            raise Invalid(f"name must be 1 to {MAX_NAME} characters", pointer="/name")
        now = self._clock.now()
        flow = StoredFlow(id=new_id(), name=name, created_at=now)
        # The name is taken first: a crash in between leaves a name that the next caller completes.
        if await self._documents.put(NAME, name, encode(flow), now=now, expect=0) is None:
            known = await self._documents.get(NAME, name, now=now)
            flow = flow if known is None else _decode_flow(known.body)
        await self._documents.put(FLOW, flow.id, encode(flow), now=now, expect=0)
        return await self.find(flow.id)

    async def find(self, flow: str) -> StoredFlow:
        """By id or by name."""
        now = self._clock.now()
        found = await self._documents.get(FLOW, flow, now=now)
        if found is None:
            named = await self._documents.get(NAME, flow, now=now)
            if named is not None:
                id = _decode_flow(named.body).id
                found = await self._documents.get(FLOW, id, now=now) or named
        if found is None:
            raise NotFound(f"no flow {flow!r}", step=NextStep(Step.LIST_FLOWS))
        return _decode_flow(found.body)

    async def all(self) -> Sequence[StoredFlow]:
        """Newest first."""
        found = await self._documents.list(FLOW, now=self._clock.now())
        return sorted((_decode_flow(doc.body) for doc in found), key=lambda f: f.id, reverse=True)

    async def publish(self, flow: str, raw: object) -> Published:
        """The next version. Invalid says everything that is wrong with the definition."""
        definition = checked(raw)
        body = msgspec.Raw(msgspec.json.encode(raw))
        for _ in range(TRIES):
            found = await self.find(flow)
            now = self._clock.now()
            number = found.version + 1
            version = Version(
                id=version_id(found.id, number),
                flow_id=found.id,
                name=found.name,
                version=number,
                definition=body,
                created_at=now,
            )
            put = await self._documents.put(VERSION, version.id, encode(version), now=now, expect=0)
            await self._raise_to(found.id, number)
            if put is not None:
                return Published(version, definition)
        raise Conflict("others keep publishing versions of this flow", hint="try again")

    async def _raise_to(self, flow: str, number: int) -> None:
        """Point the flow at version `number` or a later one, by whichever server it was written."""
        for _ in range(TRIES):
            now = self._clock.now()
            doc = await self._documents.get(FLOW, flow, now=now)
            if doc is None or (found := _decode_flow(doc.body)).version >= number:
                return
            newer = encode(msgspec.structs.replace(found, version=number))
            put = await self._documents.put(FLOW, flow, newer, now=now, expect=doc.version)
            if put is not None:
                return

    async def pick(self, flow: str, number: int | None = None) -> Published:
        """The newest version of a flow, or the one that is asked for."""
        found = await self.find(flow)
        if not found.version:
            raise NotFound(
                f"flow {found.name!r} has no version yet",
                step=NextStep(Step.PUBLISH_VERSION, found.name),
            )
        if number is not None and not 1 <= number <= found.version:
            raise NotFound(f"flow {found.name!r} has no version {number}")
        return await self.read(version_id(found.id, number or found.version))

    async def read(self, id: str) -> Published:
        """A version and its definition, parsed once: it cannot change."""
        known = self._parsed.get(id)
        if known is None:
            doc = await self._documents.get(VERSION, id, now=self._clock.now())
            if doc is None:
                raise NotFound(f"no flow version {id!r}")
            version = _decode_version(doc.body)
            raw: Any = msgspec.json.decode(version.definition)
            if len(self._parsed) >= MOST_PARSED:
                self._parsed.clear()
            known = self._parsed[id] = Published(version, parse(raw))
        return known

    def known(self, id: str) -> Published | None:
        """The same, if it was read here before."""
        return self._parsed.get(id)


def checked(raw: object) -> Definition:
    """As parse, and with a look at the schema of its tool, which needs what only servers have."""
    definition = parse(raw)
    if definition.tool is not None:
        parameters = definition.tool.parameters
        schemas.checked(parameters, "tool.parameters", pointer="tool.parameters")
    return definition


def version_id(flow: str, number: int) -> str:
    return f"{flow}-v{number}"
