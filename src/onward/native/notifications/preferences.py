"""What a session wants to be sent, and where to; its notifications are stored in any case."""

from __future__ import annotations

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.task import encode
from onward.native.notifications.notification import ALL_TYPES
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

    async def put(self, session: str, preferences: Preferences) -> None:
        await self._documents.put(KIND, session, encode(preferences), now=self._clock.now())
