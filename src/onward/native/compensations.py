"""A canceled task that had begun is undone by the service that its own service names (S2-11).

Reads cancels in the log, once a service with `compensate` was declared; submits one compensation
for each generation, as a task of its own. Never waits for it: a canceled task is over. A run's
calls are not its business: a flow names the compensations of its nodes itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from onward.core.contract import Key
from onward.core.dispatch import Dispatcher
from onward.core.follow import history
from onward.core.task import Event, Task, TaskId, encode, new_id
from onward.services.catalog import Catalog
from onward.services.declarations import as_declared

CANCELED = "task.canceled"
SCOPE = "compensation"
FEEDS = ("onward:streams", "onward:agent-stream")  # the names under which streams claim


class _Claim(msgspec.Struct):
    worker: str = ""


_decode = msgspec.json.Decoder(_Claim).decode


class Compensations:
    name = "compensations"  # of its cursor in the ledger

    def __init__(self, dispatcher: Dispatcher, catalog: Catalog) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.backend.tasks
        self._catalog = catalog

    async def project(self, events: Sequence[Event]) -> None:
        canceled = {event.task: event.generation for event in events if event.type == CANCELED}
        if not canceled:
            return
        tasks = await self._store.get(list(canceled))
        await asyncio.gather(
            *[
                self._undo(task, canceled[task.id])
                for task in tasks
                if task is not None and task.parent is None
            ]
        )

    async def _undo(self, task: Task, generation: int) -> None:
        service = await self._catalog.of(task.type, task.queue)
        if service is None or service.compensate is None:
            return
        if not await self._had_begun(task.id, generation):
            return
        undo, key = service.compensate, f"{task.id}.{generation}"
        compensation = Task(
            id=new_id(),
            type=undo,
            queue=undo,
            profile="console",
            payload=encode(
                {
                    "task_id": task.id,
                    "task_type": task.type,
                    "payload": msgspec.Raw(task.payload.encode()),
                }
            ),
            created_at=self._dispatcher.clock.now(),
            priority=task.priority,
            owner=task.owner,
            key=f"{SCOPE}:{key}",
        )
        declared = await self._catalog.of(undo, undo)
        # The same cancel read twice, by two servers or after a crash, is one compensation.
        await self._dispatcher.submit(as_declared(compensation, declared), key=Key(SCOPE, key, ""))

    async def _had_begun(self, task: TaskId, generation: int) -> bool:
        """Whether any worker had it: what no one began needs no undoing."""
        async for event in history(self._store, task):
            if event.generation != generation:
                continue
            if event.type == "task.delivered":
                return True
            # Claimed for a stream, it waits there; the worker that takes it is delivered it.
            if event.type == "task.claimed" and _decode(event.data or "{}").worker not in FEEDS:
                return True
        return False
