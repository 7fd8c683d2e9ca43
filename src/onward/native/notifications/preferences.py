"""What a session wants to be sent, where to, and how urgent its work is. Its notifications are
stored in any case."""

from __future__ import annotations

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.task import Priority, encode
from onward.native.notifications.notification import ALL_TYPES
from onward.native.views import PRIORITIES
from onward.wire.base import PriorityWord
from onward.wire.notifications import Types

KIND = "session-preferences"


class Webhook(msgspec.Struct, frozen=True):
    url: str
    secret: str
    types: Types = ALL_TYPES


class Preferences(msgspec.Struct, frozen=True):
    push: bool = True
    types: Types = ALL_TYPES  # of what is pushed
    webhook: Webhook | None = None
    priority: PriorityWord = "normal"

    def pushes(self, type_: str) -> bool:
        return self.push and type_ in self.types


_decode = msgspec.json.Decoder(Preferences).decode


class PreferenceStore:
    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._documents = backend.documents
        self._clock = clock

    async def get(self, session: str) -> Preferences:
        found = await self._documents.get(KIND, session, now=self._clock.now())
        return Preferences() if found is None else _decode(found.body)

    async def priority(self, asked: PriorityWord | None, session: str | None) -> Priority:
        """As a submission asks for it, or else as its session does."""
        if asked is None and session is not None:
            asked = (await self.get(session)).priority
        return PRIORITIES[asked or "normal"]

    async def put(self, session: str, preferences: Preferences) -> None:
        await self._documents.put(KIND, session, encode(preferences), now=self._clock.now())

    async def clear(self, session: str) -> None:
        """As of one that has set none."""
        await self._documents.delete(KIND, session)
