"""Operations: cancel, retry or delete all tasks that a filter matches, or that are named (B-3).

The matched set is fixed at the call: its ids are spooled into documents, a thousand at a time, so
neither the call nor the work holds many in memory. The work is a task of our own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec
from msgspec import UNSET

from onward.core.contract import PAGE_BYTES
from onward.core.contract import Query as LedgerQuery
from onward.core.dispatch import Dispatcher
from onward.core.errors import NotFound
from onward.core.task import State, Task, encode, new_id
from onward.native.caller import ACTS, LISTS, READS, Action, Caller, Scope, needs
from onward.native.operation_work import (
    KEPT_MS,
    QUEUE,
    RETRIES,
    TYPE,
    OperationProgress,
    Plan,
    Spooled,
    plan_of,
    progress_of,
    spool_key,
    spool_kind,
)
from onward.native.reads import get_task, left_out, when_over
from onward.wire.base import Page
from onward.wire.operations import (
    Operate,
    OperationFilter,
    OperationQuery,
    OperationView,
    Verb,
    words,
)
from onward.wire.tasks import Wait

SPOOLED = 1_000  # tasks in one document
NO_OPERATION = "no such operation"
OURS = "onward:"  # what queues of the server's own begin with


class Operations:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.backend.tasks
        self._documents = dispatcher.backend.documents

    @needs(*ACTS)
    async def cancel_tasks(self, caller: Caller, body: Operate) -> OperationView:
        """Over at once, or asked to stop if they run. Of a key without `operate`: its own."""
        return await self._begun(caller, body, "cancel")

    @needs(Scope.OPERATE)
    async def retry_tasks(self, caller: Caller, body: Operate) -> OperationView:
        """From the beginning again, under their ids."""
        return await self._begun(caller, body, "retry")

    @needs(Scope.OPERATE)
    async def delete_tasks(self, caller: Caller, body: Operate) -> OperationView:
        """Finished tasks are forgotten; those that are not over count as failed."""
        return await self._begun(caller, body, "delete")

    @needs(*LISTS)
    async def list(self, caller: Caller, query: OperationQuery) -> Page[OperationView]:
        """Newest first."""
        wanted = LedgerQuery(queue=QUEUE, after=query.cursor, limit=query.limit)
        page = await self._store.find(caller.within(wanted))
        return Page(items=tuple(map(operation_view, page.items)), next=page.next)

    @needs(*READS)
    async def read(self, caller: Caller, operation_id: str, query: Wait) -> OperationView:
        """How far it is; with `wait_ms`, once it is over."""
        task = await self._get(caller, operation_id)
        return operation_view(await when_over(self._dispatcher, task, query.wait_ms))

    @needs(*ACTS)
    async def stop(self, caller: Caller, operation_id: str) -> OperationView:
        """It goes no further; what it has done stays done."""
        task = await self._get(caller, operation_id)
        caller.acts_on(task)
        stopped = await self._dispatcher.cancel(task.id)
        await caller.audit(Action.TASK_CANCEL, task.id)
        return operation_view(stopped)

    async def _get(self, caller: Caller, id: str) -> Task:
        return await get_task(
            self._store,
            caller,
            id,
            lambda task: task.queue == QUEUE,
            missing=NotFound(NO_OPERATION),
        )

    async def _begun(self, caller: Caller, body: Operate, action: Verb) -> OperationView:
        own = None if caller.has(Scope.OPERATE) else caller.key or ""
        if body.filter is None:
            found = self._named(body.ids or (), own)
        else:
            found = self._matching(_within(_ledger_query(body.filter), own, caller))
        id, now = new_id(), self._dispatcher.clock.now()
        matched = spools = 0
        async for tasks in found:
            matched += len(tasks)
            if not body.dry_run:
                await self._spool(id, spools, tasks)
                spools += 1
        if body.dry_run:
            return OperationView(action=action, matched=matched, done=0, failed=0)
        plan = Plan(action, matched, spools, body.filter, body.rate)
        # After all that it needs is written: killed before, there is no operation.
        task = Task(
            id=id,
            type=TYPE,
            queue=QUEUE,
            profile="console",
            payload=encode(plan),
            created_at=now,
            overrides=RETRIES,
            owner=caller.key,
        )
        await self._dispatcher.submit(task)
        filter = msgspec.to_builtins(body.filter)
        await caller.audit(Action.OPERATION_START, id, verb=action, matched=matched, filter=filter)
        return operation_view((await self._store.get([id]))[0] or task)

    async def _named(self, ids: Sequence[str], owner: str | None) -> AsyncIterator[Sequence[Task]]:
        """Newest first, as a filter finds them; what is not there is not among them."""
        newest = sorted(set(ids), reverse=True)
        for at in range(0, len(newest), SPOOLED):
            found = [
                task
                for task in await self._store.look(newest[at : at + SPOOLED])
                if task is not None
                and owner in (None, task.owner)
                and not task.queue.startswith(OURS)
            ]
            if found:
                yield found

    async def _matching(self, query: LedgerQuery) -> AsyncIterator[Sequence[Task]]:
        while True:
            page = await self._store.find(query)
            found = [task for task in page.items if not task.queue.startswith(OURS)]
            if found:
                yield found
            if page.next is None:
                return
            query = msgspec.structs.replace(query, after=page.next)

    async def _spool(self, id: str, n: int, tasks: Sequence[Task]) -> None:
        now = self._dispatcher.clock.now()
        body = encode([Spooled(task.id, task.generation) for task in tasks])
        await self._documents.put(
            spool_kind(id), spool_key(n), body, now=now, expires_at=now + KEPT_MS
        )


def operation_view(task: Task) -> OperationView:
    plan, progress = plan_of(task.payload), progress_of(task) or OperationProgress()
    return OperationView(
        action=plan.action,
        matched=plan.matched,
        done=progress.done,
        failed=progress.failed,
        id=task.id,
        state=task.shown.value,
        created_at=task.created_at,
        finished_at=task.finished_at,
        owner=task.owner,
        filter=UNSET if plan.filter is None else plan.filter,
        rate=UNSET if plan.rate is None else plan.rate,
        refused=progress.refused,
    )


def _within(query: LedgerQuery, own: str | None, caller: Caller) -> LedgerQuery:
    if own is None:
        return query
    if query.owner not in (None, own):  # not its own instead: others' were meant
        caller.require(Scope.OPERATE)
    return msgspec.structs.replace(query, owner=own)


def _ledger_query(filter: OperationFilter) -> LedgerQuery:
    states = frozenset(State(state) for state in words(filter.state))
    return LedgerQuery(
        states=states,
        offered=State.QUEUED in states if states else None,  # that is how they are shown
        type=filter.type,
        queue=filter.queue,
        partition=filter.partition,
        tags=frozenset(words(filter.tag)),
        batch=filter.batch,
        session=filter.session,
        owner=filter.owner,
        text=filter.q,
        created_from=filter.created_after,
        created_before=filter.created_before,
        finished_from=filter.finished_after,
        finished_before=filter.finished_before,
        without=left_out(filter),
        limit=SPOOLED,
        most_bytes=PAGE_BYTES,
    )
