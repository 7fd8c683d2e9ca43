"""The client: hand off work, wait for it, follow it. Speaks /api/v2; decides nothing.

A submission carries an idempotency key, so it may be sent again after a cut without being taken
twice. Waiting and following outlive a server that restarts: the task does, so they should too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from time import monotonic
from typing import Any, Literal, Self, TypedDict, Unpack
from urllib.parse import quote

import msgspec

from onward.client.address import server_url
from onward.client.errors import StillRunning, TaskFailed, Unreachable
from onward.client.wire import Patience, Wire
from onward.core.task import FINAL, FINAL_EVENTS, State, new_id

LONG_POLL_MS = 20_000
EARLY_S = 0.05  # a server that ends a long poll at once is not asked again at once
LAST_EVENTS = FINAL_EVENTS | {"task.dlq", "task.abandoned"}


class Options(TypedDict, total=False):
    """What can be said about a submission besides its type and payload."""

    queue: str
    priority: Literal["high", "normal", "low"]
    delay_ms: int
    run_at: int
    idempotency_key: str
    session_id: str
    max_retries: int
    timeout_ms: int
    backoff_ms: Sequence[int]
    requires_approval: bool


class Filter(TypedDict, total=False):
    state: str | None
    type: str | None
    queue: str | None
    session: str | None
    q: str | None
    cursor: str | None
    limit: int | None


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str
    queue: str
    state: str
    phase: str | None = None
    payload: Any = None
    result: Any = None
    error: Any = None
    attempt: int = 0
    generation: int = 1
    created_at: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    progress: float | None = None
    progress_message: str | None = None
    links: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def over(self) -> bool:
        return self.state in FINAL

    @property
    def reason(self) -> str:
        """Why it failed, in one line."""
        if isinstance(self.error, dict):
            return str(self.error.get("message") or self.error.get("kind") or "")
        return str(self.error or "no reason was given")


class TaskPage(msgspec.Struct, frozen=True):
    items: tuple[TaskView, ...]
    next: str | None = None


class TaskEvent(msgspec.Struct, frozen=True):
    n: int
    type: str
    at: int
    data: Any = None


class EventPage(msgspec.Struct, frozen=True):
    items: tuple[TaskEvent, ...]
    next: str | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    phase: str
    reason: str  # for machines; `sentence` is for people
    sentence: str
    eta: int | None = None
    hint: str | None = None


class Items(msgspec.Struct, frozen=True):
    items: tuple[dict[str, Any], ...]


class Client:
    def __init__(self, url: str | None = None) -> None:
        self.url = server_url(url)
        self._wire = Wire(self.url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._wire.close()

    # Work goes in.

    async def submit(
        self, type: str, payload: Any = None, *, wait_ms: int = 0, **options: Unpack[Options]
    ) -> TaskView:
        """The task is taken when this returns; with `wait_ms`, perhaps it is over already."""
        request = self._wire.request(
            "POST",
            "/api/v2/tasks",
            body={"type": type, "payload": payload, **options},
            key=options.get("idempotency_key") or new_id(),
            wait_ms=wait_ms,
        )
        return await self._wire.ask(TaskView, request)

    async def run(
        self,
        type: str,
        payload: Any = None,
        *,
        wait_ms: int | None = None,
        **options: Unpack[Options],
    ) -> Any:
        """Submit, wait, and return the result; TaskFailed if there is none."""
        began = monotonic()
        first = LONG_POLL_MS if wait_ms is None else min(wait_ms, LONG_POLL_MS)
        task = await self.submit(type, payload, wait_ms=first, **options)
        if not task.over:
            left = None if wait_ms is None else max(0, wait_ms - _since_ms(began))
            task = await self.wait(task.id, left)
        if task.state != State.SUCCEEDED:
            raise TaskFailed(task)
        return task.result

    # Somebody wants to know.

    async def get(self, id: str) -> TaskView:
        return await self._wire.ask(TaskView, self._wire.request("GET", _path(id)))

    async def wait(self, id: str, timeout_ms: int | None = None) -> TaskView:
        """Until it is over, however it ends; StillRunning when the time is over first."""
        began = monotonic()
        patience = Patience()
        while True:
            asked = monotonic()
            left = LONG_POLL_MS
            if timeout_ms is not None:
                left = max(0, min(left, timeout_ms - _since_ms(began)))
            try:
                request = self._wire.request("GET", _path(id), wait_ms=left)
                task = await self._wire.ask(TaskView, request)
            except Unreachable as error:
                if left == 0:
                    raise
                await patience.bear(error)
                continue
            patience.met()
            if task.over:
                return task
            if timeout_ms is not None and _since_ms(began) >= timeout_ms:
                raise StillRunning(task)
            await asyncio.sleep(max(0.0, EARLY_S - (monotonic() - asked)))

    async def stream(self, id: str, after: int = 0) -> AsyncGenerator[TaskEvent, None]:
        """Its events after number `after`, as they happen, until it is over."""
        seen, last = after, ""
        patience = Patience()
        while True:
            before = seen
            try:
                wire = self._wire.follow(_path(id, "events"), after=seen, patience=patience)
                async with aclosing(wire) as sent:
                    async for data in sent:
                        event = msgspec.json.decode(data, type=TaskEvent)
                        if event.n > seen:
                            seen, last = event.n, event.type
                            yield event
            except Unreachable as error:
                await patience.bear(error)
                continue
            # An end that nobody cut: this is all there is, or the server itself is going down.
            if last in LAST_EVENTS or (seen == before and (await self.get(id)).over):
                return
            await asyncio.sleep(EARLY_S)

    async def events(self, id: str, after: int = 0) -> EventPage:
        """What has happened to it so far, from number `after` on."""
        request = self._wire.request("GET", _path(id, "events"), after=after)
        return await self._wire.ask(EventPage, request)

    async def list(self, **filter: Unpack[Filter]) -> TaskPage:
        return await self._wire.ask(TaskPage, self._wire.request("GET", "/api/v2/tasks", **filter))

    async def explain(self, id: str) -> Explanation:
        """Why it is where it is, and what can be done about it."""
        request = self._wire.request("GET", _path(id, "explain"))
        return await self._wire.ask(Explanation, request)

    async def workers(self) -> tuple[dict[str, Any], ...]:
        return (await self._wire.ask(Items, self._wire.request("GET", "/api/v2/workers"))).items

    async def services(self) -> tuple[dict[str, Any], ...]:
        return (await self._wire.ask(Items, self._wire.request("GET", "/api/v2/services"))).items

    async def health(self) -> dict[str, Any]:
        """How the server is: one that is unwell says so with 503, and that is an answer."""
        request = self._wire.request("GET", "/health")
        return await self._wire.ask(dict[str, Any], request, even=503)

    # Somebody intervenes.

    async def cancel(self, id: str) -> TaskView:
        return await self._wire.ask(TaskView, self._wire.request("POST", _path(id, "cancel")))

    async def retry(self, id: str) -> TaskView:
        return await self._wire.ask(TaskView, self._wire.request("POST", _path(id, "retry")))


def _path(id: str, *rest: str) -> str:
    return "/".join(("/api/v2/tasks", quote(id, safe=""), *rest))


def _since_ms(began: float) -> int:
    return int((monotonic() - began) * 1000)
