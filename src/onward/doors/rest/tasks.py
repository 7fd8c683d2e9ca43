"""/api/v2/tasks: submit, read, list, follow, cancel, retry, explain (N-3, N-4)."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Body, Header, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from onward.core.contract import Page
from onward.core.contract import Query as LedgerQuery
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, NotFound
from onward.core.follow import follow
from onward.core.task import FINAL, State, Task, TaskId, encode
from onward.doors.listing import array
from onward.doors.rest.shapes import (
    CURSOR,
    EventsShape,
    ExplainShape,
    Key,
    Number,
    RetryBody,
    SubmitBody,
    TaskShape,
    TasksShape,
    is_cursor,
    native,
    native_event,
    native_page,
)
from onward.doors.route import StrictRoute, answer
from onward.doors.streaming import EventStream
from onward.native.explain import explained
from onward.native.masking import Masked, Masking
from onward.native.places import Places
from onward.native.submission import Submissions
from onward.workers.roster import Roster

WaitMs = Annotated[int, Query(ge=0, le=600_000)]
MOST_FOLLOWERS = 1_000
NAMED_AT_ONCE = 8  # tasks that are asked for by name, read at a time


class Wanted(BaseModel):
    """Which tasks of all there are. Named ones are looked up, whatever else is said."""

    state: list[State] = []
    type: str | None = None
    queue: str | None = None
    session: str | None = None
    q: Annotated[str | None, Field(max_length=200)] = None
    id: Annotated[list[str], Field(max_length=100)] = []
    brief: bool = False
    masked: bool = False
    cursor: Annotated[str | None, Field(pattern=CURSOR)] = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100

    def query(self) -> LedgerQuery:
        states = frozenset(self.state)
        return LedgerQuery(
            states=states,
            offered=State.QUEUED in states if states else None,  # that is how they are shown
            type=self.type,
            queue=self.queue,
            session=self.session,
            text=self.q or None,
            after=self.cursor,
            limit=self.limit,
        )


def build(
    dispatcher: Dispatcher, roster: Roster, submissions: Submissions, masking: Masking
) -> APIRouter:
    router = APIRouter(prefix="/api/v2/tasks", tags=["tasks"], route_class=StrictRoute)
    store = dispatcher.backend.tasks
    followers = Followers(dispatcher, masking)

    async def find(task: TaskId) -> Task:
        found = (await store.get([task]))[0]
        if found is None:
            raise NotFound("no such task", hint="GET /api/v2/tasks lists what there is")
        return found

    @router.post("", response_model=TaskShape, responses={202: {"model": TaskShape}})
    async def submit(
        body: Annotated[SubmitBody, Body()],
        wait_ms: WaitMs = 0,
        idempotency_key: Annotated[Key | None, Header()] = None,
    ) -> Response:
        if idempotency_key is not None:
            body = body.model_copy(update={"idempotency_key": idempotency_key})
        task, over = await submissions.submit(body, wait_ms=wait_ms)
        over = over or task.state in FINAL
        headers = {"location": f"/api/v2/tasks/{task.id}"}
        shut = dispatcher.pressure.breakers.shut(task.queue)
        if not over and shut is not None:
            wait_s = max(1, math.ceil((shut.until - dispatcher.clock.now()) / 1000))
            headers["retry-after"] = str(wait_s)
        return answer(native(task), 200 if over else 202, headers)

    @router.get("", response_model=TasksShape)
    async def listing(wanted: Annotated[Wanted, Query()]) -> Response:
        async def shown(page: Page[Task]) -> Mapping[str, Any]:
            page = await masking.page(page, wanted.masked and not wanted.brief)
            return native_page(page, brief=wanted.brief)

        async def named() -> AsyncIterator[Sequence[Any]]:
            ids = list(dict.fromkeys(wanted.id))
            for at in range(0, len(ids), NAMED_AT_ONCE):
                found = await store.look(ids[at : at + NAMED_AT_ONCE])
                yield (await shown(Page([task for task in found if task is not None], None)))[
                    "items"
                ]

        if wanted.id:
            return await array(named(), b'{"items":', b',"next":null}')
        return answer(await shown(await store.find(wanted.query())))

    @router.get("/{task_id}", response_model=TaskShape)
    async def read(task_id: str, wait_ms: WaitMs = 0, masked: Masked = False) -> Response:
        task = await find(task_id)
        shut = dispatcher.pressure.breakers.shut(task.queue)
        if wait_ms and task.state not in FINAL and shut is None:
            await dispatcher.wait(task_id, timeout_ms=wait_ms)
            task = await find(task_id)
        return answer(native(await masking.task(task, masked)))

    @router.post("/{task_id}/cancel", response_model=TaskShape)
    async def cancel(task_id: str) -> Response:
        return answer(native(await dispatcher.cancel(task_id)))

    @router.post("/{task_id}/retry", response_model=TaskShape)
    async def retry(task_id: str, body: Annotated[RetryBody | None, Body()] = None) -> Response:
        given = body is not None and "payload" in body.model_fields_set
        payload = encode(body.payload) if body is not None and given else None
        if body is not None and given:
            task = await find(task_id)
            await masking.refuse(task, body.payload)
            await submissions.check(task.type, task.queue, body.payload)
        return answer(native(await dispatcher.replay(task_id, payload=payload)))

    @router.get("/{task_id}/explain", response_model=ExplainShape)
    async def why(task_id: str) -> Response:
        return answer(await explained(await find(task_id), dispatcher, roster))

    @router.get("/{task_id}/events", response_model=EventsShape)
    async def events(
        request: Request,
        task_id: str,
        after: Number = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
        masked: Masked = True,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        task = await find(task_id)
        if "text/event-stream" in request.headers.get("accept", ""):
            return followers.stream(task, _resume(last_event_id, after), masked=masked)
        page = await store.events(after=str(after), limit=limit, task=task_id)
        more = page.next if page.more else None
        shown = await masking.events(task, page.items, masked)
        return answer({"items": [native_event(event) for event in shown], "next": more})

    return router


def _resume(last_event_id: str | None, after: int) -> int:
    if last_event_id is None or not last_event_id.strip():
        return after
    if not is_cursor(last_event_id.strip()):
        raise Invalid("Last-Event-ID is the n of an event", pointer="Last-Event-ID")
    return int(last_event_id)


class Followers:
    """Readers of server-sent events, so many and no more."""

    def __init__(self, dispatcher: Dispatcher, masking: Masking) -> None:
        self._dispatcher = dispatcher
        self._masking = masking
        self._places = Places(MOST_FOLLOWERS, f"{MOST_FOLLOWERS} followers are connected already")

    def stream(self, task: Task, after: int, *, masked: bool = True) -> EventStream:
        return EventStream(self._lines(task, after, masked), self._places.take())

    async def _lines(self, task: Task, after: int, masked: bool) -> AsyncIterator[bytes]:
        yield b"retry: 1000\n\n"
        async for events in follow(self._dispatcher.backend, task.id, after=after):
            if not events:
                yield b": alive\n\n"  # so that a dead connection is noticed
            for event in await self._masking.events(task, events, masked):
                body = msgspec.json.encode(native_event(event)).decode()
                yield f"id: {event.n}\nevent: {event.type}\ndata: {body}\n\n".encode()
