"""Readers of the log, as a client sees them: `client.log`. Speaks /api/v2/log/readers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

if TYPE_CHECKING:
    from onward.client.wire import Wire

_PATH = "/api/v2/log/readers"


class ReaderView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cursor: str
    behind_ms: int
    seen_at: int | None
    silent_ms: int
    retired: bool


class ReaderPage(msgspec.Struct, frozen=True):
    items: tuple[ReaderView, ...]
    next: str | None = None


class Log:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def readers(self) -> ReaderPage:
        return await self._wire.ask(ReaderPage, self._wire.request("GET", _PATH))

    async def forget(self, name: str) -> None:
        """Finished tasks no longer wait for it."""
        await self._wire.tell(self._wire.request("DELETE", f"{_PATH}/{quote(name, safe='')}"))
