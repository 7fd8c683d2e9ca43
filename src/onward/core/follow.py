"""One task's events as they happen: what is there, then what comes, until it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress

from onward.core.contract import Backend, TaskStore
from onward.core.task import FINAL, FINAL_EVENTS, Event, TaskId

BATCH = 256
REREAD_S = 1.0


async def history(store: TaskStore, task: TaskId, *, after: int = 0) -> AsyncIterator[Event]:
    """One task's events as far as they are written, a page in memory at a time."""
    cursor, more = str(after), True
    while more:
        page = await store.events(after=cursor, limit=BATCH, task=task)
        for event in page.items:
            yield event
        cursor, more = page.next or cursor, page.more


async def follow(
    backend: Backend, task: TaskId, *, after: int = 0
) -> AsyncGenerator[Sequence[Event], None]:
    """Batches in order. An empty one comes about once a second: the follower may look around."""
    cursor = str(after)
    # Listening begins before the first look: a ring in between is not lost.
    async with backend.bell.listen(f"task:{task}") as listener:
        while True:
            found = (await backend.tasks.look([task]))[0]
            page = await backend.tasks.events(after=cursor, limit=BATCH, task=task)
            cursor = page.next or cursor
            yield page.items
            if page.more:
                continue
            # Read before the events were: a task that was over then has no events to come.
            if found is None or found.state in FINAL:
                return
            if not page.items or not _ends(page.items):
                with suppress(TimeoutError):
                    async with asyncio.timeout(REREAD_S):
                        await listener.wait()


def _ends(events: Sequence[Event]) -> bool:
    return events[-1].type in FINAL_EVENTS
