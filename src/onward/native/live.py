"""What an open page needs to stay true: a snapshot, then what changed.

At most one event a second, and only when something changed. Made once for all listeners; without
any, nothing is read or made. A listener that falls behind is dropped: it connects again and gets a
snapshot.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Literal

import msgspec
import structlog

from onward import __version__
from onward.core.dispatch import Dispatcher
from onward.core.task import FINAL, Lane, State, TaskId
from onward.native.caller import Caller, Scope, needs
from onward.native.history import STEP_MS, History
from onward.native.operation_work import QUEUE as OPERATIONS
from onward.native.places import Feed, Places
from onward.wire.live import (
    Change,
    Environment,
    LaneDepths,
    LiveState,
    Point,
    ServerEvent,
    Snapshot,
)
from onward.wire.queues import BreakerView
from onward.workers.roster import Roster

log = structlog.get_logger("onward.live")

PACE_S = 1.0
ALIVE_S = 10.0
ALIVE = ServerEvent(event="alive", data={})  # a page gives up a connection silent for longer
MOST_LISTENERS = 200
BEHIND = 8  # events that a listener may leave unread
CHANGED = 400  # tasks named in one event; beyond that none is named
QUEUES = 100  # shown by name, the fullest ones
APPROVALS = 1_000  # counted up to this many


class Live:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        history: History,
        ready: Callable[[], bool],
        environment: Environment | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._ready = ready
        self._environment = environment
        self._roster = roster
        self._history = history
        self._places = Places(MOST_LISTENERS, f"{MOST_LISTENERS} pages are connected already")
        self._listeners: set[asyncio.Queue[ServerEvent | None]] = set()
        self._pump: asyncio.Task[None] | None = None
        self._number = 0
        self._cursor = ""
        self._sent: LiveState | None = None
        self._sent_point: Point | None = None
        self._approvals: int | None = None  # None: to be counted anew

    @needs(Scope.READ, Scope.REVEAL)
    async def listen(self, caller: Caller) -> Feed:
        return Feed(self._events(), self._places.take())

    async def _events(self) -> AsyncGenerator[ServerEvent, None]:
        news: asyncio.Queue[ServerEvent | None] = asyncio.Queue(BEHIND)
        # Listening before the snapshot is taken: what happens in between is sent twice, not never.
        self._listeners.add(news)
        self._start()
        try:
            yield self._event("snapshot", await self._snapshot())
            while True:
                try:
                    async with asyncio.timeout(ALIVE_S):
                        event = await news.get()
                except TimeoutError:
                    event = ALIVE
                if event is None:
                    return
                yield event
        finally:
            self._listeners.discard(news)
            if not self._listeners and self._pump is not None:
                self._pump.cancel()
                self._pump = None

    def _start(self) -> None:
        if self._pump is None:
            self._cursor, self._sent = "$", None
            self._pump = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except Exception as error:  # the ledger is away: the next second tries again
                log.warning("the pages were sent nothing", error=repr(error))
            await asyncio.sleep(PACE_S)

    async def _look(self) -> None:
        """Send all who listen what is new, if anything is."""
        if not self._ready():  # the server stops, and would wait for streams that never end
            for news in list(self._listeners):
                self._drop(news)
            return
        changed = await self._changed()
        if changed != ():
            self._approvals = None
        state = await self._state()
        point = self._history.last
        # A point like the one before is not sent: a chart carries the last one on.
        fresh = point is not None and not _alike(point, self._sent_point)
        if state == self._sent and changed == () and not fresh:
            return
        self._sent, self._sent_point = state, point
        event = self._event(
            "change",
            Change(
                **msgspec.structs.asdict(state),
                at=self._dispatcher.clock.now(),
                changed=changed,
                point=point if fresh else None,
            ),
        )
        for news in list(self._listeners):
            if news.full():
                self._drop(news)
            else:
                news.put_nowait(event)

    def _drop(self, news: asyncio.Queue[ServerEvent | None]) -> None:
        self._listeners.discard(news)
        if news.full():
            news.get_nowait()
        news.put_nowait(None)

    async def _changed(self) -> tuple[TaskId, ...] | None:
        """The tasks that something happened to since the last look; None: too many to name."""
        store = self._dispatcher.backend.tasks
        page = await store.events(after=self._cursor, limit=CHANGED)
        self._cursor = page.next or self._cursor
        if not page.more:
            return tuple(dict.fromkeys(event.task for event in page.items))
        self._cursor = (await store.events(after="$", limit=1)).next or self._cursor
        return None

    async def _snapshot(self) -> Snapshot:
        self._approvals = None
        return Snapshot(
            **msgspec.structs.asdict(await self._state()),
            at=self._dispatcher.clock.now(),
            environment=self._environment,
            changed=None,
            step_ms=STEP_MS,
            history=self._history.columns(),
        )

    async def _state(self) -> LiveState:
        counts = await self._dispatcher.backend.tasks.counts()
        states: Counter[str] = Counter()
        lanes: Counter[Lane] = Counter()
        queues: dict[str, Counter[str]] = defaultdict(Counter)
        for (queue, lane, state), count in counts.items():
            states[state] += count
            queues[queue][state] += count
            if state is State.QUEUED:
                lanes[lane] += count
        members = self._roster.members()
        pressure = self._dispatcher.pressure
        breakers = pressure.breakers.readings()
        return LiveState(
            server=self._roster.server,
            version=__version__,
            states=states,
            lanes=LaneDepths(primary=lanes[Lane.PRIMARY], retry=lanes[Lane.RETRY]),
            retry_share=pressure.retry_share.of(lanes[Lane.RETRY]),
            queues={queue: queues[queue] for queue in fullest(queues)},
            workers=Counter(member.transport for member in members),
            slots=sum(member.slots for member in members if not member.draining),
            draining=sum(member.draining for member in members),
            busy=self._dispatcher.slots.busy(),
            breakers=msgspec.convert(breakers, dict[str, BreakerView], from_attributes=True),
            paused=tuple(sorted(pressure.pauses.paused())),
            approvals=await self._open_approvals() if states[State.WAITING] else 0,
            operations=_under_way(queues.get(OPERATIONS, {})),
        )

    async def _open_approvals(self) -> int:
        if self._approvals is None:
            self._approvals = len(await self._dispatcher.backend.tasks.open_approvals(APPROVALS))
        return self._approvals

    def _event(self, kind: Literal["snapshot", "change"], body: Snapshot | Change) -> ServerEvent:
        self._number += 1
        return ServerEvent(
            id=str(self._number), event=kind, data=msgspec.Raw(msgspec.json.encode(body))
        )


def _alike(point: Point, other: Point | None) -> bool:
    return other is not None and msgspec.structs.replace(other, at=point.at) == point


def fullest(queues: Mapping[str, Mapping[str, int]]) -> Sequence[str]:
    return sorted(queues, key=lambda queue: (-_under_way(queues[queue]), queue))[:QUEUES]


def _under_way(counts: Mapping[str, int]) -> int:
    return sum(count for state, count in counts.items() if state not in FINAL)
