"""The event log → what the seeds' readers look up in Redis (R-4, S2-5, S3-14).

Events say only which tasks to look at: each is read and written as it is now. Decides what stands
where and for how long; never changes a task. Off the hot path: while the log comes in full batches
it takes a bounded share of this process's time and catches up afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from time import monotonic, process_time, thread_time
from typing import TYPE_CHECKING, Any

import structlog

from onward.core.dispatch import Dispatcher
from onward.core.duty import Duty
from onward.core.errors import is_away
from onward.core.machine import TRANSITIONS
from onward.core.phase import Phase, phase
from onward.core.tail import Tail
from onward.core.task import FINAL, Event, Json, State, Task, TaskId
from onward.core.troubles import Troubles
from onward.doors.agents import view as agents
from onward.doors.redis_views.writer import Item, ViewWriter
from onward.doors.tasks import view as tasks
from onward.doors.tasks.shapes import TaskDetails, totals

if TYPE_CHECKING:
    from onward.doors.redis_views.adoption import Adoption

log = structlog.get_logger("onward.views")

MOVES = frozenset({"task.created"}).union(*TRANSITIONS.values())
BATCH = 1_000  # events
REMEMBERED = 20_000  # tasks
PACE_S = 0.1  # most tasks are over by then: one look for all of their events
SECOND_S = 1.0
ROUNDS = 8  # pages of ids that are looked at in one go
TOGETHER = 32  # tasks read at a time
MOST_BYTES = 4 << 20  # of tasks read at a time, as far as the ones before let us expect
BUSY = 0.03  # of the time that this process gets: what full batches may take while it is busy
IDLE = 0.1  # of all time, while it is not
OTHERS = 2  # it is busy if the others used so many times as much meanwhile
LEAST_REST_S = 0.005
LONGEST_REST_S = 2.0  # in a batch; less than half a duty's lease, or another server would take over

AtRest = Callable[[TaskId, str, Json], str]  # task, field, text: as it may lie around


class SeedViews:
    name = "seed-views"

    def __init__(
        self,
        dispatcher: Dispatcher,
        writer: ViewWriter,
        *,
        whole: bool,  # every task, and the queues; otherwise what agents look for
        adoption: Adoption | None = None,
        at_rest: AtRest | None = None,  # None: what is kept may be read by all who read Redis
        duty: Duty | None = None,
    ) -> None:
        self._store = dispatcher.backend.tasks
        self._clock = dispatcher.clock
        self._details = TaskDetails(dispatcher)
        self._writer = writer
        self._whole = whole
        self._adoption = adoption
        self._at_rest = at_rest
        self._tail = Tail(
            dispatcher.backend, self, dispatcher.clock,
            batch=BATCH, pace_s=PACE_S, duty=duty, on_duty=self._turn,
        )  # fmt: skip
        self._together = TOGETHER
        self._shown: dict[TaskId, int] = {}  # how many of its events the view of a task covers
        self._next_second = 0.0
        self._seen: Mapping[TaskId, str] = {}

    async def run(self, troubles: Troubles) -> None:
        await self._tail.run(troubles, self._look)

    async def forget(self, ids: Sequence[TaskId]) -> None:
        """They are erased; the log does not say so. From any server."""
        try:
            await self._writer.look_at(ids)
        except Exception as error:  # erased they are; what expires by itself goes later
            log.warning("views of erased tasks stay for now", error=repr(error))

    async def project(self, events: Sequence[Event]) -> None:
        # Behind the log, a task is read as it became after this event: its next ones are no news.
        news = [event.task for event in events if event.type in MOVES and self._is_news(event)]
        ids = list(dict.fromkeys(news))
        if len(events) < BATCH:
            await self._show(ids, again=True)
            await self._every_second()
        else:
            await self._show_resting(ids)

    async def _show_resting(self, ids: Sequence[TaskId]) -> None:
        """A full batch: there is more behind it, and others want the processor.

        It rests after each few tasks: a whole batch in one go would take a burst of tens of
        milliseconds from a submission that has just begun.
        """
        left_s = LONGEST_REST_S
        for at in range(0, len(ids), TOGETHER):
            work = Metered(self._show(ids[at : at + TOGETHER], again=True))
            await work
            left_s -= await _rest(work.cpu_s, left_s)
            await self._every_second()

    def _is_news(self, event: Event) -> bool:
        return event.n > self._shown.get(event.task, 0)

    async def _look(self) -> bool:
        ours = await self._tail.catch_up()
        if ours:
            await self._every_second()
        return ours

    async def _turn(self, ours: bool) -> None:
        self._writer.step_down()
        self._shown.clear()

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
        for _ in range(ROUNDS):
            noticed = await self._writer.notice(lists, counts, self._seen)
            await self._show(list(noticed.look), again=False)
            self._seen = noticed.look
            more = noticed.more
            if self._adoption is not None and noticed.foreign:
                more |= await self._adoption.adopt(noticed.foreign)
            if not more:
                break

    # Tasks.

    async def _show(self, ids: Sequence[TaskId], *, again: bool) -> None:
        at = 0
        while at < len(ids):
            part = ids[at : at + self._together]
            at += len(part)
            items: list[Item] = []
            size = 1
            found = dict(zip(part, await self._store.look(part), strict=True))
            for id, task in found.items():
                if task is not None:
                    size += len(task.payload) + len(task.result or "")
                item = await self._item_of(id, task, again=again)
                if item is not None:
                    items.append(item)
            self._together = max(1, min(TOGETHER, MOST_BYTES * len(part) // size))
            await self._writer.write(items)
            self._shown |= {id: task.events for id, task in found.items() if task is not None}
        while len(self._shown) > REMEMBERED:
            del self._shown[next(iter(self._shown))]

    async def _item_of(self, id: TaskId, task: Task | None, *, again: bool) -> Item | None:
        try:
            return await self._item(id, task, again=again)
        except Exception as error:
            if is_away(error):
                raise
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


async def _rest(spent_s: float, longest_s: float) -> float:
    """As long as this process is busy, the views get a small share. Returns how long it rested.

    Measured in the processor's time: on a machine that is overloaded a busy process has little.
    """
    cpu, began = process_time(), monotonic()
    until = began + longest_s
    await asyncio.sleep(max(0.0, min(spent_s * (1 / IDLE - 1), longest_s)))
    while (others_s := process_time() - cpu) > OTHERS * spent_s and monotonic() < until:
        owed_s = spent_s * (1 / BUSY - 1) - others_s
        if owed_s <= 0:
            break
        # No sooner than one thread alone can have used it.
        await asyncio.sleep(min(max(owed_s, LEAST_REST_S), PACE_S))
    return monotonic() - began


class Metered:
    """An awaitable that adds up the processor's time of its own steps, without what runs between
    them."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work
        self.cpu_s = 0.0

    def __await__(self) -> Generator[Any, Any, None]:
        step: Callable[[], Any] = partial(self._work.send, None)
        while True:
            began = thread_time()
            try:
                waits_for = step()
            except StopIteration:
                return
            finally:
                self.cpu_s += thread_time() - began
            try:
                step = partial(self._work.send, (yield waits_for))
            except BaseException as error:
                step = partial(self._work.throw, error)
