"""Which services are declared, with schemas and defaults. Kept in Documents, cached here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.errors import Conflict, NotFound
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
        self._read_at: Instant = 0

    async def declare(self, service: Declared) -> None:
        await self._refresh()
        for type_ in service.task_types:
            other = self._by_type.get(type_)
            if other is not None and other.name != service.name:
                raise Conflict(
                    f"task type {type_!r} is declared by service {other.name!r} already",
                    hint=f"DELETE /api/v2/services/{other.name}, or use another type",
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

    async def all(self) -> Sequence[Declared]:
        await self._refresh()
        return list(self._by_name.values())

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
        self._read_at = now
