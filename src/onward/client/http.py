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
from onward.client.api import RetryWindow, ServerApi
from onward.client.errors import ProblemError, StillRunning, TaskFailed, Unreachable
from onward.core.task import FINAL_EVENTS, State, new_id
from onward.wire.approvals import ApprovalView, Approve, Reject
from onward.wire.base import Page
from onward.wire.dead_letters import (
    Abandon,
    Abandoned,
    DeadGroup,
    DeadLetterFilter,
    Replay,
    Replayed,
)
from onward.wire.services import ServiceView
from onward.wire.tasks import ApprovalTerms, Explanation, TaskEvent, TaskView
from onward.wire.workers import WorkerView

if TYPE_CHECKING:
    from onward.client.encryption import Encryption
    from onward.client.flows import Flows, Runs
    from onward.client.functions import ToolFunction
    from onward.client.log import Log
    from onward.client.queues import Queues
    from onward.client.schedules import Schedules

__all__ = [
    "ApprovalTerms", "ApprovalView", "Client", "DeadFilter", "DeadGroup", "Explanation", "Filter",
    "Options", "TaskEvent", "TaskView",
]  # fmt: skip

LONG_POLL_MS = 20_000
EARLY_S = 0.05  # a server that ends a long poll at once is not asked again at once
LAST_EVENTS = FINAL_EVENTS | {"task.dlq", "task.abandoned"}


class Options(TypedDict, total=False):
    """The options of a submission, besides its type and payload."""

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
    approval: ApprovalTerms | Mapping[str, Any]


class Filter(TypedDict, total=False):
    state: str | None
    type: str | None
    queue: str | None
    session: str | None
    q: str | None
    cursor: str | None
    limit: int | None


class DeadFilter(TypedDict, total=False):
    fingerprint: str
    type: str
    queue: str
    q: str


