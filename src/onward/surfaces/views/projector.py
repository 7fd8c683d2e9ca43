"""The event log → what the seeds' readers look up in Redis (R-4, S2-5, S3-14).

Events say only which tasks to look at: each is read and written as it is now. Decides what stands
where and for how long; never changes a task. Off the hot path: while the log comes in full batches
it takes a bounded share of this process's time and catches up afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, process_time
from typing import TYPE_CHECKING

import structlog

from onward.core.dispatch import Dispatcher
from onward.core.duty import Duty
from onward.core.errors import LedgerUnavailable
from onward.core.machine import TRANSITIONS
from onward.core.tail import Tail
from onward.core.task import FINAL, Event, Json, State, Task, TaskId
from onward.surfaces.agents import view as agents
from onward.surfaces.tasks import view as tasks
from onward.surfaces.tasks.shapes import Details, totals
from onward.surfaces.views.writer import Item, ViewWriter
from onward.surfaces.vocabulary import Phase, phase

if TYPE_CHECKING:
    from onward.surfaces.views.adoption import Adoption

log = structlog.get_logger("onward.views")

MOVES = frozenset({"task.created"}).union(*TRANSITIONS.values())
BATCH = 500  # events
PACE_S = 0.1  # most tasks are over by then: one look for all of their events
SECOND_S = 1.0
TOGETHER = 64  # tasks read at a time
MOST_BYTES = 4 << 20  # of tasks read at a time, as far as the ones before let us expect
BUSY, IDLE = 0.05, 0.2  # the share of time that full batches may take
BUSY_CPU = 0.5  # of a core, used by the rest of this process: it is busy
LONGEST_REST_S = 2.0  # shorter than half a duty's lease, or another server would take over

AtRest = Callable[[TaskId, str, Json], str]  # task, field, text: as it may lie around
Opening = Callable[[], Sequence[str]]


class SeedViews:
    name = "seed-views"

    def __init__(
        self,
        dispatcher: Dispatcher,
        writer: ViewWriter,
        *,
        whole: bool,  # every task, and the queues; otherwise what agents look for
        adoption: Adoption | None = None,
        at_rest: AtRest | None = None,  # None: what is kept may be read by whoever reads Redis
        duty: Duty | None = None,
    ) -> None:
        self._store = dispatcher.backend.tasks
        self._clock = dispatcher.clock
        self._details = Details(dispatcher)
        self._writer = writer
        self._whole = whole
        self._adoption = adoption
        self._at_rest = at_rest
        self._tail = Tail(
            dispatcher.backend, self, dispatcher.clock,
            batch=BATCH, pace_s=PACE_S, duty=duty, turn=self._turn,
        )  # fmt: skip
        self._together = TOGETHER
        self._next_second = 0.0
        self._seen: Mapping[TaskId, str] = {}

    async def run(self) -> None:
        await self._tail.run(self._look)

    async def forget(self, ids: Sequence[TaskId]) -> None:
        """They are erased; the log does not say so. From any server."""
        await self._writer.look_at(ids)

    async def project(self, events: Sequence[Event]) -> None:
        began = monotonic()
        ids = dict.fromkeys(event.task for event in events if event.type in MOVES)
        await self._show(list(ids), again=True)
        await self._every_second()
        if len(events) >= BATCH:
            await _rest(monotonic() - began)

    async def _look(self) -> bool:
        ours = await self._tail.catch_up()
        if ours:
            await self._every_second()
        return ours

    async def _turn(self, ours: bool) -> None:
        self._writer.step_down()

    # Once a second: the numbers, what others have written, and what the log does not tell.

    async def _every_second(self) -> None:
        if monotonic() < self._next_second:
            return
        self._next_second = monotonic() + SECOND_S
        counts: dict[str, Sequence[str]] = {}
        if self._whole:
            queues, states = totals(await self._store.counts())
            counts = {tasks.DEPTHS: tasks.flat(queues), tasks.BY_STATE: tasks.flat(states)}
        lists = [] if self._adoption is None else await self._adoption.lists()
        noticed = await self._writer.notice(lists, counts, self._seen)
        await self._show(list(noticed.look), again=False)
        self._seen = noticed.look
        if self._adoption is not None and noticed.foreign:
            await self._adoption.adopt(noticed.foreign)

    # Tasks.

    async def _show(self, ids: Sequence[TaskId], *, again: bool) -> None:
        at = 0
        while at < len(ids):
            part = ids[at : at + self._together]
            at += len(part)
            items: list[Item] = []
            size = 1
            for id, task in (await self._read(part)).items():
                if task is not None:
                    size += len(task.payload) + len(task.result or "")
                item = await self._item_of(id, task, again=again)
                if item is not None:
                    items.append(item)
            self._together = max(1, min(TOGETHER, MOST_BYTES * len(part) // size))
            await self._writer.write(items)

    async def _read(self, ids: Sequence[TaskId]) -> Mapping[TaskId, Task | None]:
        try:
            return dict(zip(ids, await self._store.get(ids), strict=True))
        except LedgerUnavailable:
            raise
        except Exception as error:
            if len(ids) == 1:  # it must not stop the view of the others
                log.error("a task has no view", task=ids[0], error=repr(error))
                return {}
        found: dict[TaskId, Task | None] = {}
        for id in ids:
            found |= await self._read([id])
        return found

    async def _item_of(self, id: TaskId, task: Task | None, *, again: bool) -> Item | None:
        try:
            return await self._item(id, task, again=again)
        except LedgerUnavailable:
            raise
        except Exception as error:
            log.error("a task has no view", task=id, error=repr(error))
            return None

    async def _item(self, id: TaskId, task: Task | None, *, again: bool) -> Item | None:
        if task is None:
            return Item(id=id)
        of_agents = agents.shown(task)
        if not self._whole and not of_agents:
            return None
        now = self._clock.now()
        place, since, letter = "", 0, None
        if self._whole:
            place, since = tasks.place_of(task)
        fields: Mapping[str, str] = {}
        if not of_agents or task.state is State.DEAD:
            plain = tasks.fields_of(task, await self._details.one(task))
            fields = self._sealed(task, plain, tasks.PRIVATE)
            letter = tasks.flat(fields) if place == tasks.DEAD else None
        life_ms = tasks.life_ms(task, now)
        result = None
        if of_agents:
            fields = self._sealed(task, agents.fields_of(task, now), agents.PRIVATE)
            life_ms = agents.life_ms(task, now)
            if task.state is State.SUCCEEDED:
                result = agents.cached(fields["result"], sealed=self._at_rest is not None, now=now)
        over = life_ms is not None and life_ms <= 0
        return Item(
            id=id,
            fields=None if over else tasks.flat(fields),
            life_ms=life_ms or 0,
            place=place,
            since=since,
            score=tasks.due_s(task) if place == tasks.SCHEDULED else 0.0,
            front=phase(task) is Phase.REQUEUED,
            letter=letter or (),
            result=result,
            session=task.session if of_agents else None,
            # An agent that keeps a record of its own under the same name may write it after us.
            again=again and of_agents and task.state in FINAL,
        )

    def _sealed(
        self, task: Task, fields: Mapping[str, str], private: Sequence[str]
    ) -> Mapping[str, str]:
        seal = self._at_rest
        if seal is None:
            return fields
        return {
            name: seal(task.id, name, text) if name in private and text else text
            for name, text in fields.items()
        }


async def _rest(spent_s: float) -> None:
    """After a full batch there is more: as long as this process is busy it gets a small share."""
    idle_s = min(spent_s / IDLE - spent_s, LONGEST_REST_S)
    busy_s = min(spent_s / BUSY - spent_s, LONGEST_REST_S)
    cpu, began = process_time(), monotonic()
    await asyncio.sleep(idle_s)
    if process_time() - cpu > BUSY_CPU * (monotonic() - began):
        await asyncio.sleep(max(0.0, busy_s - idle_s))
