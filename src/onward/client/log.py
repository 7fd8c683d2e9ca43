"""Readers of the log, as a client sees them: `client.log`. Speaks /api/v2/log/readers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from onward.wire.base import Page
from onward.wire.log import ReaderView

if TYPE_CHECKING:
    from onward.client.api import ServerApi

_PATH = "/api/v2/log/readers"


class Log:
    def __init__(self, api: ServerApi) -> None:
        self._api = api

    async def readers(self) -> Page[ReaderView]:
        return await self._api.call(Page[ReaderView], "GET", _PATH)

    async def forget(self, name: str) -> None:
        """Finished tasks no longer wait for it."""
        await self._api.send(self._api.request("DELETE", f"{_PATH}/{quote(name, safe='')}"))
