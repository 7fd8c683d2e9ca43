"""Who works in a Celery process: a ledger, the services, and one shift at a time.

Lives on one event loop and knows nothing of Celery. It claims only when it is told that there is
work, and never more than it runs; leases, retries and endings are the Dispatcher's, as everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from onward.core.dispatch import Dispatcher
from onward.core.errors import OnwardError
from onward.core.outcome import Outcome
from onward.core.task import Claimed, State
from onward.services.function import Service
from onward.settings import Settings
from onward.workers.ledger.worker import Outpost, Seating
from onward.workers.local.executor import LocalExecutor
from onward.workers.runner import Runner

log = structlog.get_logger("onward.celery")

TRANSPORT = "celery"
SHIFT_S = 2.0  # then nothing more is claimed, so that the next message may be for another queue
THREADS = 64  # for plain functions; a process of the thread pool runs many
GOODBYE_S = 2.0
LOOK_S = (0.001, 0.02)  # how often a shift looks whether it is over: at first, and at last


class Shift:
    """One wake-up's worth of work: task after task of one queue, until there is none."""

    def __init__(self, dispatcher: Dispatcher, executor: LocalExecutor, **seat: Any) -> None:
        self._executor = executor
        self._runner = Runner(dispatcher, self, slots=1, **seat)
        self._begun = False
        self._leaving: asyncio.Task[None] | None = None

    async def execute(self, task: Claimed) -> Outcome:
        self._begun = True
        return await self._executor.execute(task)

    def cancel(self, task: Claimed) -> None:
        self._executor.cancel(task)

    async def begin(self) -> bool:
        """Whether there was anything to do."""
        self._runner.start()
        await self._look(lambda: self._begun)
        return self._begun

    async def finish(self) -> None:
        """Go on until the queue is empty or the time is over; the last task takes what it takes."""
        loop = asyncio.get_running_loop()
        end = loop.time() + SHIFT_S
        await self._look(lambda: loop.time() >= end)
        self._runner.stop_claiming()
        await self._look(lambda: not self._runner.busy)

    async def leave(self, grace_ms: int) -> None:
        """Whoever says so first says how long it may take."""
        if self._leaving is None:
            drain = self._runner.drain(grace_ms)
            self._leaving = asyncio.get_running_loop().create_task(drain)
        await asyncio.shield(self._leaving)

    async def _look(self, enough: Callable[[], bool]) -> None:
        """Until that holds, or there is nothing to do, or we are told to leave."""
        pause, longest = LOOK_S
        while self._leaving is None and not enough():
            await asyncio.sleep(pause)
            if self._idle():
                await asyncio.sleep(0)  # a slot that became free just now is offered in a moment
                if self._idle():
                    return
            pause = min(pause * 1.3, longest)

    def _idle(self) -> bool:
        """The slot is free, so it has been offered, and nobody had anything for it."""
        return not self._runner.busy and self._runner.worker_slots.free > 0


class Crew:
    def __init__(
        self,
        settings: Settings,
        url: str,
        services: Mapping[str, Service],
        seating: Seating,
    ) -> None:
        self._settings = settings
        self._services = services
        self._name = seating.name
        self._post = Outpost(settings, url, seating, services, threads=THREADS)
        self._backend = self._post.backend
        self._dispatcher = self._post.dispatcher
        self._shifts: dict[int, Shift] = {}
        self._closing = asyncio.Event()

    async def open(self) -> None:
        """Returns at once; a ledger that is away is waited for in the background."""
        self._post.open()
        self._post.background.run(self._join())

    async def close(self, grace_ms: int) -> None:
        """What does not finish in time goes back unburned."""
        self._closing.set()
        await asyncio.gather(*(shift.leave(grace_ms) for shift in list(self._shifts.values())))
        await self._let_calls_end()
        await self._post.close()

    async def begin(self, queue: str) -> tuple[int, int] | None:
        """Start a shift; its number, and how many tasks wait besides. None: there is no work."""
        if self._closing.is_set():
            return None
        if queue not in self._services:
            log.warning("woken for a queue that is not served here", queue=queue)
            return None
        await self._backend.maintain()  # before the first claim our clock must be the ledger's
        await self._weigh()
        if self._closing.is_set():  # meanwhile: whoever sits down now is drained by nobody
            return None
        number = next(n for n in range(len(self._shifts) + 1) if n not in self._shifts)
        shift = self._shifts[number] = Shift(
            self._dispatcher,
            self._post.executor,
            worker=f"{self._name}.{number}" if number else self._name,
            queues=(queue,),
            lease_ms=self._settings.lease_ms,
        )
        try:
            if await shift.begin():
                return number, (await self._waiting()).get(queue, 0)
        except BaseException:
            await self._end(number)
            raise
        await self._end(number)
        return None

    async def finish(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        # While it is busy here there may be nobody left to take the sweep's message.
        meanwhile = [
            loop.create_task(self._post.alarm.run()),
            loop.create_task(self._keep_weighing()),
        ]
        try:
            await self._shifts[number].finish()
        finally:
            for task in meanwhile:
                task.cancel()
            await self._end(number)
        await self._weigh()  # what this shift has found out about the service, the others hear now

    async def sweep(self) -> Mapping[str, int]:
        """All that is due. Returns how many tasks wait, by queue, of those served by Celery."""
        await self._backend.maintain()
        await self._post.alarm.sweep()
        members = [
            member for member in self._post.roster.members() if member.transport == TRANSPORT
        ]
        served = {queue for member in members for queue in member.queues}
        return {queue: n for queue, n in (await self._waiting()).items() if queue in served}

    async def _weigh(self) -> None:
        """Who is asleep does not: so the probe of a failing service goes to somebody awake."""
        await self._dispatcher.pressure.weigh()

    async def _keep_weighing(self) -> None:
        while True:
            await asyncio.sleep(1)
            try:
                await self._weigh()
            except OnwardError as error:
                log.warning("not weighed", error=str(error))

    async def _waiting(self) -> Mapping[str, int]:
        waiting: dict[str, int] = {}
        for (queue, _, state), count in (await self._backend.tasks.counts()).items():
            if state is State.QUEUED:
                waiting[queue] = waiting.get(queue, 0) + count
        return waiting

    async def _let_calls_end(self) -> None:
        """The loop is ours alone: what runs on it besides is a call that somebody waits for."""
        calls = asyncio.all_tasks() - {asyncio.current_task(), *self._post.background.tasks}
        if calls:
            _, late = await asyncio.wait(calls, timeout=GOODBYE_S)
            for call in late:
                call.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _end(self, number: int) -> None:
        shift = self._shifts.pop(number)
        await shift.leave(0)

    async def _join(self) -> None:
        await self._post.sign_on()
        await self._post.roster.run()
