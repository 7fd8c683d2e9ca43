"""Which services are declared, with schemas and defaults. Kept in Documents, cached here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onward.core import privacy
from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.errors import Conflict, Invalid, NextStep, NotFound, Step
from onward.core.task import Instant, encode

KIND = "service"
FRESH_MS = 1_000
MISSED_MS = 20  # what is not known is looked for again: another server may just have heard of it


class Declared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    task_types: tuple[str, ...]
    schema: Mapping[str, Any] = {}  # JSON Schema of the payload, by task type
    via: str = "any"
    requires_approval: bool = False
    sensitive: tuple[str, ...] = ()
    timeout_ms: int | None = None
    max_retries: int | None = None


_decode = msgspec.json.Decoder(Declared).decode


class Catalog:
    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._by_type: dict[str, Declared] = {}
        self._by_name: dict[str, Declared] = {}
        self._sensitive: dict[str, Sequence[privacy.Path]] = {}  # by type, of those that have any
        self._read_at: Instant = 0

    async def declare(self, service: Declared) -> None:
        await self._refresh()
        for type_ in service.task_types:
            other = self._by_type.get(type_)
            if other is not None and other.name != service.name:
                raise Conflict(
                    f"task type {type_!r} is declared by service {other.name!r} already",
                    step=NextStep(Step.REMOVE_SERVICE, other.name),
                )
        if self._by_name.get(service.name) == service:
            return
        await self._backend.documents.put(
            KIND, service.name, encode(service), now=self._clock.now()
        )
        await self._read()

    async def remove(self, name: str) -> None:
        if not await self._backend.documents.delete(KIND, name):
            raise NotFound(f"no service is called {name!r}")
        await self._read()

    async def of(self, type_: str) -> Declared | None:
        await self._refresh()
        if type_ not in self._by_type:
            await self._refresh(MISSED_MS)
        return self._by_type.get(type_)

    def knows(self, type_: str) -> bool:
        """Whether `of` would answer without a look at the ledger, as `known` does."""
        age_ms = self._clock.now() - self._read_at
        return age_ms < (FRESH_MS if type_ in self._by_type else MISSED_MS)

    def known(self, type_: str) -> Declared | None:
        return self._by_type.get(type_)

    async def all(self) -> Sequence[Declared]:
        await self._refresh()
        return list(self._by_name.values())

    async def sensitive(self, type_: str) -> Sequence[privacy.Path]:
        """The sensitive parts of this type's payloads and results."""
        await self._refresh()
        return self._sensitive.get(type_, ())

    async def all_sensitive(self) -> Sequence[privacy.Path]:
        await self._refresh()
        return [path for paths in self._sensitive.values() for path in paths]

    async def _refresh(self, fresh_ms: int = FRESH_MS) -> None:
        if self._clock.now() - self._read_at >= fresh_ms:
            await self._read()

    async def _read(self) -> None:
        now = self._clock.now()
        self._by_name = {
            doc.key: _decode(doc.body) for doc in await self._backend.documents.list(KIND, now=now)
        }
        self._by_type = {
            type_: service for service in self._by_name.values() for type_ in service.task_types
        }
        self._sensitive = {
            type_: [_path(path) for path in service.sensitive]
            for type_, service in self._by_type.items()
            if service.sensitive
        }
        self._read_at = now


def _path(path: str) -> privacy.Path:
    try:
        return privacy.parse(path)
    except Invalid:  # declared before paths were checked: whatever it meant, it is hidden
        return ()
