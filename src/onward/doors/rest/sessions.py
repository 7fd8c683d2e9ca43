"""/api/v2/sessions: who there is; one's tasks, notifications and what it wishes to be told (N-5).

Whose a task is, is part of every question to the ledger: another session's is not found.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from fastapi import APIRouter, Body, Header, Path, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from onward.core.contract import Page, SessionTally
from onward.core.contract import Query as LedgerQuery
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, NotFound
from onward.core.phase import phase
from onward.core.task import FINAL, Instant, State, Task, encode
from onward.doors.rest.shapes import (
    CURSOR,
    Cursor,
    Key,
    Strict,
    SubmitBody,
    TaskShape,
    TasksShape,
    native,
    native_page,
)
from onward.doors.route import StrictRoute, answer
from onward.doors.streaming import EventStream
from onward.doors.vocabulary import AGENTS
from onward.native.masking import Masked, Masking
from onward.native.notifications import webhooks
from onward.native.notifications.notices import Kept, Notices
from onward.native.notifications.preferences import ALL_TYPES, Preferences, Webhook, Wishes
from onward.native.notifications.push import Hub
from onward.native.slow_reads import SlowReads
from onward.native.submission import Submissions
from onward.workers.http.address import Hosts

LONGEST_WAIT_MS = 600_000
ROUNDS = 20  # looks at the ledger for one page of tasks
# The agents' words, and the states in which a task may have each of them.
STATUSES: Mapping[str, frozenset[State]] = {
    "pending": frozenset({State.SCHEDULED, State.QUEUED, State.RUNNING}),
    "processing": frozenset({State.SCHEDULED, State.QUEUED, State.RUNNING, State.WAITING}),
    "timeout": frozenset({State.RUNNING}),
    "completed": frozenset({State.SUCCEEDED}),
    "failed": frozenset({State.FAILED, State.DEAD, State.CANCELED}),
}

SessionId = Annotated[str, Path(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
Type = Literal["task_completed", "task_failed", "task_timeout"]
is_session = re.compile(r"[^\x00-\x1f\x7f]{1,128}").fullmatch


class Wanted(BaseModel):
    status: Annotated[str, Field(max_length=20)] = "all"
    state: list[State] = []
    masked: bool = False
    cursor: Annotated[str | None, Field(pattern=CURSOR)] = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class NotificationShape(BaseModel):
    notification_id: str
    type: str
    task_id: str
    task_type: str
    message: str
    action: str
    timestamp: str
    priority: str
    read: bool
    # Only for onlookers (`peek`): how it first went out, when, and when it was acknowledged.
    delivered_by: str | None = None
    delivered_at: int | None = None
    read_at: int | None = None


class SessionShape(BaseModel):
    id: str
    tasks: int
    states: dict[str, int]
    unread: int
    connected: int
    last_at: int


class SessionsShape(BaseModel):
    items: list[SessionShape]
    next: str | None


class NotificationsShape(BaseModel):
    items: list[NotificationShape]
    next: str | None


class WebhookBody(Strict):
    url: Annotated[str, Field(max_length=512)]
    secret: Annotated[str, Field(min_length=8, max_length=512)] | None = None
    types: list[Type] | None = None  # all


class PreferencesBody(Strict):
    push: bool = True
    types: list[Type] | None = None  # all
    webhook: WebhookBody | None = None


class Unread(NamedTuple):
    """A session's notices, counted."""

    kept: int
    unread: int
    last_at: Instant

    @classmethod
    def of(cls, kept: Sequence[Kept]) -> Unread:
        last_at = max((one.at for one in kept), default=0)
        return cls(len(kept), sum(one.read_at is None for one in kept), last_at)


