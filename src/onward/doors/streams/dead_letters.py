"""The stream door's dead letters: each death in the ledger, once on `stream:dlq` (S1-7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from onward.core.contract import TaskStore
from onward.core.task import Event, Task, fault_of
from onward.workers.streams.dialects import DEAD_LETTER_S, dead_letter_key

STREAM = "stream:dlq"

# (stream, marker key, seconds the marker lives, fields): append unless the marker is there.
Tell = Callable[[str, str, int, Mapping[str, str]], Awaitable[None]]


class DeadLetterProjector:
    name = "stream-dead-letters"

    def __init__(self, store: TaskStore, tell: Tell) -> None:
        self._store = store
        self._tell = tell

    async def project(self, events: Sequence[Event]) -> None:
        deaths = [event for event in events if event.type == "task.dlq"]
        tasks = await self._store.look([event.task for event in deaths]) if deaths else ()
        for event, task in zip(deaths, tasks, strict=True):
            if task is None or task.generation != event.generation:
                continue  # replayed since: it is no dead letter any more
            marker = dead_letter_key(event.task, event.generation)
            await self._tell(STREAM, marker, DEAD_LETTER_S, _letter(task, event))


def _letter(task: Task, event: Event) -> Mapping[str, str]:
    fault = fault_of(task.error)
    return {
        "task_id": task.id,
        "tool_name": task.type,
        "payload": task.payload,
        "error": fault.message if fault is not None else "",
        "retry_count": str(task.failures),
        "failed_at": str(event.at),
        "origin": "onward",
    }
