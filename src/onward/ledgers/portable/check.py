"""What must hold in any ledger and backup, whatever was done to its servers.

Keeps a few numbers for each task: a ledger of millions fits into memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from onward.core.task import FINAL, FINAL_EVENTS, STATES, TaskId
from onward.ledgers.portable.copying import Progress
from onward.ledgers.portable.records import (
    AnyRecord,
    EffectRecord,
    EventRecord,
    KeyRecord,
    Portable,
    TaskRecord,
)

MOST = 20  # faults; with more than that it is known to be broken


@dataclass(slots=True)
class _Seen:
    state: str
    generation: int
    events: int
    met: int = 0  # events, so far
    ended: list[int] = field(default_factory=list)  # generations with a final event


class Check:
    def __init__(self) -> None:
        self.faults: list[str] = []
        self.tally: Counter[tuple[str, str]] = Counter()  # tasks by queue and state
        self.states: Counter[str] = Counter()
        self.events: Counter[str] = Counter()  # by type
        self._tasks: dict[TaskId, _Seen] = {}

    def state_of(self, id: TaskId) -> str | None:
        seen = self._tasks.get(id)
        return None if seen is None else seen.state

    def add(self, records: Sequence[AnyRecord]) -> None:
        looks: Mapping[type, Callable[[Any], None]] = {
            TaskRecord: self._task,
            EventRecord: self._event,
            KeyRecord: self._key,
            EffectRecord: self._effect,
        }
        for record in records:
            if type(record) in looks:
                looks[type(record)](record)

    def _task(self, task: TaskRecord) -> None:
        fields = task.fields
        state = str(fields.get("state", "queued"))
        if state not in STATES:
            self._fault(f"task {task.id}: unknown state {state}")
        if task.id in self._tasks:
            self._fault(f"task {task.id} is there twice")
        if state == "running" and "due_at" not in fields:
            self._fault(f"task {task.id} is running without an alarm")
        self.tally[str(fields["queue"]), state] += 1
        self.states[state] += 1
        self._tasks[task.id] = _Seen(
            state, int(fields.get("generation", 1)), int(fields.get("events", 0))
        )

    def _event(self, event: EventRecord) -> None:
        self.events[event.type] += 1
        seen = self._tasks.get(event.task)
        if seen is None:
            self._fault(f"event {event.n} of task {event.task}: no such task")
            return
        seen.met += 1
        if event.n != seen.met:
            self._fault(f"task {event.task}: event {event.n} comes as number {seen.met}")
        if event.type in FINAL_EVENTS:
            if event.generation in seen.ended:
                self._fault(f"task {event.task} ended twice in generation {event.generation}")
            seen.ended.append(event.generation)

    def _key(self, key: KeyRecord) -> None:
        if key.forget_at is None and key.task not in self._tasks:
            self._fault(f"the key {key.key} is of task {key.task}, which is not there")

    def _effect(self, effect: EffectRecord) -> None:
        if not effect.scope and effect.key not in self._tasks:
            self._fault(f"the effect {effect.name} is of task {effect.key}, which is not there")

    def end(self) -> None:
        """All records were added."""
        for id, seen in self._tasks.items():
            if seen.met != seen.events:
                self._fault(f"task {id} has {seen.events} events, and {seen.met} are there")
            if (STATES.get(seen.state) in FINAL) != (seen.generation in seen.ended):
                self._fault(f"task {id} is {seen.state}, and its last events say otherwise")

    def _fault(self, fault: str) -> None:
        if len(self.faults) < MOST:
            self.faults.append(fault)


async def check(ledger: Portable, progress: Progress, *, quiet: bool) -> Check:
    """`quiet`: no server is there. Only then are counts of the same instant as the records."""
    found = Check()
    async with aclosing(ledger.read()) as parts:
        async for records in parts:
            found.add(records)
            progress("checking", len(records))
    found.end()
    kept = await ledger.counts() if quiet else None
    if kept is not None:
        for queue, state in sorted({*kept, *found.tally}):
            held, counted = found.tally[queue, state], kept.get((queue, state), 0)
            if held != counted:
                found.faults.append(f"{held} of {queue} are {state}, and {counted} are counted")
    return found
