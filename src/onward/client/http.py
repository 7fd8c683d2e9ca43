"""The client: hand off work, wait for it, follow it. Speaks /api/v2; decides nothing.

A submission carries an idempotency key, so it may be sent again after a cut without being taken
twice. Waiting and following outlive a server that restarts: the task does, so they should too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack
from urllib.parse import quote

import msgspec

from onward.client.address import server_url
from onward.client.errors import ProblemError, StillRunning, TaskFailed, Unreachable
from onward.client.wire import Patience, Wire
from onward.core.task import FINAL, FINAL_EVENTS, State, new_id
from onward.wire.base import Page
from onward.wire.services import ServiceView
from onward.wire.workers import WorkerView

if TYPE_CHECKING:
    from onward.client.encryption import Encryption
    from onward.client.flows import Flows, Runs
    from onward.client.functions import ToolFunction
    from onward.client.log import Log
    from onward.client.queues import Queues
    from onward.client.schedules import Schedules

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
    approval: ApprovalTerms


class ApprovalTerms(TypedDict, total=False):
    """On what terms a person is asked; whoever gives them asks."""

    expires_ms: int
    default: Literal["approve", "reject"]
    reason: str


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


class ApprovalView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    task_id: str
    type: str
    queue: str
    status: str
    requested_at: int
    payload: Any = None
    expires_at: int | None = None
    default: str = "reject"
    reason: str | None = None
    by: str | None = None
    comment: str | None = None
    decided_at: int | None = None
    digest: str = ""


class ApprovalPage(msgspec.Struct, frozen=True):
    items: tuple[ApprovalView, ...]
    next: str | None = None


class DeadFilter(TypedDict, total=False):
    fingerprint: str
    type: str
    queue: str
    q: str


class DeadGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that died of the same thing."""

    fingerprint: str
    kind: str
    message: str
    count: int
    first_at: int
    last_at: int
    types: tuple[str, ...]
    sample: TaskView
    task_ids: tuple[str, ...]


class DeadGroups(msgspec.Struct, frozen=True):
    items: tuple[DeadGroup, ...]
    next: str | None = None


class Refusal(msgspec.Struct, frozen=True):
    id: str
    reason: str


class Mended(msgspec.Struct, frozen=True):
    id: str
    before: Any
    after: Any


