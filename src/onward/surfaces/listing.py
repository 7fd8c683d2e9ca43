"""Lists by a door's own words. The ledger knows states; which word a task has, its phase tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from onward.core.contract import Query, TaskStore
from onward.core.task import Task

FURTHER = 500  # tasks on a page after the first, when most of those before did not fit
MOST_SEEN = 20_000  # tasks looked at for one list


async def newest(
    store: TaskStore, query: Query, fits: Callable[[Task], bool], limit: int
) -> Sequence[Task]:
    """The newest so many that match the query and fit."""
    found: list[Task] = []
    seen = 0
    while True:
        page = await store.find(query)
        found += [task for task in page.items if fits(task)]
        seen += len(page.items)
        if len(found) >= limit or page.next is None or seen >= MOST_SEEN:
            return found[:limit]
        query = msgspec.structs.replace(query, after=page.next, limit=FURTHER)
