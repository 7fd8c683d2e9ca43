"""How a door reads tasks: one by its id, one once it is over, a page of those that fit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import msgspec

from onward.core.contract import Page, Query, TaskStore, Without
from onward.core.dispatch import Dispatcher
from onward.core.errors import NextStep, NotFound, Step
from onward.core.task import FINAL, Task, TaskId
from onward.flow.runs import PROFILE
from onward.native.caller import Caller, Scope
from onward.wire.operations import OperationFilter, words
from onward.wire.tasks import TaskQuery

Fits: TypeAlias = Callable[[Task], bool]

NO_TASK = "no such task"
MOST_SEEN = 20_000  # tasks looked at for one list


async def get_task(
    store: TaskStore,
    caller: Caller,
    id: TaskId,
    shown: Fits | None = None,
    *,
    missing: NotFound | None = None,
) -> Task:
    """NotFound: there is no such task, or this caller is not shown it; the two look the same."""
    found = (await store.get([id]))[0]
    here = found is not None and (shown is None or shown(found))
    if found is None or not (here and await is_seen(store, caller, found)):
        raise missing or NotFound(NO_TASK, step=NextStep(Step.LIST_TASKS))
    return found


async def is_seen(store: TaskStore, caller: Caller, task: Task) -> bool:
    """Who may approve sees also the run that asks for it: its approval is a task of its own."""
    if caller.sees(task):
        return True
    if task.profile != PROFILE or not caller.has(Scope.APPROVE):
        return False
    return bool((await store.find(Query(parent=task.id, approval="all", limit=1))).items)


async def when_over(dispatcher: Dispatcher, task: Task, wait_ms: int) -> Task:
    """The task once it is over, or as it is after that time.

    A caller does not wait for a service whose breaker is open: it would wait for nothing.
    """
    shut = dispatcher.pressure.breakers.shut(task.queue)
    if not wait_ms or task.state in FINAL or shut is not None:
        return task
    await dispatcher.wait(task.id, timeout_ms=wait_ms)
    found = (await dispatcher.backend.tasks.get([task.id]))[0]
    if found is None:
        raise NotFound(NO_TASK, step=NextStep(Step.LIST_TASKS))
    return found


async def fitting(
    store: TaskStore, caller: Caller, query: Query, fits: Fits, *, at_a_time: int | None = None
) -> AsyncIterator[Page[Task]]:
    """The newest tasks that the caller sees, match the query and fit, up to its limit: a page for
    each look at the ledger, until so many tasks were looked at or the caller stops.

    Reads as many as are still wanted, so that a caller may go on from the cursor of any page. A
    list that has no cursor reads `at_a_time` after the first look.
    """
    query, left, seen = caller.within(query), query.limit, 0
    while True:
        page = await store.find(query)
        found = [task for task in page.items if fits(task)][:left]
        yield Page(found, page.next)
        left -= len(found)
        seen += len(page.items)
        if not left or page.next is None or seen >= MOST_SEEN:
            return
        query = msgspec.structs.replace(query, after=page.next, limit=at_a_time or left)


def left_out(filter: TaskQuery | OperationFilter) -> Without:
    return Without(
        type=frozenset(words(filter.not_type)),
        queue=frozenset(words(filter.not_queue)),
        session=frozenset(words(filter.not_session)),
        batch=frozenset(words(filter.not_batch)),
        partition=frozenset(words(filter.not_partition)),
        tags=frozenset(words(filter.not_tag)),
    )
