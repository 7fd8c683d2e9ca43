"""How a door reads tasks: a page of those that fit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import msgspec

from onward.core.contract import Page, Query, TaskStore
from onward.core.task import Task

Fits: TypeAlias = Callable[[Task], bool]

MOST_SEEN = 20_000  # tasks looked at for one list


async def fitting(
    store: TaskStore, query: Query, fits: Fits, *, at_a_time: int | None = None
) -> AsyncIterator[Page[Task]]:
    """The newest tasks that match the query and fit, up to its limit: a page for each look at the
    ledger, until so many tasks were looked at or the caller stops.

    Reads as many as are still wanted, so that a caller may go on from the cursor of any page. A
    list that has no cursor reads `at_a_time` after the first look.
    """
    left, seen = query.limit, 0
    while True:
        page = await store.find(query)
        found = [task for task in page.items if fits(task)][:left]
        yield Page(found, page.next)
        left -= len(found)
        seen += len(page.items)
        if not left or page.next is None or seen >= MOST_SEEN:
            return
        query = msgspec.structs.replace(query, after=page.next, limit=at_a_time or left)
