"""Something that one server does at a time, held by a lease in the ledger.

For work that is harmless when done twice for a moment, but wasteful: feeding a transport,
archiving. Moves need no such thing; their guard lets one win.
"""

from __future__ import annotations

from onward.core.clock import Clock
from onward.core.contract import Documents
from onward.core.task import Instant, encode

KIND = "duty"
LEASE_MS = 5_000


class Duty:
    def __init__(self, documents: Documents, clock: Clock, name: str, server: str) -> None:
        self._documents = documents
        self._clock = clock
        self._name = name
        self._server = encode(server)
        self._until: Instant = 0

    async def mine(self) -> bool:
        """Whether it is ours now; renewed, or taken over, when its time comes."""
        now = self._clock.now()
        if now < self._until - LEASE_MS / 2:
            return True
        found = await self._documents.get(KIND, self._name, now=now)
        if found is not None and found.body != self._server:
            self._until = 0
            return False
        expect = 0 if found is None else found.version
        put = await self._documents.put(
            KIND, self._name, self._server, now=now, expect=expect, expires_at=now + LEASE_MS
        )
        self._until = 0 if put is None else now + LEASE_MS
        return put is not None

    async def give_up(self) -> None:
        if self._until:
            self._until = 0
            found = await self._documents.get(KIND, self._name, now=self._clock.now())
            # Paused past its lease, it would take away what is its successor's by now.
            if found is not None and found.body == self._server:
                await self._documents.delete(KIND, self._name, expect=found.version)
