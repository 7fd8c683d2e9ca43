"""A run's past, read from its log and its calls and gone over once more (docs/adr/0014)."""

from __future__ import annotations

import msgspec

from onward.core.contract import TaskStore
from onward.core.follow import history
from onward.core.task import Task, TaskId
from onward.doors.flows.rows import NODE_EVENTS, calls_of
from onward.flow.parts import Definition
from onward.flow.replay import Ends, Replay
from onward.flow.runs import answer_of, start_of
from onward.flow.step import Answer, Note

MANY = frozenset({"foreach", "parallel"})
CHUNK = 256


async def replayed(
    store: TaskStore, run: Task, definition: Definition
) -> tuple[Replay, list[Note]]:
    start = start_of(run.payload)
    notes = await _notes(store, run)
    replay = Replay(definition, start.shared, start.params, start.inside)
    replay.through(notes, await _ends(store, run, notes))
    return replay, notes


async def _notes(store: TaskStore, run: Task) -> list[Note]:
    return [
        Note(event.type, msgspec.json.decode(event.data))  # type: ignore[arg-type]
        async for event in history(store, run.id)
        if event.generation == run.generation and event.type in NODE_EVENTS and event.data
    ]


async def _ends(store: TaskStore, run: Task, notes: list[Note]) -> Ends:
    over = [note.data for note in notes if note.type == "node.finished"]
    ids = [told["child"] for told in over if told["status"] == "ok" and "child" in told]
    single: dict[TaskId, Answer] = {}
    for at in range(0, len(ids), CHUNK):
        part = ids[at : at + CHUNK]
        single |= zip(part, map(answer_of, await store.get(part)), strict=True)
    many: dict[int, dict[int, Answer]] = {}
    if any(told["kind"] in MANY for told in over):
        async for child, place in calls_of(store, run):
            many.setdefault(place.seq, {})[place.index] = answer_of(child)
    return Ends(single, many)
