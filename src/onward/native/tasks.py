"""Tasks: submit, read, wait, list, follow, cancel, replay, explain (N-3, N-4)."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import NamedTuple

import msgspec

from onward.core.contract import Page as LedgerPage
from onward.core.contract import Query as LedgerQuery
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid
from onward.core.follow import follow
from onward.core.task import FINAL, State, Task
from onward.native.caller import ACTS, LISTS, READS, Action, Caller, Scope, needs
from onward.native.explain import Explained, Explainer
from onward.native.masking import Masking
from onward.native.places import Feed, Places
from onward.native.reads import get_task, left_out, when_over
from onward.native.submission import Replacements, Submissions
from onward.native.views import event_view, task_view
from onward.wire.base import Key, Page, is_cursor
from onward.wire.live import ServerEvent
from onward.wire.tasks import (
    EventQuery,
    Retry,
    Submit,
    TaskEvent,
    TaskQuery,
    TaskRead,
    TaskView,
    Wait,
)
from onward.workers.roster import Roster

MOST_FOLLOWERS = 1_000
NAMED_AT_ONCE = 8  # tasks named by id, read at a time


class Submitted(NamedTuple):
    task: TaskView
    over: bool
    retry_after_s: int | None = None  # its service is left alone for so long


class Tasks:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        submissions: Submissions,
        masking: Masking,
        explainer: Explainer,
    ) -> None:
        self._explainer = explainer
        self._dispatcher = dispatcher
        self._store = dispatcher.backend.tasks
        self._roster = roster
        self._submissions = submissions
        self._replacements = Replacements(submissions, masking)
        self._masking = masking
        full = f"{MOST_FOLLOWERS} followers are connected already"
        self._places = Places(MOST_FOLLOWERS, full)

    @needs(Scope.SUBMIT)
    async def submit(
        self, caller: Caller, body: Submit, query: Wait, idempotency_key: Key | None = None
    ) -> Submitted:
        """In the ledger when this returns; over, if it ended within `wait_ms`."""
        task = await self._submissions.submit(
            caller, body, wait_ms=query.wait_ms, idempotency_key=idempotency_key
        )
        over = task.state in FINAL
        shut = None if over else self._dispatcher.pressure.breakers.shut(task.queue)
        if shut is None:
            return Submitted(task_view(task), over)
        left_ms = shut.until - self._dispatcher.clock.now()
        return Submitted(task_view(task), over, max(1, math.ceil(left_ms / 1000)))

    @needs(*LISTS)
    async def list(
        self, caller: Caller, query: TaskQuery
    ) -> Page[TaskView] | AsyncIterator[Sequence[TaskView]]:
        """Newest first. Tasks named by id are read a few at a time: together they may be large."""
        if query.id:
            return self._named(caller, query)
        found = await self._store.find(caller.within(_ledger_query(query)))
        return Page(items=tuple(await self._views(caller, found.items, query)), next=found.next)

    @needs(*READS)
    async def read(self, caller: Caller, task_id: str, query: TaskRead) -> TaskView:
        task = await get_task(self._store, caller, task_id)
        task = await when_over(self._dispatcher, task, query.wait_ms)
        return task_view(await self._masking.task(task, caller, query.masked))

    @needs(*ACTS)
    async def cancel(self, caller: Caller, task_id: str) -> TaskView:
        """Over at once, or asked to stop if it runs."""
        caller.acts_on(await get_task(self._store, caller, task_id))
        task = await self._dispatcher.cancel(task_id)
        await caller.audit(Action.TASK_CANCEL, task_id)
        return task_view(await self._masking.task(task, caller))

    @needs(Scope.OPERATE)
    async def replay(self, caller: Caller, task_id: str, body: Retry | None = None) -> TaskView:
        """From the beginning again, under its old id; with another payload if one is given."""
        payload = None
        if body is not None and body.payload is not msgspec.UNSET:
            task = await get_task(self._store, caller, task_id)
            payload = await self._replacements.checked(task, body.payload)
        task = await self._dispatcher.replay(task_id, payload=payload)
        await caller.audit(Action.TASK_REPLAY, task_id)
        return task_view(await self._masking.task(task, caller))

    @needs(*READS)
    async def explain(self, caller: Caller, task_id: str) -> Explained:
        """Why it is where it is, and what can be done about it."""
        task = await get_task(self._store, caller, task_id)
        return await self._explainer.explain(task)

    @needs(*READS)
    async def events(self, caller: Caller, task_id: str, query: EventQuery) -> Page[TaskEvent]:
        """What has happened to it so far, or, as server-sent events, what happens until its end."""
        task = await get_task(self._store, caller, task_id)
        page = await self._store.events(after=str(query.after), limit=query.limit, task=task_id)
        shown = await self._masking.events(task, page.items, caller, query.masked)
        more = page.next if page.more else None
        return Page(items=tuple(event_view(event) for event in shown), next=more)

    @needs(*READS)
    async def follow(
        self, caller: Caller, task_id: str, query: EventQuery, last_event_id: str | None = None
    ) -> Feed:
        """Its events as they happen, until it is over."""
        task = await get_task(self._store, caller, task_id)
        after = _resumed(last_event_id, query.after)
        return Feed(self._followed(caller, task, after, query.masked), self._places.take())

    async def _followed(
        self, caller: Caller, task: Task, after: int, masked: bool
    ) -> AsyncGenerator[ServerEvent | None, None]:
        async for events in follow(self._dispatcher.backend, task.id, after=after):
            if not events:
                yield None
            for event in await self._masking.events(task, events, caller, masked):
                yield ServerEvent(id=str(event.n), event=event.type, data=event_view(event))

    async def _named(self, caller: Caller, query: TaskQuery) -> AsyncIterator[Sequence[TaskView]]:
        ids = list(dict.fromkeys(query.id))
        for at in range(0, len(ids), NAMED_AT_ONCE):
            found = await self._store.look(ids[at : at + NAMED_AT_ONCE])
            seen = [task for task in found if task is not None and caller.sees(task)]
            yield await self._views(caller, seen, query)

    async def _views(
        self, caller: Caller, tasks: Sequence[Task], query: TaskQuery
    ) -> Sequence[TaskView]:
        page = LedgerPage(tasks, None)
        shown = await self._masking.page(page, caller, query.masked and not query.brief)
        return [task_view(task, brief=query.brief) for task in shown.items]


def _ledger_query(query: TaskQuery) -> LedgerQuery:
    states = frozenset(State(state) for state in query.state)
    return LedgerQuery(
        states=states,
        offered=State.QUEUED in states if states else None,  # that is how they are shown
        type=query.type,
        queue=query.queue,
        session=query.session,
        owner=query.owner,
        tags=frozenset(query.tag),
        batch=query.batch,
        partition=query.partition,
        created_from=query.created_after,
        created_before=query.created_before,
        finished_from=query.finished_after,
        finished_before=query.finished_before,
        without=left_out(query),
        text=query.q or None,
        after=query.cursor,
        limit=query.limit,
    )


def _resumed(last_event_id: str | None, after: int) -> int:
    if last_event_id is None or not last_event_id.strip():
        return after
    if not is_cursor(last_event_id.strip()):
        raise Invalid("Last-Event-ID is the n of an event", pointer="Last-Event-ID")
    return int(last_event_id)
