"""Queues, as a client sees them: `client.queues`. Speaks /api/v2/queues; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

if TYPE_CHECKING:
    from onward.client.wire import Wire

_PATH = "/api/v2/queues"


class PauseView(msgspec.Struct, frozen=True, kw_only=True):
    since: int
    by: str | None = None
    reason: str | None = None


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    paused: PauseView | None = None
    breaker: Mapping[str, Any] | None = None  # of its service, once that has been called
    workers: int = 0
    slots: int = 0
    queued: int = 0
    retrying: int = 0  # among those queued
    states: Mapping[str, int] = msgspec.field(default_factory=dict)


class QueuePage(msgspec.Struct, frozen=True):
    items: tuple[QueueView, ...]
    next: str | None = None


class Queues:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def list(self) -> QueuePage:
        """By name: those with tasks, with workers, or paused."""
        return await self._wire.ask(QueuePage, self._wire.request("GET", _PATH))

    async def pause(
        self, name: str, *, by: str | None = None, reason: str | None = None
    ) -> QueueView:
        """Work is still accepted, and what runs goes on; nothing more is handed out."""
        return await self._say(name, "pause", {"by": by, "reason": reason})

    async def resume(self, name: str) -> QueueView:
        return await self._say(name, "resume", None)

    async def _say(self, name: str, word: str, body: Any) -> QueueView:
        path = f"{_PATH}/{quote(name, safe='')}/{word}"
        return await self._wire.ask(QueueView, self._wire.request("POST", path, body=body))