class Client:
    def __init__(self, url: str | None = None) -> None:
        self.url = server_url(url)
        self._api = ServerApi(self.url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._api.close()

    @cached_property
    def flows(self) -> Flows:
        from onward.client.flows import Flows

        return Flows(self, self._api)

    @cached_property
    def runs(self) -> Runs:
        from onward.client.flows import Runs

        return Runs(self, self._api)

    @cached_property
    def schedules(self) -> Schedules:
        from onward.client.schedules import Schedules

        return Schedules(self._api)

    @cached_property
    def log(self) -> Log:
        from onward.client.log import Log

        return Log(self._api)

    @cached_property
    def queues(self) -> Queues:
        from onward.client.queues import Queues

        return Queues(self._api)

    @cached_property
    def encryption(self) -> Encryption:
        from onward.client.encryption import Encryption

        return Encryption(self._api)

    # Work goes in.

    async def submit(
        self, type: str, payload: Any = None, *, wait_ms: int = 0, **options: Unpack[Options]
    ) -> TaskView:
        """The task is taken when this returns; with `wait_ms`, perhaps it is over already."""
        body = {"type": type, "payload": payload, **options}
        key = options.get("idempotency_key") or new_id()
        return await self._api.call(TaskView, "POST", _TASKS, body=body, key=key, wait_ms=wait_ms)

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
        if task.state != "succeeded":
            raise TaskFailed(task)
        return task.result

    # What became of it.

    async def get(self, id: str) -> TaskView:
        return await self._api.call(TaskView, "GET", _path(id))

    async def wait(self, id: str, timeout_ms: int | None = None) -> TaskView:
        """Until it is over, however it ends; StillRunning when the time is over first."""
        began = monotonic()
        window = RetryWindow(self._api)
        while True:
            asked = monotonic()
            left = LONG_POLL_MS
            if timeout_ms is not None:
                left = max(0, min(left, timeout_ms - _since_ms(began)))
            try:
                task = await self._api.call(TaskView, "GET", _path(id), wait_ms=left)
            except (Unreachable, ProblemError) as error:
                if left == 0:
                    raise
                await window.retry_or_raise(error)
                continue
            window.reset()
            if task.over:
                return task
            if timeout_ms is not None and _since_ms(began) >= timeout_ms:
                raise StillRunning(task)
            await asyncio.sleep(max(0.0, EARLY_S - (monotonic() - asked)))

    async def stream(self, id: str, after: int = 0) -> AsyncGenerator[TaskEvent, None]:
        """Its events after number `after`, as they happen, until it is over."""
        seen, last = after, ""
        window = RetryWindow(self._api)
        while True:
            before = seen
            try:
                async with aclosing(self._api.follow(_path(id, "events"), after=seen)) as sent:
                    async for data in sent:
                        event = msgspec.json.decode(data, type=TaskEvent)
                        window.reset()
                        if event.n > seen:
                            seen, last = event.n, event.type
                            yield event
            except (Unreachable, ProblemError) as error:
                await window.retry_or_raise(error)
                continue
            # The server ended the stream: the task is over, or the server is stopping.
            if last in LAST_EVENTS or (seen == before and (await self.get(id)).over):
                return
            await asyncio.sleep(EARLY_S)

    async def events(self, id: str, after: int = 0) -> Page[TaskEvent]:
        """What has happened to it so far, from number `after` on."""
        return await self._api.call(Page[TaskEvent], "GET", _path(id, "events"), after=after)

    async def list(self, **filter: Unpack[Filter]) -> Page[TaskView]:
        return await self._api.call(Page[TaskView], "GET", _TASKS, **filter)

    async def explain(self, id: str) -> Explanation:
        """Why it is where it is, and what can be done about it."""
        return await self._api.call(Explanation, "GET", _path(id, "explain"))

    async def workers(self) -> tuple[WorkerView, ...]:
        return (await self._api.call(Page[WorkerView], "GET", "/api/v2/workers")).items

    async def services(self) -> tuple[ServiceView, ...]:
        return (await self._api.call(Page[ServiceView], "GET", "/api/v2/services")).items

    async def tools(self, session_id: str | None = None) -> Sequence[ToolFunction]:
        """The agent door's tools, as functions to be awaited; with a session, they are its own."""
        from onward.client.functions import async_tools

        return await async_tools(self._api, session_id)

    async def health(self) -> dict[str, Any]:
        """Whether the server is well (wire/health.py); one that is not answers 503 with the same.

        As it came: the doctor also reads what other versions answer.
        """
        return await self._api.get_json(
            dict[str, Any], self._api.request("GET", "/health"), ok_status=503
        )

    # To change its course.

    async def cancel(self, id: str) -> TaskView:
        return await self._api.call(TaskView, "POST", _path(id, "cancel"))

    async def retry(self, id: str) -> TaskView:
        """Replay one task, however it ended; `replay` takes many dead letters."""
        return await self._api.call(TaskView, "POST", _path(id, "retry"))

    # What waits for a person.

    async def approvals(
        self, status: str = "open", *, cursor: str | None = None, limit: int | None = None
    ) -> Page[ApprovalView]:
        params = {"status": status, "cursor": cursor, "limit": limit}
        return await self._api.call(Page[ApprovalView], "GET", _APPROVALS, **params)

    async def approval(self, id: str) -> ApprovalView:
        return await self._api.call(ApprovalView, "GET", _path(id, of=_APPROVALS))

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
        body = Approve(by=by, comment=comment, payload=payload, digest=digest)
        path = _path(id, "approve", of=_APPROVALS)
        return await self._api.call(ApprovalView, "POST", path, body=body)

    async def reject(
        self,
        id: str,
        *,
        by: str | None = None,
        comment: str | None = None,
        digest: str | None = None,
    ) -> ApprovalView:
        body = Reject(by=by, comment=comment, digest=digest)
        path = _path(id, "reject", of=_APPROVALS)
        return await self._api.call(ApprovalView, "POST", path, body=body)

    # Tasks that failed for good.

    async def dead_letters(self, **filter: Unpack[DeadFilter]) -> Page[DeadGroup]:
        """What died, grouped by its cause. The tasks of one group: `dead_tasks`."""
        return await self._api.call(Page[DeadGroup], "GET", _DEAD, **filter)

    async def dead_tasks(
        self, *, cursor: str | None = None, limit: int | None = None, **filter: Unpack[DeadFilter]
    ) -> Page[TaskView]:
        params: dict[str, Any] = {"cursor": cursor, "limit": limit, **filter}
        if "fingerprint" in filter:
            return await self._api.call(Page[TaskView], "GET", _DEAD, **params)
        return await self._api.call(Page[TaskView], "GET", _TASKS, state=State.DEAD, **params)

    async def replay(
        self,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        payload: Any = msgspec.UNSET,
        patch: Any = msgspec.UNSET,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> Replayed:
        """Dead letters from the beginning again; `rate` is how many start in a second.

        With another `payload`, the same for all, or with a JSON merge `patch` of each one's own.
        """
        body = Replay(
            **_chosen(ids, filter), payload=payload, patch=patch, rate=rate, dry_run=dry_run
        )
        return await self._api.call(Replayed, "POST", f"{_DEAD}/replay", body=body)

    async def abandon(
        self,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> Abandoned:
        body = Abandon(**_chosen(ids, filter), dry_run=dry_run)
        return await self._api.call(Abandoned, "POST", f"{_DEAD}/abandon", body=body)


_TASKS, _APPROVALS, _DEAD = "/api/v2/tasks", "/api/v2/approvals", "/api/v2/dead-letters"


def _chosen(ids: Sequence[str] | None, filter: DeadFilter | None) -> dict[str, Any]:
    named = None if ids is None else tuple(ids)
    return {"ids": named, "filter": None if filter is None else DeadLetterFilter(**filter)}


def _path(id: str, *rest: str, of: str = _TASKS) -> str:
    return "/".join((of, quote(id, safe=""), *rest))


def _since_ms(began: float) -> int:
    return int((monotonic() - began) * 1000)
