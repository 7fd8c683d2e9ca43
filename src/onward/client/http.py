"""The client: hand off work, wait for it, follow it. Speaks /api/v2; decides nothing.

A submission carries an idempotency key, so it may be sent again after a cut without being taken
twice. Waiting and following outlive a server that restarts: the task does, so they should too.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack, overload

import msgspec

from onward.client.address import server_url
from onward.client.batch import Batches
from onward.client.durations import either, ms
from onward.client.errors import ProblemError, StillRunning, Unreachable
from onward.client.resources import (
    Encryption,
    Flows,
    Keys,
    Limits,
    Log,
    Operations,
    Queues,
    Runs,
    Schedules,
)
from onward.client.retrying import RetryWindow
from onward.client.submitting import LONG_POLL_MS, Options, Submitter, reader, result_of
from onward.wire.approvals import ApprovalView, Approve, Reject
from onward.wire.attention import AttentionItem
from onward.wire.base import Page
from onward.wire.callbacks import CallbackSecret
from onward.wire.dead_letters import (
    Abandon,
    Abandoned,
    DeadGroup,
    DeadLetterFilter,
    Replay,
    Replayed,
)
from onward.wire.logs import LogRecord
from onward.wire.services import ServiceView
from onward.wire.tasks import ApprovalTerms, Explanation, TaskEvent, TaskView
from onward.wire.workers import WorkerView

if TYPE_CHECKING:
    from onward.client.functions import ToolFunction

__all__ = [
    "ApprovalTerms", "ApprovalView", "Client", "DeadFilter", "DeadGroup", "Explanation", "Filter",
    "Options", "TaskEvent", "TaskView",
]  # fmt: skip

R = TypeVar("R")

LOGS_EVERY_S = 0.5
EARLY_S = 0.05  # a server that ends a long poll at once is not asked again at once


class Filter(TypedDict, total=False):
    state: str | None
    type: str | None
    queue: str | None
    session: str | None
    owner: str | None
    tag: Sequence[str] | None
    batch: str | None
    partition: str | None
    created_after: int | None
    created_before: int | None
    finished_after: int | None
    finished_before: int | None
    not_type: Sequence[str] | None
    not_queue: Sequence[str] | None
    not_session: Sequence[str] | None
    not_tag: Sequence[str] | None
    not_batch: Sequence[str] | None
    not_partition: Sequence[str] | None
    q: str | None
    cursor: str | None
    limit: int | None


class DeadFilter(TypedDict, total=False):
    fingerprint: str
    type: str
    queue: str
    q: str


class Client(Submitter):
    """A server, for a program with an event loop. `SyncClient` is the same without await.

    One client keeps its connections; make one and keep it, rather than one for each call.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
        verify: bool | str | ssl.SSLContext | None = None,
    ) -> None:
        """`url` is the server's; without it, that of ONWARD_URL, or of this machine.

        `key` is the token of a key; without it, that of ONWARD_KEY. `headers` go with each request.
        `timeout` is how long an answer may take, beside the time that a call waits on purpose:
        30 s. `verify` is how the server's certificate is checked: by the file with its authority's
        certificate, by an SSL context, or, with False, not at all.
        """
        # Loaded here and not above: an HTTP library takes longer to load than all the rest.
        from onward.client.api import ANSWER_S, ServerApi

        self.url: str = server_url(url)
        answer_s = ANSWER_S if timeout is None else ms(timeout) / 1000
        api = ServerApi(self.url, key=key, headers=headers, answer_s=answer_s, verify=verify)
        super().__init__(api, self.wait)
        self.flows: Flows = Flows(api, self.wait)
        self.runs: Runs = Runs(api, self.wait)
        self.schedules: Schedules = Schedules(api, self.wait)
        self.queues: Queues = Queues(api, self.wait)
        self.keys: Keys = Keys(api, self.wait)
        self.log: Log = Log(api, self.wait)
        self.encryption: Encryption = Encryption(api, self.wait)
        self.limits: Limits = Limits(api, self.wait)
        self.operations: Operations = Operations(api, self.wait)
        self.batches: Batches = Batches(api, self.wait)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._api.close()

    # What became of it.

    async def get(self, id: str) -> TaskView:
        """The task as it is now."""
        return await self._api.call(TaskView, "GET", "tasks", id)

    async def wait(
        self, id: str, timeout_ms: int | None = None, *, timeout: timedelta | None = None
    ) -> TaskView:
        """Until it is over, however it ends; StillRunning when the time is over first."""
        timeout_ms = either(timeout, timeout_ms)
        began = monotonic()
        window = RetryWindow(self._api)
        while True:
            asked = monotonic()
            left = LONG_POLL_MS
            if timeout_ms is not None:
                left = max(0, min(left, timeout_ms - _since_ms(began)))
            try:
                task = await self._api.call(TaskView, "GET", "tasks", id, wait_ms=left)
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

    @overload
    async def result(
        self, id: str, *, result_type: type[R], timeout: timedelta | None = None
    ) -> R: ...

    @overload
    async def result(self, id: str, *, timeout: timedelta | None = None) -> Any: ...

    async def result(
        self, id: str, *, result_type: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Waits until it is over, and returns its result, as `result_type` if one is given.

        TaskFailed if there is none; StillRunning when the time is over first.
        """
        return reader(result_type)(result_of(await self.wait(id, timeout=timeout)))

    async def stream(self, id: str, after: int = 0) -> AsyncGenerator[TaskEvent, None]:
        """Its events after number `after`, as they happen, until it is over."""
        seen, last = after, False
        window = RetryWindow(self._api)
        while True:
            before = seen
            try:
                async with aclosing(self._api.follow("tasks", id, "events", after=seen)) as sent:
                    async for data in sent:
                        event = msgspec.json.decode(data, type=TaskEvent)
                        window.reset()
                        if event.n > seen:
                            seen, last = event.n, event.is_last
                            yield event
            except (Unreachable, ProblemError) as error:
                await window.retry_or_raise(error)
                continue
            # The server ended the stream: the task is over, or the server is stopping.
            if last or (seen == before and (await self.get(id)).over):
                return
            await asyncio.sleep(EARLY_S)

    async def events(self, id: str, after: int = 0) -> Page[TaskEvent]:
        """What has happened to it so far, from number `after` on."""
        return await self._api.call(Page[TaskEvent], "GET", "tasks", id, "events", after=after)

    async def task_logs(self, id: str, cursor: str | None = None) -> Page[LogRecord]:
        """What its handlers have logged, the oldest first; `next` is the cursor of the rest."""
        return await self._api.call(Page[LogRecord], "GET", "tasks", id, "logs", cursor=cursor)

    async def follow_task_logs(self, id: str) -> AsyncGenerator[LogRecord, None]:
        """What its handlers log, as it comes, until the task is over."""
        cursor, seen = None, 0
        while True:
            task = await self.get(id)
            while True:
                page = await self.task_logs(id, cursor)
                for record in page.items[seen:]:
                    yield record
                seen = len(page.items)
                if page.next is None:
                    break
                cursor, seen = page.next, 0
            if task.over:
                return
            await asyncio.sleep(LOGS_EVERY_S)

    async def list(self, **filter: Unpack[Filter]) -> Page[TaskView]:
        """Tasks, the newest first; `next` of a page is the `cursor` of the one after it."""
        return await self._api.call(Page[TaskView], "GET", "tasks", **filter)

    async def explain(self, id: str) -> Explanation:
        """Why it is where it is, and what can be done about it."""
        return await self._api.call(Explanation, "GET", "tasks", id, "explain")

    async def workers(self) -> tuple[WorkerView, ...]:
        """The workers that are there now."""
        return (await self._api.call(Page[WorkerView], "GET", "workers")).items

    async def callback_secret(self) -> str:
        """What the callbacks of this key's tasks are signed with: for who receives them."""
        found = await self._api.call(CallbackSecret, "GET", "me", "callback-secret")
        return found.secret

    async def services(self) -> tuple[ServiceView, ...]:
        """The services that are declared, with their schemas."""
        return (await self._api.call(Page[ServiceView], "GET", "services")).items

    async def tools(
        self, session_id: str | None = None, *, services: Sequence[str] | None = None
    ) -> Sequence[ToolFunction]:
        """The agent door's tools, as functions to be awaited; with a session, they are its own;
        with `services` those of these services alone, and of flows named as `flow:close_books`.
        """
        from onward.client.functions import async_tools

        return await async_tools(self._api, session_id, services)

    async def health(self) -> dict[str, Any]:
        """Whether the server is well (wire/health.py); one that is not answers 503 with the same.

        As it came: the doctor also reads what other versions answer.
        """
        return await self._api.get_json(
            dict[str, Any], self._api.request("GET", "/health"), ok_status=503
        )

    # To change its course.

    async def cancel(self, id: str) -> TaskView:
        """End it; one that runs is asked to stop. ProblemError 409 if it is over."""
        return await self._api.call(TaskView, "POST", "tasks", id, "cancel")

    async def retry(self, id: str) -> TaskView:
        """Replay one task, however it ended; `replay` takes many dead letters."""
        return await self._api.call(TaskView, "POST", "tasks", id, "retry")

    # What waits for a person.

    async def attention(self) -> tuple[AttentionItem, ...]:
        """What needs a person now, the worst first: breakers, dead letters, queues without
        workers and so on.
        """
        return (await self._api.call(Page[AttentionItem], "GET", "attention")).items

    async def approvals(
        self, status: str = "open", *, cursor: str | None = None, limit: int | None = None
    ) -> Page[ApprovalView]:
        """What waits for a person, or with another `status` what was decided."""
        params = {"status": status, "cursor": cursor, "limit": limit}
        return await self._api.call(Page[ApprovalView], "GET", "approvals", **params)

    async def approval(self, id: str) -> ApprovalView:
        """The approval that this task waits for."""
        return await self._api.call(ApprovalView, "GET", "approvals", id)

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
        return await self._api.call(ApprovalView, "POST", "approvals", id, "approve", body=body)

    async def reject(
        self,
        id: str,
        *,
        by: str | None = None,
        comment: str | None = None,
        digest: str | None = None,
    ) -> ApprovalView:
        """It will not run, and fails with the comment."""
        body = Reject(by=by, comment=comment, digest=digest)
        return await self._api.call(ApprovalView, "POST", "approvals", id, "reject", body=body)

    # Tasks that failed for good.

    async def dead_letters(self, **filter: Unpack[DeadFilter]) -> Page[DeadGroup]:
        """What died, grouped by its cause. The tasks of one group: `dead_tasks`."""
        return await self._api.call(Page[DeadGroup], "GET", "dead-letters", **filter)

    async def dead_tasks(
        self, *, cursor: str | None = None, limit: int | None = None, **filter: Unpack[DeadFilter]
    ) -> Page[TaskView]:
        """Tasks that failed for good."""
        params: dict[str, Any] = {"cursor": cursor, "limit": limit, **filter}
        if "fingerprint" in filter:
            return await self._api.call(Page[TaskView], "GET", "dead-letters", **params)
        return await self._api.call(Page[TaskView], "GET", "tasks", state="dead", **params)

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
        return await self._api.call(Replayed, "POST", "dead-letters", "replay", body=body)

    async def abandon(
        self,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
        reason: str | None = None,
    ) -> Abandoned:
        """Dead letters that are given up: they are kept as failed, and no longer wait."""
        body = Abandon(**_chosen(ids, filter), dry_run=dry_run, reason=reason)
        return await self._api.call(Abandoned, "POST", "dead-letters", "abandon", body=body)


def _chosen(ids: Sequence[str] | None, filter: DeadFilter | None) -> dict[str, Any]:
    named = None if ids is None else tuple(ids)
    return {"ids": named, "filter": None if filter is None else DeadLetterFilter(**filter)}


def _since_ms(began: float) -> int:
    return int((monotonic() - began) * 1000)
