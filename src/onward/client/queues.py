"""Queues, as a client sees them: `client.queues`. Speaks /api/v2/queues; decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from onward.wire.base import Page
from onward.wire.queues import Pause, QueueView

if TYPE_CHECKING:
    from onward.client.api import ServerApi

_PATH = "/api/v2/queues"


class Queues:
    def __init__(self, api: ServerApi) -> None:
        self._api = api

    async def list(self) -> Page[QueueView]:
        """By name: those with tasks, with workers, or paused."""
        return await self._api.call(Page[QueueView], "GET", _PATH)

    async def pause(
        self, name: str, *, by: str | None = None, reason: str | None = None
    ) -> QueueView:
        """Work is still accepted and what runs goes on; nothing more is handed out."""
        body = Pause(by=by, reason=reason)
        return await self._api.call(QueueView, "POST", _path(name, "pause"), body=body)

    async def resume(self, name: str) -> QueueView:
        return await self._api.call(QueueView, "POST", _path(name, "resume"))


def _path(name: str, verb: str) -> str:
    return f"{_PATH}/{quote(name, safe='')}/{verb}"
