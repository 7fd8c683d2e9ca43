"""The notifications of all sessions, in the ledger: one kind of document for each session.

Decides how long a notification is kept and when it counts as delivered and as read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.errors import Conflict, LedgerUnavailable, NotFound
from onward.core.task import Instant, encode
from onward.native.notifications.deliveries import Deliveries
from onward.native.notifications.notification import ALL_TYPES
from onward.wire.notifications import Delivery, Notification

DAY_MS = 24 * 3_600_000
KEPT_MS = 7 * DAY_MS
MOST = 1_000  # notifications of one session
SLACK = 100  # how many more may gather before the oldest are deleted, in one go
TRIM_MS = DAY_MS // 2
KNOWN_SESSIONS = 10_000  # sessions whose number of notifications is remembered
TRIES = 5


class StoredNotification(msgspec.Struct, frozen=True, omit_defaults=True):
    notification: Notification = msgspec.field(name="notice")  # the names are those of the ledger
    at: Instant  # of the event; the timestamp is the same instant
    written_at: Instant
    read_at: Instant | None = None
    delivered_by: Delivery | None = msgspec.field(default=None, name="told_by")  # at first
    delivered_at: Instant | None = msgspec.field(default=None, name="told_at")

    @property
    def id(self) -> str:
        return self.notification.notification_id


_decode = msgspec.json.Decoder(StoredNotification).decode


class NotificationStore:
    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._documents = backend.documents
        self._clock = clock
        self.deliveries = Deliveries(ALL_TYPES)
        self._sizes: dict[str, tuple[int, Instant]] = {}  # how many, and when that was counted

    async def list(self, session: str) -> Sequence[StoredNotification]:
        """Oldest first."""
        now = self._clock.now()
        return [one for one in await self._all(session, now) if one.at + KEPT_MS > now]

    async def unread(self, session: str) -> Sequence[StoredNotification]:
        return [stored for stored in await self.list(session) if stored.read_at is None]

    async def get(self, session: str, id: str) -> StoredNotification | None:
        found = await self._documents.get(_kind(session), id, now=self._clock.now())
        return None if found is None else _decode(found.body)

    async def acknowledge(
        self, session: str, id: str, *, delivered_by: Delivery | None = None
    ) -> StoredNotification:
        """Mark it as read; the first time counts. Another session's is not found."""
        for _ in range(TRIES):
            now = self._clock.now()
            found = await self._documents.get(_kind(session), id, now=now)
            if found is None:
                raise NotFound("no such notification")
            stored = _decode(found.body)
            if stored.read_at is not None:
                return stored
            delivered = _delivered(stored, delivered_by, now)
            read = msgspec.structs.replace(delivered, read_at=now)
            if await self._put(session, read, expect=found.version):
                if delivered is not stored:
                    self.deliveries.reached(delivered, now)
                self.deliveries.read(read, now)
                return read
        raise Conflict("the notification keeps changing; try again")

    async def record(
        self, session: str, delivered: Iterable[StoredNotification], how: Delivery
    ) -> None:
        """Write how and when each was first delivered. It has arrived, also if this fails."""
        fresh = [stored.id for stored in delivered if stored.delivered_by is None]
        with suppress(LedgerUnavailable):
            await asyncio.gather(*[self._record(session, id, how) for id in fresh])

    async def _record(self, session: str, id: str, how: Delivery) -> None:
        for _ in range(TRIES):
            now = self._clock.now()
            found = await self._documents.get(_kind(session), id, now=now)
            before = None if found is None else _decode(found.body)
            if found is None or before is None or before.delivered_by is not None:
                return
            # It may be acknowledged between the reading and this: that must not be undone.
            if await self._put(session, _delivered(before, how, now), expect=found.version):
                self.deliveries.reached(before, now)
                return

    async def add(self, session: str, stored: StoredNotification) -> bool:
        """Written unless it is there: what was read stays read when its event comes again.

        Returns whether it is still unread, and so to be delivered.
        """
        if not await self._put(session, stored, expect=0):
            before = await self.get(session, stored.id)
            return before is not None and before.read_at is None
        self.deliveries.wrote(stored)
        count, since = self._sizes.pop(session, (MOST + SLACK, 0))
        self._sizes[session] = (count + 1, since)
        if len(self._sizes) > KNOWN_SESSIONS:
            del self._sizes[next(iter(self._sizes))]
        return True

    async def trim(self, session: str) -> None:
        """Keep MOST: the oldest of those that were read are deleted first, then the oldest."""
        now = self._clock.now()
        count, since = self._sizes.get(session, (0, now))
        if count < MOST + SLACK and since + TRIM_MS > now:
            return
        found = await self._all(session, now)
        fresh = [one for one in found if one.at + KEPT_MS > now]
        ranked = sorted(fresh, key=lambda one: (one.read_at is None, one.id))
        gone = [one for one in found if one.at + KEPT_MS <= now]
        gone += ranked[: max(0, len(fresh) - MOST)]
        await asyncio.gather(*[self._documents.delete(_kind(session), one.id) for one in gone])
        self._sizes[session] = (len(found) - len(gone), now)

    async def clear(self, session: str) -> None:
        """As if nothing had ever been sent to it."""
        for document in await self._documents.list(_kind(session), now=self._clock.now()):
            await self._documents.delete(_kind(session), document.key)
        self._sizes.pop(session, None)

    async def _all(self, session: str, now: Instant) -> Sequence[StoredNotification]:
        found = await self._documents.list(_kind(session), now=now)
        return [_decode(document.body) for document in found]

    async def _put(self, session: str, stored: StoredNotification, *, expect: int) -> bool:
        put = await self._documents.put(
            _kind(session),
            stored.id,
            encode(stored),
            now=self._clock.now(),
            expect=expect,
            # A day longer than it is shown, so that `trim` finds it and deletes it by its age.
            expires_at=stored.at + KEPT_MS + DAY_MS,
        )
        return put is not None


def _delivered(
    stored: StoredNotification, how: Delivery | None, now: Instant
) -> StoredNotification:
    if how is None or stored.delivered_by is not None:
        return stored
    return msgspec.structs.replace(stored, delivered_by=how, delivered_at=now)


def _kind(session: str) -> str:
    return f"notice:{session}"
