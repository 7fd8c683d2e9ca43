"""Events of sessions' tasks become notifications (S2-6), one for each ending and each timeout.

Decides which events are written as a notification. Delivers none itself: the listeners it is given
do (hub.py, webhooks.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend, TaskStore
from onward.core.duty import Duty
from onward.core.tail import LazyTail
from onward.core.task import Event
from onward.native.notifications.figures import WORDS, Figures, LiveTaskGauge
from onward.native.notifications.notification import TYPES, notification_of, subjects_of
from onward.native.notifications.store import KEPT_MS, NotificationStore, StoredNotification

log = structlog.get_logger("onward.notifications")

AGAIN_S = 1.0

Listener: TypeAlias = Callable[[str, Sequence[StoredNotification]], Awaitable[None]]


class NotificationProjector:
    name = "notices"  # of its cursor in the ledger

    def __init__(
        self,
        store: TaskStore,
        notifications: NotificationStore,
        clock: Clock,
        listeners: Sequence[Listener],
    ) -> None:
        self._store = store
        self._notifications = notifications
        self._clock = clock
        self._listeners = listeners
        self.figures = Figures()

    async def project(self, events: Sequence[Event]) -> None:
        news = [event for event in events if event.type in WORDS or event.type in TYPES]
        if not news:
            return
        subjects = await subjects_of(self._store, news)
        now = self._clock.now()
        made: list[tuple[str, StoredNotification]] = []
        for event in news:
            task = subjects.of(event) if event.type in TYPES else None
            if task is not None and task.session is not None and event.at + KEPT_MS > now:
                stored = StoredNotification(notification_of(task, event), event.at, now)
                made.append((task.session, stored))
        unread = await asyncio.gather(*[self._notifications.add(*one) for one in made])
        # Also those that were there before: the server that wrote them may have died before it
        # delivered them. But not what was acknowledged since: every connection would get it again.
        due: dict[str, list[StoredNotification]] = {}
        for (session, stored), is_unread in zip(made, unread, strict=True):
            if is_unread:
                due.setdefault(session, []).append(stored)
        for session, all_ in due.items():
            await self._notifications.trim(session)
            for deliver in self._listeners:
                await deliver(session, all_)
        self.figures.note([event for event in news if event.type in WORDS], subjects.tasks)


class NotificationRunner(LazyTail):
    """Runs the projector, on one server at a time, once the ledger has a task with a session."""

    def __init__(
        self,
        backend: Backend,
        projector: NotificationProjector,
        clock: Clock,
        duty: Duty | None = None,
    ) -> None:
        super().__init__(backend, projector, clock, duty=duty, on_duty=self._on_duty)
        self._figures = projector.figures
        self._reading: asyncio.Task[None] | None = None

    async def _on_duty(self, ours: bool) -> None:
        await self.close()
        if ours:
            self._figures.live = gauge = LiveTaskGauge()
            self._reading = asyncio.get_running_loop().create_task(self._read(gauge))

    async def _read(self, gauge: LiveTaskGauge) -> None:
        """Beside the projector: no notification waits until all live tasks are read."""
        while True:
            try:
                await gauge.read(self._backend.tasks)
                return
            except Exception as error:
                log.warning("cannot read the live tasks", error=repr(error))
                await asyncio.sleep(AGAIN_S)

    async def close(self) -> None:
        self._figures.live = None
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None
