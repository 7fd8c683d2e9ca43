"""Whose a session is: the first key's that used it (R-8). Kept in Documents, remembered here.

To read is not to use: a session that belongs to no key is empty to one that only looks. The key
that takes it finds nothing in it of those before. Nothing is written while there are no keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.errors import NextStep, NotFound, Step
from onward.core.task import Instant, encode
from onward.native.caller import SEES_ALL, Caller

KIND = "session_owner"
DAY_MS = 86_400_000
KEPT_MS = 90 * DAY_MS  # since it was last used
SEEN_MS = 60_000  # how long it is believed that a session is another key's
MOST_REMEMBERED = 10_000


class SessionOwners:
    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._documents = backend.documents
        self._clock = clock
        # The owner, and until when that holds for sure: written here, it is in force far longer.
        self._known: dict[str, tuple[str, Instant]] = {}
        # Called with a session that is being taken: what belongs to it is deleted.
        self.on_taken: Sequence[Callable[[str], Awaitable[None]]] = ()

    async def use(self, caller: Caller, session: str | None) -> None:
        """From now on it is this caller's, if no other used it before. NotFound: another key's."""
        if caller.key is None or session is None:
            return
        now = self._clock.now()
        owner, until = self._known.get(session, (None, 0))
        if owner is None or now > until:
            owner = await self._taken(session, caller.key, now)
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[session] = (owner, now + (DAY_MS if owner == caller.key else SEEN_MS))
        if owner != caller.key:
            raise _no_session()

    async def look(self, caller: Caller, session: str) -> bool:
        """Whether there may be anything in it for this caller, who does not make it its own by
        reading. NotFound: another key's.
        """
        if caller.key is None or caller.has(*SEES_ALL):
            return True
        owner = await self._owner(session)
        if owner is not None:
            await self.use(caller, session)  # its own lasts as long as it is looked at
        return owner is not None

    async def owns(self, caller: Caller, session: str) -> bool:
        """Without keys every caller is the session that it names."""
        return caller.key is None or await self._owner(session) == caller.key

    async def _owner(self, session: str) -> str | None:
        now = self._clock.now()
        owner, until = self._known.get(session, (None, 0))
        return await self._read(session, now) if owner is None or now > until else owner

    async def _taken(self, session: str, key: str, now: Instant) -> str:
        """Its owner, after the attempt to become it."""
        text, until = encode(key), now + KEPT_MS
        if await self._read(session, now) is None:
            # Before it is this key's: what was sent to those before it, or they had sent elsewhere
            # (to a webhook of theirs), is not its own. A failure leaves it to be taken once more.
            for clear in self.on_taken:
                await clear(session)
        # Only if there is none: of two keys that use it at once, on two servers, one gets it.
        if await self._documents.put(KIND, session, text, now=now, expect=0, expires_at=until):
            return key
        owner = await self._read(session, now)
        if owner == key:
            await self._documents.put(KIND, session, text, now=now, expires_at=until)
        return owner or key

    async def _read(self, session: str, now: Instant) -> str | None:
        found = await self._documents.get(KIND, session, now=now)
        return None if found is None else msgspec.json.decode(found.body, type=str)


def _no_session() -> NotFound:
    return NotFound("no such session", step=NextStep(Step.LIST_SESSIONS))