class Bulk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a replay, or an abandonment, of many went."""

    matched: int
    replayed: int | None = None
    abandoned: int | None = None
    refused: tuple[Refusal, ...] = ()  # the first 10,000
    refused_count: int = 0
    until: int | None = None  # when the last one starts, if they start at a rate
    sample: tuple[Mended, ...] = ()  # of a dry run with another payload: a few, before and after


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

    @cached_property
    def flows(self) -> Flows:
        from onward.client.flows import Flows

        return Flows(self, self._wire)

    @cached_property
    def runs(self) -> Runs:
        from onward.client.flows import Runs

        return Runs(self, self._wire)

    @cached_property
    def schedules(self) -> Schedules:
        from onward.client.schedules import Schedules

        return Schedules(self._wire)

    @cached_property
    def log(self) -> Log:
        from onward.client.log import Log

        return Log(self._wire)

    @cached_property
    def queues(self) -> Queues:
        from onward.client.queues import Queues

        return Queues(self._wire)

    @cached_property
    def encryption(self) -> Encryption:
        from onward.client.encryption import Encryption

        return Encryption(self._wire)

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
        patience = Patience(self._wire)
        while True:
            asked = monotonic()
            left = LONG_POLL_MS
            if timeout_ms is not None:
                left = max(0, min(left, timeout_ms - _since_ms(began)))
            try:
                request = self._wire.request("GET", _path(id), wait_ms=left)
                task = await self._wire.ask(TaskView, request)
            except (Unreachable, ProblemError) as error:
                if left == 0:
                    raise
                await patience.bear(error)
                continue
            patience.rest()
            if task.over:
                return task
            if timeout_ms is not None and _since_ms(began) >= timeout_ms:
                raise StillRunning(task)
            await asyncio.sleep(max(0.0, EARLY_S - (monotonic() - asked)))

    async def stream(self, id: str, after: int = 0) -> AsyncGenerator[TaskEvent, None]:
        """Its events after number `after`, as they happen, until it is over."""
        seen, last = after, ""
        patience = Patience(self._wire)
        while True:
            before = seen
            try:
                async with aclosing(self._wire.follow(_path(id, "events"), after=seen)) as sent:
                    async for data in sent:
                        event = msgspec.json.decode(data, type=TaskEvent)
                        patience.rest()
                        if event.n > seen:
                            seen, last = event.n, event.type
                            yield event
            except (Unreachable, ProblemError) as error:
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

    async def workers(self) -> tuple[WorkerView, ...]:
        return (await self._wire.call(Page[WorkerView], "GET", "/api/v2/workers")).items

    async def services(self) -> tuple[ServiceView, ...]:
        return (await self._wire.call(Page[ServiceView], "GET", "/api/v2/services")).items

    async def tools(self, session_id: str | None = None) -> Sequence[ToolFunction]:
        """The agent door's tools, as functions to be awaited; with a session, they are its own."""
        from onward.client.functions import async_tools

        return await async_tools(self._wire, session_id)

    async def health(self) -> dict[str, Any]:
        """Whether the server is well (wire/health.py); one that is not answers 503 with the same.

        As it came: the doctor also reads what other versions answer.
        """
        return await self._wire.ask(dict[str, Any], self._wire.request("GET", "/health"), even=503)

    # Somebody intervenes.

    async def cancel(self, id: str) -> TaskView:
        return await self._wire.ask(TaskView, self._wire.request("POST", _path(id, "cancel")))

    async def retry(self, id: str) -> TaskView:
        return await self._wire.ask(TaskView, self._wire.request("POST", _path(id, "retry")))

    # Somebody is asked.

    async def approvals(
        self, status: str = "open", *, cursor: str | None = None, limit: int | None = None
    ) -> ApprovalPage:
        request = self._wire.request(
            "GET", "/api/v2/approvals", status=status, cursor=cursor, limit=limit
        )
        return await self._wire.ask(ApprovalPage, request)

    async def approval(self, id: str) -> ApprovalView:
        return await self._wire.ask(ApprovalView, self._wire.request("GET", _asked(id)))

    async def approve(
        self,
        id: str,
        *,
        by: str | None = None,
        comment: str | None = None,
        payload: Any = msgspec.UNSET,
        digest: str | None = None,
    ) -> ApprovalView:
        """Let it run, with another payload if one is given; with `digest`, only what was seen."""
        body = _given(by=by, comment=comment, payload=payload, digest=digest)
        request = self._wire.request("POST", _asked(id, "approve"), body=body)
        return await self._wire.ask(ApprovalView, request)

    async def reject(
        self,
        id: str,
        *,
        by: str | None = None,
        comment: str | None = None,
        digest: str | None = None,
    ) -> ApprovalView:
        body = _given(by=by, comment=comment, digest=digest)
        request = self._wire.request("POST", _asked(id, "reject"), body=body)
        return await self._wire.ask(ApprovalView, request)

    # Somebody looks after the dead.

    async def dead_letters(self, **filter: Unpack[DeadFilter]) -> DeadGroups:
        """What died, grouped by what of. The tasks of one group: `dead_tasks`."""
        return await self._wire.ask(DeadGroups, self._wire.request("GET", _DEAD, **filter))

    async def dead_tasks(
        self, *, cursor: str | None = None, limit: int | None = None, **filter: Unpack[DeadFilter]
    ) -> TaskPage:
        grouped = "fingerprint" in filter
        request = self._wire.request(
            "GET",
            _DEAD if grouped else "/api/v2/tasks",
            state=None if grouped else State.DEAD,
            cursor=cursor,
            limit=limit,
            **filter,
        )
        return await self._wire.ask(TaskPage, request)

    async def replay(
        self,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        payload: Any = msgspec.UNSET,
        patch: Any = msgspec.UNSET,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> Bulk:
        """Dead letters from the beginning again; `rate` is how many start in a second.

        With another `payload`, the same for all, or with a JSON merge `patch` of each one's own.
        """
        body = _given(
            ids=ids, filter=filter, payload=payload, patch=patch, rate=rate, dry_run=dry_run
        )
        return await self._wire.ask(Bulk, self._wire.request("POST", f"{_DEAD}/replay", body=body))

    async def abandon(
        self,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> Bulk:
        body = _given(ids=ids, filter=filter, dry_run=dry_run)
        return await self._wire.ask(Bulk, self._wire.request("POST", f"{_DEAD}/abandon", body=body))


_DEAD = "/api/v2/dead-letters"


def _asked(id: str, *rest: str) -> str:
    return "/".join(("/api/v2/approvals", quote(id, safe=""), *rest))


def _given(
    *, payload: Any = msgspec.UNSET, patch: Any = msgspec.UNSET, **fields: Any
) -> dict[str, Any]:
    said = {name: value for name, value in fields.items() if value is not None}
    free = {"payload": payload, "patch": patch}  # of these null is a value
    return said | {name: value for name, value in free.items() if value is not msgspec.UNSET}


def _path(id: str, *rest: str) -> str:
    return "/".join(("/api/v2/tasks", quote(id, safe=""), *rest))


def _since_ms(began: float) -> int:
    return int((monotonic() - began) * 1000)
