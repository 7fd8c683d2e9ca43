"""Sessions: which there are, and for each its tasks, notifications and preferences (N-5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from onward.core.contract import SessionTally
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, NextStep, NotFound, Step
from onward.core.phase import Phase
from onward.core.task import Instant
from onward.native.caller import Caller, Scope, needs
from onward.native.masking import Masking
from onward.native.notifications import webhooks
from onward.native.notifications.hub import Hub
from onward.native.notifications.notification import ALL_TYPES
from onward.native.notifications.preferences import Preferences, PreferenceStore, Webhook
from onward.native.notifications.store import NotificationStore, StoredNotification
from onward.native.places import Feed
from onward.native.reads import when_over
from onward.native.session_tasks import SessionTasks
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


class Sessions:
    def __init__(  # noqa: PLR0913 what it is composed of
        self,
        dispatcher: Dispatcher,
        submissions: Tasks,
        notifications: NotificationStore,
        preferences: PreferenceStore,
        hub: Hub,
        hosts: Hosts,
        masking: Masking,
        words: Mapping[Phase, str],
    ) -> None:
        """`words` are what the statuses of a session's tasks are called."""
        self._dispatcher = dispatcher
        self._sessions = dispatcher.backend.sessions
        self._tasks = SessionTasks(dispatcher.backend.tasks, words)
        self._submissions = submissions
        self._notifications = notifications
        self._preferences = preferences
        self._hub = hub
        self._hosts = hosts
        self._masking = masking
        self._counts: SlowReads[Sequence[_Count]] = SlowReads()

    @needs(Scope.READ)
    async def list(self, caller: Caller, query: SessionsQuery) -> Page[SessionView]:
        """Those with tasks; the one that submitted last comes first."""
        page = await self._sessions.find(after=query.cursor, limit=query.limit)
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

    @needs(Scope.READ)
    async def read(self, caller: Caller, session_id: SessionId) -> SessionView:
        tally = await self._sessions.get(session_id)
        count = _Count.of(await self._notifications.list(session_id))
        if tally is None and not count.stored and not self._hub.connected(session_id):
            raise NotFound("no such session", step=NextStep(Step.LIST_SESSIONS))
        return self._view(session_id, tally, count)

    @needs(Scope.SUBMIT)
    async def tasks(
        self, caller: Caller, session_id: SessionId, query: SessionTasksQuery
    ) -> Page[TaskView]:
        """Newest first."""
        page = await self._tasks.page(session_id, query)
        return task_page(await self._masking.page(page, query.masked))

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

    @needs(Scope.SUBMIT)
    async def task(
        self, caller: Caller, session_id: SessionId, task_id: str, query: SessionTaskQuery
    ) -> TaskView:
        step = NextStep(Step.LIST_SESSION_TASKS, session_id)
        task = await self._tasks.get(session_id, task_id, step)
        task = await when_over(self._dispatcher, task, query.wait_ms)
        return task_view(await self._masking.task(task, query.masked))

    @needs(Scope.SUBMIT)
    async def notifications(
        self, caller: Caller, session_id: SessionId, query: NotificationsQuery
    ) -> Page[NotificationView]:
        """Newest first; or, as server-sent events, the unread ones and then those that come."""
        read = self._notifications.unread if query.unread else self._notifications.list
        stored = await read(session_id)
        newest = [one for one in reversed(stored) if query.cursor is None or one.id < query.cursor]
        shown = newest[: query.limit]
        more = shown[-1].id if len(newest) > query.limit else None
        if not query.peek:  # an onlooker is not the session: nothing is delivered to it
            unread = [one for one in shown if one.read_at is None]
            self._notifications.deliveries.delivered("poll", len(unread))
            await self._notifications.record(session_id, unread, "poll")
        return Page(items=tuple(_view(one, peek=query.peek) for one in shown), next=more)

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
        return _view(await self._notifications.acknowledge(session_id, notification_id))

    @needs(Scope.SUBMIT)
    async def preferences(self, caller: Caller, session_id: SessionId) -> PreferencesView:
        return _preferences_view(await self._preferences.get(session_id))

    @needs(Scope.SUBMIT)
    async def prefer(
        self, caller: Caller, session_id: SessionId, body: PreferencesBody
    ) -> PreferencesView:
        """Replace them. A webhook's secret is returned if it is new."""
        before = (await self._preferences.get(session_id)).webhook
        webhook = None if body.webhook is None else await self._webhook(body.webhook, before)
        preferences = Preferences(body.push, _types(body.types), webhook)
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
    return PreferencesView(push=found.push, types=found.types, webhook=webhook)
