"""A whole Onward in this process: every door, a ledger in memory, a clock that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Self

import structlog

from onward.app import Application, build
from onward.client.http import Client
from onward.client.worker import Worker
from onward.core.clock import Clock, ManualClock
from onward.core.contract import Query
from onward.core.task import Instant, State, Task
from onward.flow.runs import QUEUE as RUNS
from onward.logs import speak_through_logging
from onward.server import server as make_server
from onward.settings import Settings
from onward.testing.fakes import Fake

REST_S = 30.0  # real time: that a test waits for running tasks before it moves the clock
LOOK_S = 0.005
# The clock moves by hours at once, between two heartbeats: no worker is lost by that.
SETTINGS: dict[str, Any] = {"ledger": "sqlite://", "port": 0, "lease_ms": 10**12, "drain_ms": 0}


@asynccontextmanager
async def serving(
    settings: Settings, *, clock: Clock | None = None
) -> AsyncIterator[tuple[Application, str]]:
    """A server on a free port of this machine, in this event loop, and its URL."""
    app = build(settings, clock=clock)
    server = make_server(app, settings, drain=app.drain)
    # Not `serve`: the signals of this process are the test runner's.
    running = asyncio.create_task(server._serve())  # noqa: SLF001
    await _until(lambda: server.started or running.done(), "the server did not start")
    try:
        if running.done():
            running.result()
        port = server.servers[0].sockets[0].getsockname()[1]
        yield app, f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running


class Sandbox:
    """Time stands still until `jump`; handlers run in real time."""

    client: Client
    url: str

    def __init__(self, **settings: Any) -> None:
        """With other settings than its own, as in `Sandbox(max_retries=0)`."""
        self._settings = Settings(**{**SETTINGS, **settings})
        self._clock = ManualClock(int(datetime.now(UTC).timestamp() * 1000))
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if not structlog.is_configured():
            # Its own tracebacks show the variables of each frame: payloads, and 50 ms for each.
            speak_through_logging()
        self._app, self.url = await self._stack.enter_async_context(
            serving(self._settings, clock=self._clock)
        )
        self.client = await self._stack.enter_async_context(Client(self.url))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def now(self) -> datetime:
        """The time of the clock that `jump` moves."""
        return datetime.fromtimestamp(self._clock.now() / 1000, UTC)

    async def serve(self, worker: Worker) -> None:
        """Let a worker do tasks until the test is over; returns when it is connected."""
        before = worker.url, worker.url_is_explicit
        worker.url, worker.url_is_explicit = self.url, True
        running = asyncio.create_task(worker.serve())

        async def stop() -> None:
            running.cancel()
            await asyncio.wait({running})
            worker.url, worker.url_is_explicit = before

        self._stack.push_async_callback(stop)
        await _until(lambda: worker.connected or running.done(), "the worker did not connect")
        if running.done():
            running.result()

    def fake(self, name: str, answer: Any = None) -> Fake:
        """A service of this name that does what the function does, or returns the value.

        `fake.calls` is what it was called with. Await it to be sure that tasks reach it.
        """
        fake = Fake(name, answer, self.serve)
        self._stack.push_async_callback(_end, fake.connected)
        return fake

    async def jump(
        self, by: timedelta | None = None, *, while_running: bool = False
    ) -> datetime | None:
        """Move the clock to what is due next, or by so much, and let that happen.

        Waits first until no task runs; with `while_running` only until each has begun, so that one
        that runs meets its timeout. Due are retries, delays, timers, schedules and the ends of
        approvals; None: nothing is. `while await onward.jump(): ...` goes through all of them.
        """
        try:
            await _until(self._all_begun if while_running else self._at_rest, "")
        except TimeoutError:
            raise TimeoutError(await self._unrest()) from None
        now = self._clock.now()
        next_at = await self._next_due() if by is None else now + round(by.total_seconds() * 1000)
        if next_at is None:
            return None
        self._clock.advance(max(0, next_at - now))
        engine = self._app.onward
        await engine.roster.beat()
        await engine.alarm.sweep()
        await engine.schedules.scheduler.turn()
        return self.now

    async def _next_due(self) -> Instant | None:
        parked = await self._find(State.SCHEDULED, State.WAITING)
        due = [task.due_at for task in parked if task.due_at is not None]
        timetable = self._app.onward.schedules.scheduler.timetable
        await timetable.refresh()
        if timetable.nearest is not None:
            due.append(timetable.nearest)
        return min(due, default=None)

    async def _at_rest(self) -> bool:
        # In one look: a task that ends between two may queue the next one.
        return await self._none_is_about_to_run(State.QUEUED, State.RUNNING)

    async def _all_begun(self) -> bool:
        return await self._none_is_about_to_run(State.QUEUED)

    async def _none_is_about_to_run(self, *states: State) -> bool:
        """In these states none runs, and none is queued that is about to be taken: by a worker, or,
        a run of a flow, by the server itself.
        """
        roster = self._app.onward.roster
        for task in await self._find(*states):
            if task.state is State.RUNNING or task.queue == RUNS or await roster.serves(task.queue):
                return False
        return True

    async def _unrest(self) -> str:
        running = ", ".join(f"{task.type} {task.id}" for task in await self._find(State.RUNNING))
        if not running:
            return "tasks are queued, and none of the workers that serve them takes them"
        return (
            f"{running} still runs after {REST_S:g} s; handlers run in real time, and "
            "`jump(..., while_running=True)` does not wait for them"
        )

    async def _find(self, *states: State) -> list[Task]:
        found: list[Task] = []
        cursor: str | None = None
        while True:
            query = Query(states=frozenset(states), after=cursor, limit=1000)
            page = await self._app.onward.backend.tasks.find(query)
            found += page.items
            cursor = page.next
            if cursor is None:
                return found


async def _until(look: Callable[[], Any], otherwise: str) -> None:
    until = monotonic() + REST_S
    while True:
        seen = look()
        if await seen if asyncio.iscoroutine(seen) else seen:
            return
        if monotonic() > until:
            raise TimeoutError(otherwise)
        await asyncio.sleep(LOOK_S)


async def _end(work: asyncio.Task[None]) -> None:
    """A fake that was not awaited may still be connecting when the test is over."""
    work.cancel()
    await asyncio.wait({work})
