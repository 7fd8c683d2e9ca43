"""GET /api/v2/live: what an open page needs to stay true, as server-sent events.

A snapshot on connecting, then at most one message a second, and only when something changed. Made
once for all who listen; with nobody listening nothing is read or made. A listener who falls behind
is let go: it connects again and gets a snapshot.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec
import structlog
from fastapi import APIRouter
from starlette.responses import StreamingResponse

from onward import __version__
from onward.core.dispatch import Dispatcher
from onward.core.task import FINAL, Lane, State, TaskId
from onward.doors.streaming import EventStream, Places
from onward.native.history import STEP_MS, History, Point
from onward.workers.roster import Roster

log = structlog.get_logger("onward.live")

PACE_S = 1.0
ALIVE_S = 10.0
ALIVE = b"event: alive\ndata: {}\n\n"  # a page takes a line that is silent for longer for dead
MOST_LISTENERS = 200
BEHIND = 8  # messages that a listener may leave unread
CHANGED = 400  # tasks named in one message; beyond that it says "many"
QUEUES = 100  # the fullest ones are told of


def build(live: Live) -> APIRouter:
    router = APIRouter(prefix="/api/v2", tags=["operations"])
    places = Places(MOST_LISTENERS, f"{MOST_LISTENERS} pages are connected already")

    @router.get("/live", response_class=StreamingResponse)
    async def listen() -> StreamingResponse:
        return EventStream(live.listen(), places.take())

    return router


class Live:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        history: History,
        ready: Callable[[], bool],
    ) -> None:
        self._dispatcher = dispatcher
        self._ready = ready
        self._roster = roster
        self._history = history
        self._listeners: set[asyncio.Queue[bytes | None]] = set()
        self._pump: asyncio.Task[None] | None = None
        self._number = 0
        self._cursor = ""
        self._told: Mapping[str, Any] = {}
        self._told_point: Point | None = None

    async def listen(self) -> AsyncIterator[bytes]:
        news: asyncio.Queue[bytes | None] = asyncio.Queue(BEHIND)
        # Listening before the snapshot is taken: what happens in between is told twice, not never.
        self._listeners.add(news)
        self._start()
        try:
            yield b"retry: 1000\n\n"
            yield self._message("snapshot", await self._snapshot())
            while True:
                try:
                    async with asyncio.timeout(ALIVE_S):
                        message = await news.get()
                except TimeoutError:
                    message = ALIVE
                if message is None:
                    return
                yield message
        finally:
            self._listeners.discard(news)
            if not self._listeners and self._pump is not None:
                self._pump.cancel()
                self._pump = None

    def _start(self) -> None:
        if self._pump is None:
            self._cursor, self._told = "$", {}
            self._pump = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception as error:  # the ledger is away: the next second tries again
                log.warning("nothing to tell", error=repr(error))
            await asyncio.sleep(PACE_S)

    async def look(self) -> None:
        """Tell whoever listens what is new, if anything is."""
        if not self._ready():  # the server stops, and would wait for lines that never end
            for news in list(self._listeners):
                self._let_go(news)
            return
        changed = await self._changed()
        state = await self._state()
        point = self._history.last
        # A point like the one before is not told: whoever draws carries the last one on.
        fresh = point is not None and not point.looks_like(self._told_point)
        if state == self._told and changed == [] and not fresh:
            return
        self._told, self._told_point = state, point
        body = {**state, "at": self._dispatcher.clock.now(), "changed": changed}
        message = self._message("change", {**body, "point": point if fresh else None})
        for news in list(self._listeners):
            if news.full():
                self._let_go(news)
            else:
                news.put_nowait(message)

    def _let_go(self, news: asyncio.Queue[bytes | None]) -> None:
        self._listeners.discard(news)
        if news.full():
            news.get_nowait()
        news.put_nowait(None)

    async def _changed(self) -> Sequence[TaskId] | None:
        """The tasks that something happened to since the last look; None: too many to name."""
        store = self._dispatcher.backend.tasks
        page = await store.events(after=self._cursor, limit=CHANGED)
        self._cursor = page.next or self._cursor
        if not page.more:
            return list(dict.fromkeys(event.task for event in page.items))
        self._cursor = (await store.events(after="$", limit=1)).next or self._cursor
        return None

    async def _snapshot(self) -> Mapping[str, Any]:
        return {
            **await self._state(),
            "at": self._dispatcher.clock.now(),
            "changed": None,
            "step_ms": STEP_MS,
            "history": self._history.columns(),
        }

    async def _state(self) -> Mapping[str, Any]:
        counts = await self._dispatcher.backend.tasks.counts()
        states: Counter[State] = Counter()
        lanes: Counter[Lane] = Counter()
        queues: dict[str, Counter[State]] = defaultdict(Counter)
        for (queue, lane, state), count in counts.items():
            states[state] += count
            queues[queue][state] += count
            if state is State.QUEUED:
                lanes[lane] += count
        members = self._roster.members()
        pressure = self._dispatcher.pressure
        return {
            "server": self._roster.server,
            "version": __version__,
            "states": states,
            "lanes": {"primary": lanes[Lane.PRIMARY], "retry": lanes[Lane.RETRY]},
            "retry_share": pressure.retry_share.of(lanes[Lane.RETRY]),
            "queues": {queue: queues[queue] for queue in fullest(queues)},
            "workers": Counter(member.transport for member in members),
            "slots": sum(member.slots for member in members if not member.draining),
            "draining": sum(member.draining for member in members),
            "busy": self._dispatcher.slots.busy(),
            "breakers": dict(pressure.breakers.readings()),
            "paused": sorted(pressure.pauses.paused()),
        }

    def _message(self, kind: str, body: Mapping[str, Any]) -> bytes:
        self._number += 1
        data = msgspec.json.encode(body).decode()
        return f"id: {self._number}\nevent: {kind}\ndata: {data}\n\n".encode()


def fullest(queues: Mapping[str, Mapping[State, int]]) -> Sequence[str]:
    def live(queue: str) -> int:
        return sum(count for state, count in queues[queue].items() if state not in FINAL)

    return sorted(queues, key=lambda queue: (-live(queue), queue))[:QUEUES]