def build(
    dispatcher: Dispatcher,
    submissions: Submissions,
    notices: Notices,
    wishes: Wishes,
    hub: Hub,
    hosts: Hosts,
    masking: Masking,
) -> APIRouter:
    router = APIRouter(prefix="/api/v2/sessions", tags=["sessions"], route_class=StrictRoute)
    owned = Owned(dispatcher)
    known = dispatcher.backend.sessions

    unread: SlowReads[Sequence[Unread]] = SlowReads()

    def about(session: str, tally: SessionTally | None, its: Unread) -> Mapping[str, Any] | None:
        connected = hub.connected(session)
        if tally is None and not its.kept and not connected:
            return None
        return {
            "id": session,
            "tasks": 0 if tally is None else tally.tasks,
            "states": {} if tally is None else tally.states,
            "unread": its.unread,
            "connected": connected,
            "last_at": max(its.last_at, 0 if tally is None else tally.last_at),
        }

    @router.get("", response_model=SessionsShape)
    async def everybody(
        cursor: Cursor | None = None, limit: Annotated[int, Query(ge=1, le=200)] = 50
    ) -> Response:
        page = await known.find(after=cursor, limit=limit)
        sessions = tuple(tally.session for tally in page.items)

        async def read() -> tuple[Sequence[Unread], int]:
            found = [Unread.of(kept) for kept in await asyncio.gather(*map(notices.of, sessions))]
            return found, sum(its.kept for its in found)

        found = zip(page.items, await unread.get(sessions, read), strict=True)
        items = [about(tally.session, tally, its) for tally, its in found]
        return answer({"items": items, "next": page.next})

    @router.get("/{session_id}", response_model=SessionShape)
    async def one(session_id: SessionId) -> Response:
        tally = await known.get(session_id)
        found = about(session_id, tally, Unread.of(await notices.of(session_id)))
        if found is None:
            raise NotFound("no such session", hint="GET /api/v2/sessions lists those with tasks")
        return answer(found)

    @router.get("/{session_id}/tasks", response_model=TasksShape)
    async def listing(session_id: SessionId, wanted: Annotated[Wanted, Query()]) -> Response:
        page = await owned.page(session_id, wanted)
        return answer(native_page(await masking.page(page, wanted.masked)))

    @router.post(
        "/{session_id}/tasks", response_model=TaskShape, responses={202: {"model": TaskShape}}
    )
    async def submit(
        session_id: SessionId,
        body: Annotated[SubmitBody, Body()],
        wait_ms: Annotated[int, Query(ge=0, le=LONGEST_WAIT_MS)] = 0,
        idempotency_key: Annotated[Key | None, Header()] = None,
    ) -> Response:
        if body.session_id not in (None, session_id):
            raise Invalid("session_id is another one in the path", pointer="/session_id")
        update = {"session_id": session_id}
        if idempotency_key is not None:
            update["idempotency_key"] = idempotency_key
        task, over = await submissions.submit(body.model_copy(update=update), wait_ms=wait_ms)
        return answer(native(task), 200 if over or task.state in FINAL else 202)

    @router.get("/{session_id}/tasks/{task_id}", response_model=TaskShape)
    async def read(
        session_id: SessionId,
        task_id: str,
        wait_ms: Annotated[int, Query(ge=0, le=LONGEST_WAIT_MS)] = 0,
        masked: Masked = False,
    ) -> Response:
        task = await owned.task(session_id, task_id)
        if wait_ms and task.state not in FINAL:
            await dispatcher.wait(task_id, timeout_ms=wait_ms)
            task = await owned.task(session_id, task_id)
        return answer(native(await masking.task(task, masked)))

    @router.get("/{session_id}/notifications", response_model=NotificationsShape)
    async def notifications(
        request: Request,
        session_id: SessionId,
        unread: bool = False,
        peek: bool = False,
        cursor: Annotated[str | None, Query(max_length=64)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        last_event_id: Annotated[str | None, Header(max_length=64)] = None,
    ) -> Response:
        if "text/event-stream" in request.headers.get("accept", ""):
            return EventStream(_lines(hub, session_id, last_event_id), hub.place(session_id))
        kept = await (notices.unread(session_id) if unread else notices.of(session_id))
        newest = [one for one in reversed(kept) if cursor is None or one.id < cursor]
        shown = newest[:limit]
        more = shown[-1].id if len(newest) > limit else None
        if peek:  # whoever only looks on is not the session: nothing is delivered
            return answer({"items": [_recorded(one) for one in shown], "next": more})
        told = [one for one in shown if one.read_at is None]
        notices.deliveries.told("poll", len(told))
        await notices.record(session_id, told, "poll")
        return answer({"items": [shape(one) for one in shown], "next": more})

    @router.post(
        "/{session_id}/notifications/{notification_id}/ack", response_model=NotificationShape
    )
    async def ack(session_id: SessionId, notification_id: str) -> Response:
        return answer(shape(await notices.ack(session_id, notification_id)))

    @router.get("/{session_id}/preferences")
    async def preferences(session_id: SessionId) -> Response:
        return answer(_shown(await wishes.of(session_id)))

    @router.put("/{session_id}/preferences")
    async def prefer(session_id: SessionId, body: Annotated[PreferencesBody, Body()]) -> Response:
        before = (await wishes.of(session_id)).webhook
        webhook = None if body.webhook is None else await _webhook(body.webhook, before, hosts)
        wished = Preferences(body.push, _types(body.types), webhook)
        await wishes.keep(session_id, wished)
        fresh = webhook is not None and (before is None or before.secret != webhook.secret)
        return answer(_shown(wished, secret=fresh))

    return router


class Owned:
    """The tasks of one session, as the ledger finds them for it."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._store = dispatcher.backend.tasks

    async def task(self, session: str, id: str) -> Task:
        found = (await self._store.get([id]))[0]
        if found is None or found.session != session:
            raise NotFound("no such task", hint=f"GET /api/v2/sessions/{session}/tasks lists yours")
        return found

    async def page(self, session: str, wanted: Wanted) -> Page[Task]:
        word = wanted.status.lower()
        if word != "all" and word not in STATUSES:
            words = ", ".join(["all", *STATUSES])
            raise Invalid(f"status is one of {words}", pointer="status")
        states = frozenset(wanted.state) or frozenset(State)
        states &= STATUSES.get(word, states)
        if not states:
            return Page([], None)
        found: list[Task] = []
        cursor = wanted.cursor
        for _ in range(ROUNDS):
            query = LedgerQuery(
                session=session,
                states=states if len(states) < len(State) else frozenset(),
                offered=State.QUEUED in wanted.state if wanted.state else None,
                after=cursor,
                limit=wanted.limit - len(found),
            )
            page = await self._store.find(query)
            found += [task for task in page.items if word in ("all", AGENTS[phase(task)])]
            cursor = page.next
            if cursor is None or len(found) >= wanted.limit:
                break
        return Page(found, cursor)


def shape(kept: Kept) -> Mapping[str, Any]:
    return {**msgspec.structs.asdict(kept.notice), "read": kept.read_at is not None}


def _recorded(kept: Kept) -> Mapping[str, Any]:
    said = {"read_at": kept.read_at, "delivered_by": kept.told_by, "delivered_at": kept.told_at}
    return {**shape(kept), **said}


async def _lines(hub: Hub, session: str, after: str | None) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    async with aclosing(hub.follow(session, "sse", after=after)) as notices:
        async for kept in notices:
            if kept is None:
                yield b": alive\n\n"
            else:
                notice = kept.notice
                head = f"id: {kept.id}\nevent: {notice.type}\n"
                yield f"{head}data: {encode(notice)}\n\n".encode()


def _types(wished: Sequence[str] | None) -> tuple[str, ...]:
    return ALL_TYPES if wished is None else tuple(dict.fromkeys(wished))


async def _webhook(body: WebhookBody, before: Webhook | None, hosts: Hosts) -> Webhook:
    await hosts.pin(body.url)
    secret = body.secret
    if secret is not None:
        webhooks.check_secret(secret)
    elif before is not None and before.url == body.url:
        secret = before.secret
    return Webhook(body.url, secret or webhooks.new_secret(), _types(body.types))


def _shown(wished: Preferences, *, secret: bool = False) -> Mapping[str, Any]:
    """A secret is shown once, to whoever has just set it."""
    shown = msgspec.to_builtins(wished)
    if wished.webhook is not None and not secret:
        del shown["webhook"]["secret"]
    return dict(shown)
