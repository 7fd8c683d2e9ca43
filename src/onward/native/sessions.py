"""Sessions: which there are, and for each its tasks, notifications and preferences (N-5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from onward.core.contract import Page as LedgerPage
from onward.core.contract import SessionTally
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, NextStep, NotFound, Step
from onward.core.phase import Phase
from onward.core.task import Instant
from onward.native import webhooks
from onward.native.caller import LISTS, SEES_ALL, Caller, Scope, needs
from onward.native.masking import Masking
from onward.native.notifications.hub import Hub
from onward.native.notifications.notification import ALL_TYPES
from onward.native.notifications.preferences import Preferences, PreferenceStore, Webhook
from onward.native.notifications.store import NotificationStore, StoredNotification
from onward.native.places import Feed
from onward.native.reads import when_over
from onward.native.session_owners import SessionOwners
from onward.native.session_tasks import ForeignLooks, SessionTasks
from onward.native.slow_reads import SlowReads
from onward.native.tasks import Submitted, Tasks
from onward.native.views import task_page, task_view
from onward.wire.base import Key, Page
from onward.wire.live import ServerEvent
from onward.wire.notifications import (
    Delivery,
    EventId,
    NotificationsQuery,
    NotificationView,
    PreferencesBody,
    PreferencesView,
    Types,
    WebhookBody,
    WebhookView,
)
from onward.wire.sessions import (
    SessionId,
    SessionsQuery,
    SessionTaskQuery,
    SessionTasksQuery,
    SessionView,
)
from onward.wire.tasks import Submit, TaskView, Wait
from onward.workers.http.address import Hosts

ROUNDS = 20  # reads of the ledger for one page of a caller's own


class Sessions:
    def __init__(  # noqa: PLR0913 what it is composed of
        self,
        dispatcher: Dispatcher,
        submissions: Tasks,
        owners: SessionOwners,
        notifications: NotificationStore,
        preferences: PreferenceStore,
        hub: Hub,
        hosts: Hosts,
        masking: Masking,
        words: Mapping[Phase, str],
        foreign: ForeignLooks,
    ) -> None:
        """`words` are what the statuses of a session's tasks are called."""
        self._dispatcher = dispatcher
        self._sessions = dispatcher.backend.sessions
        self._tasks = SessionTasks(dispatcher.backend.tasks, words, foreign)
        self._submissions = submissions
        self._owners = owners
        self._notifications = notifications
        self._preferences = preferences
        self._hub = hub
        self._hosts = hosts
        self._masking = masking
        self._counts: SlowReads[Sequence[_Count]] = SlowReads()

    @needs(*LISTS)
    async def list(self, caller: Caller, query: SessionsQuery) -> Page[SessionView]:
        """Those with tasks; the one that submitted last comes first."""
        page = await self._page(caller, query)
        sessions = tuple(tally.session for tally in page.items)

        async def read() -> tuple[Sequence[_Count], int]:
            found = await asyncio.gather(*map(self._notifications.list, sessions))
            counts = [_Count.of(stored) for stored in found]
            return counts, sum(count.stored for count in counts)

        counts = await self._counts.get(sessions, read)
        items = [
            self._view(tally.session, tally, count)
            for tally, count in zip(page.items, counts, strict=True)
        ]
        return Page(items=tuple(items), next=page.next)

    async def _page(self, caller: Caller, query: SessionsQuery) -> LedgerPage[SessionTally]:
        """The caller's own, or all: of an owner there is no index, so some pages are walked."""
        page = await self._sessions.find(after=query.cursor, limit=query.limit)
        if caller.has(*SEES_ALL):
            return page
        found: list[SessionTally] = []
        for _ in range(ROUNDS):
            found += [one for one in page.items if await self._owners.owns(caller, one.session)]
            if page.next is None or len(found) >= query.limit:
                break
            left = query.limit - len(found)
            page = await self._sessions.find(after=page.next, limit=left)
        return LedgerPage(found, page.next)

    @needs(*LISTS)
    async def read(self, caller: Caller, session_id: SessionId) -> SessionView:
        if not (caller.has(*SEES_ALL) or await self._owners.owns(caller, session_id)):
            raise NotFound("no such session", step=NextStep(Step.LIST_SESSIONS))
        tally = await self._sessions.get(session_id)
        count = _Count.of(await self._notifications.list(session_id))
        if tally is None and not count.stored and not self._hub.connected(session_id):
            raise NotFound("no such session", step=NextStep(Step.LIST_SESSIONS))
        return self._view(session_id, tally, count)

    @needs(*LISTS)
    async def tasks(
        self, caller: Caller, session_id: SessionId, query: SessionTasksQuery
    ) -> Page[TaskView]:
        """Newest first."""
        await self._owners.look(caller, session_id)
        page = await self._tasks.page(caller, session_id, query)
        return task_page(await self._masking.page(page, caller, query.masked))

    @needs(Scope.SUBMIT)
    async def submit(
        self,
        caller: Caller,
        session_id: SessionId,
        body: Submit,
        query: Wait,
        idempotency_key: Key | None = None,
    ) -> Submitted:
        """In the ledger when this returns; over, if it ended within `wait_ms`."""
        if body.session_id not in (None, session_id):
            raise Invalid("session_id is another one in the path", pointer="/session_id")
        body = msgspec.structs.replace(body, session_id=session_id)
        return await self._submissions.submit(caller, body, query, idempotency_key)

    @needs(*LISTS)
    async def task(
        self, caller: Caller, session_id: SessionId, task_id: str, query: SessionTaskQuery
    ) -> TaskView:
        step = NextStep(Step.LIST_SESSION_TASKS, session_id)
        task = await self._tasks.get(caller, session_id, task_id, step)
        task = await when_over(self._dispatcher, task, query.wait_ms)
        return task_view(await self._masking.task(task, caller, query.masked))

    @needs(*LISTS)
    async def notifications(
        self, caller: Caller, session_id: SessionId, query: NotificationsQuery
    ) -> Page[NotificationView]:
        """Newest first; or, as server-sent events, the unread ones and then those that come."""
        if not await self._owners.look(caller, session_id):
            return Page(items=())
        # An onlooker is not the session: nothing is delivered to it.
        peek = query.peek or not await self._owners.owns(caller, session_id)
        read = self._notifications.unread if query.unread else self._notifications.list
        stored = await read(session_id)
        newest = [one for one in reversed(stored) if query.cursor is None or one.id < query.cursor]
        shown = newest[: query.limit]
        more = shown[-1].id if len(newest) > query.limit else None
        if not peek:
            unread = [one for one in shown if one.read_at is None]
            self._notifications.deliveries.delivered("poll", len(unread))
            await self._notifications.record(session_id, unread, "poll")
        return Page(items=tuple(_view(one, peek=peek) for one in shown), next=more)

    @needs(Scope.SUBMIT)
    async def follow(
        self,
        caller: Caller,
        session_id: SessionId,
        last_event_id: EventId | None = None,
        *,
        how: Delivery = "sse",
    ) -> Feed:
        """The unread notifications after that one, then new ones as they come."""
        await self._owners.use(caller, session_id)
        return Feed(self._events(session_id, how, last_event_id), place=self._hub.place(session_id))

    async def _events(
        self, session: str, how: Delivery, after: str | None
    ) -> AsyncGenerator[ServerEvent | None, None]:
        async with aclosing(self._hub.follow(session, how, after=after)) as found:
            async for one in found:
                if one is None:
                    yield None
                else:
                    sent = one.notification
                    yield ServerEvent(event=sent.type, data=sent, id=one.id)

    @needs(Scope.SUBMIT)
    async def acknowledge(
        self, caller: Caller, session_id: SessionId, notification_id: str
    ) -> NotificationView:
        """Mark it as read."""
        await self._owners.use(caller, session_id)
        return _view(await self._notifications.acknowledge(session_id, notification_id))

    @needs(*LISTS)
    async def preferences(self, caller: Caller, session_id: SessionId) -> PreferencesView:
        if not await self._owners.look(caller, session_id):
            return _preferences_view(Preferences())
        return _preferences_view(await self._preferences.get(session_id))

    @needs(Scope.SUBMIT)
    async def prefer(
        self, caller: Caller, session_id: SessionId, body: PreferencesBody
    ) -> PreferencesView:
        """Replace them. A webhook's secret is returned if it is new."""
        await self._owners.use(caller, session_id)
        before = (await self._preferences.get(session_id)).webhook
        webhook = None if body.webhook is None else await self._webhook(body.webhook, before)
        preferences = Preferences(body.push, _types(body.types), webhook, body.priority)
        await self._preferences.put(session_id, preferences)
        fresh = webhook is not None and (before is None or before.secret != webhook.secret)
        return _preferences_view(preferences, secret=fresh)

    async def _webhook(self, body: WebhookBody, before: Webhook | None) -> Webhook:
        await self._hosts.pin(body.url)
        secret = body.secret
        if secret is not None:
            webhooks.check_secret(secret)
        elif before is not None and before.url == body.url:
            secret = before.secret
        return Webhook(body.url, secret or webhooks.new_secret(), _types(body.types))

    def _view(self, session: str, tally: SessionTally | None, count: _Count) -> SessionView:
        states = {} if tally is None else tally.states
        return SessionView(
            id=session,
            tasks=0 if tally is None else tally.tasks,
            states={state.value: number for state, number in states.items()},
            unread=count.unread,
            connected=self._hub.connected(session),
            last_at=max(count.last_at, 0 if tally is None else tally.last_at),
        )


