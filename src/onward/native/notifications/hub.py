"""Notifications as they come, for the sessions that are connected to this server.

Each connection gets what is unread and then what is new, nothing twice. A notification is written
by one server while its reader may be connected to another: the writer puts the session's name into
a short-lived list in the ledger, which every server with connections reads twice a second. To read
the log instead, each of them would have to look at every event of all tasks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.task import encode
from onward.native.notifications.preferences import PreferenceStore
from onward.native.notifications.store import NotificationStore, StoredNotification
from onward.native.places import Places
from onward.wire.notifications import Delivery

log = structlog.get_logger("onward.notifications")

MOST = 1_000  # connections of this server
MOST_EACH = 16  # connections of one session
BEHIND = 256  # notifications waiting for one connection; beyond, it reads them from the ledger
REMEMBERED = 4_096  # ids that a connection was sent, more than can be unread
ALIVE_S = 10.0
POLL_S = 0.5
LIST_MS = 10_000  # how long one list of sessions with new notifications is written to


class Subscription:
    """One connection: what it was sent, and what it is still to be sent."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.waiting: deque[StoredNotification] = deque()
        self.reads_ledger = True  # for what is unread there
        self.woken = asyncio.Event()

    def add(self, all_: Sequence[StoredNotification]) -> None:
        self.waiting.extend(all_)
        if len(self.waiting) > BEHIND:
            self.waiting.clear()
            self.reads_ledger = True
        self.woken.set()

    def reread(self) -> None:
        self.reads_ledger = True
        self.woken.set()


class Hub:
    """All connections of this server."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        notifications: NotificationStore,
        preferences: PreferenceStore,
        *,
        server: str,
        shared: bool,
    ) -> None:
        self._documents = backend.documents
        self._clock = clock
        self._notifications = notifications
        self._preferences = preferences
        self._server = server
        self._shared = shared  # with other servers
        self._subscriptions: dict[str, set[Subscription]] = {}
        self.all_places = Places(MOST, f"{MOST} listeners are connected already")
        self._places: dict[str, Places] = {}  # of each session with connections
        self._polling: asyncio.Task[None] | None = None
        self._seen: dict[str, str] = {}
        self.closing = asyncio.Event()

    async def deliver(self, session: str, all_: Sequence[StoredNotification]) -> None:
        for subscription in self._subscriptions.get(session, ()):
            subscription.add(all_)
        if self._shared:
            now = self._clock.now()
            await self._documents.put(
                _list(now // LIST_MS),
                session,
                encode((self._server, all_[-1].id)),
                now=now,
                expires_at=now + 3 * LIST_MS,
            )

    @contextmanager
    def place(self, session: str) -> Iterator[None]:
        """For one connection, as long as it lasts; too many at once are refused."""
        full = f"{MOST_EACH} listeners of this session are connected already"
        own = self._places.setdefault(session, Places(MOST_EACH, full))
        try:
            with self.all_places.take(), own.take():
                yield
        finally:
            if not own.taken:
                self._places.pop(session, None)

    def connected(self, session: str) -> int:
        """The connections to this server; those to other servers are not known here."""
        return len(self._subscriptions.get(session, ()))

    async def follow(
        self, session: str, how: Delivery, *, after: str | None = None
    ) -> AsyncGenerator[StoredNotification | None, None]:
        """Unread notifications, then new ones. None now and then, to find a dead connection."""
        # Subscribed before reading: what comes in between is found twice, and sent once.
        async with self._subscribed(session) as subscription:
            live = False
            while not self.closing.is_set():
                subscription.woken.clear()
                preferences = await self._preferences.get(session)
                delivered: list[StoredNotification] = []
                for stored in await self._next(session, subscription, after):
                    wanted = preferences.pushes(stored.notification.type)
                    if stored.id not in subscription.sent and wanted:
                        subscription.sent.add(stored.id)
                        yield stored
                        delivered.append(stored)
                        if live:
                            self._notifications.deliveries.pushed(how, stored, self._clock.now())
                        else:
                            self._notifications.deliveries.delivered(how)
                await self._notifications.record(session, delivered, how)
                after, live = None, True
                if len(subscription.sent) > REMEMBERED:
                    subscription.reads_ledger = True  # and forgets those that were read meanwhile
                if not subscription.woken.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ALIVE_S):
                            await subscription.woken.wait()
                            continue
                    yield None

    async def close(self) -> None:
        self.closing.set()
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.woken.set()

    async def _next(
        self, session: str, subscription: Subscription, after: str | None
    ) -> Sequence[StoredNotification]:
        if not subscription.reads_ledger:
            found = list(subscription.waiting)
            subscription.waiting.clear()
            return found
        subscription.reads_ledger = False
        subscription.waiting.clear()
        all_ = await self._notifications.list(session)
        unread = [one for one in all_ if one.read_at is None]
        subscription.sent.intersection_update([one.id for one in unread])
        last = next((one for one in all_ if one.id == after), None)
        if last is None:
            return unread
        # By when they were written: of two servers' events the earlier may be written later.
        return [one for one in unread if one.written_at >= last.written_at and one.id != after]

    @asynccontextmanager
    async def _subscribed(self, session: str) -> AsyncIterator[Subscription]:
        subscription = Subscription()
        self._subscriptions.setdefault(session, set()).add(subscription)
        if self._shared and self._polling is None:
            self._polling = asyncio.get_running_loop().create_task(self._poll())
        try:
            yield subscription
        finally:
            self._subscriptions[session].discard(subscription)
            if not self._subscriptions[session]:
                del self._subscriptions[session]
            if not self._subscriptions and self._polling is not None:
                self._polling.cancel()
                self._polling = None

    async def _poll(self) -> None:
        while True:
            try:
                await self._find_others_news()
            except Exception as error:  # the next round finds it
                log.warning("cannot read which sessions have notifications", error=repr(error))
            await asyncio.sleep(POLL_S)

    async def _find_others_news(self) -> None:
        """Sessions for which other servers have written notifications read the ledger again."""
        now = self._clock.now()
        number = now // LIST_MS
        seen: dict[str, str] = {}
        for name in (_list(number - 1), _list(number)):
            for document in await self._documents.list(name, now=now):
                seen[document.key] = document.body
        for session, body in seen.items():
            if self._seen.get(session) != body and not body.startswith(f'["{self._server}"'):
                for subscription in self._subscriptions.get(session, ()):
                    subscription.reread()
        self._seen = seen


def _list(number: int) -> str:
    """A new list every LIST_MS: none of them grows long, and each expires as a whole."""
    return f"noticed:{number}"
