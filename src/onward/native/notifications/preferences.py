"""What a session wishes to be told by itself, and where; notices are kept whatever it wishes."""

from __future__ import annotations

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.task import encode
from onward.native.notifications.notices import TYPES

KIND = "session-preferences"
ALL_TYPES = tuple(TYPES.values())


class Webhook(msgspec.Struct, frozen=True):
    url: str
    secret: str
    types: tuple[str, ...] = ALL_TYPES


class Preferences(msgspec.Struct, frozen=True):
    push: bool = True
    types: tuple[str, ...] = ALL_TYPES  # of what is pushed
    webhook: Webhook | None = None

    def pushes(self, type_: str) -> bool:
        return self.push and type_ in self.types


_decode = msgspec.json.Decoder(Preferences).decode


class Wishes:
    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._documents = backend.documents
        self._clock = clock

    async def of(self, session: str) -> Preferences:
        found = await self._documents.get(KIND, session, now=self._clock.now())
        return Preferences() if found is None else _decode(found.body)

    async def keep(self, session: str, preferences: Preferences) -> None:
        await self._documents.put(KIND, session, encode(preferences), now=self._clock.now())