class _Count(NamedTuple):
    """Of a session's notifications."""

    stored: int
    unread: int
    last_at: Instant

    @classmethod
    def of(cls, all_: Sequence[StoredNotification]) -> _Count:
        last_at = max((one.at for one in all_), default=0)
        return cls(len(all_), sum(one.read_at is None for one in all_), last_at)


def _view(stored: StoredNotification, *, peek: bool = False) -> NotificationView:
    view = NotificationView(
        **msgspec.structs.asdict(stored.notification), read=stored.read_at is not None
    )
    if not peek:
        return view
    return msgspec.structs.replace(
        view,
        read_at=stored.read_at,
        delivered_by=stored.delivered_by,
        delivered_at=stored.delivered_at,
    )


def _types(wanted: Types | None) -> Types:
    return ALL_TYPES if wanted is None else tuple(dict.fromkeys(wanted))


def _preferences_view(found: Preferences, *, secret: bool = False) -> PreferencesView:
    """A secret is shown once, to the caller who has just set it."""
    webhook = None
    if found.webhook is not None:
        shown = found.webhook.secret if secret else msgspec.UNSET
        webhook = WebhookView(url=found.webhook.url, secret=shown, types=found.webhook.types)
    return PreferencesView(
        push=found.push, types=found.types, webhook=webhook, priority=found.priority
    )
