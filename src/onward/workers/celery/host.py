"""What runs ledger tasks in a Celery process: a LedgerWorker on an event loop of its own.

Knows nothing of Celery. It claims only while a wake-up is being handled, one task at a time for
each, so Celery's own pool bounds how many tasks run in a process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import structlog

from onward.client.service import Service
from onward.core.task import State
from onward.settings import Settings
from onward.workers.ledger.worker import LedgerWorker, Membership
from onward.workers.runner import Runner

T = TypeVar("T")

log = structlog.get_logger("onward.celery")

TRANSPORT = "celery"
CLAIM_S = 2.0  # for one wake-up; after that the next message may be for another queue
THREADS = 64  # for plain functions; a process of the thread pool runs many
CALLS_S = 2.0  # for calls that are under way when the process ends
CLOSING_S = 5  # beyond the grace period, for the loop to end
LOOK_S = (0.001, 0.02)  # between two looks at a run: at first, and at last


class CeleryHost:
    def __init__(
        self,
        settings: Settings,
        url: str,
        membership: Membership,
        services: Mapping[str, Service],
    ) -> None:
        self._services = services
        self._name = membership.name
        self._worker = LedgerWorker(settings, url, membership, services, threads=THREADS)
        self._dispatcher = self._worker.dispatcher
        self._runs: dict[int, Runner] = {}
        self._closing = asyncio.Event()
        self._weighing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Returns at once; signs on in the background, as soon as the ledger answers."""
        self._worker.open()
        # While all processes run tasks there may be none left to take the sweep's message.
        self._worker.background.every(1, self._sweep_while_busy)
        self._worker.background.run(self._join())

    async def close(self, grace_ms: int) -> None:
        """What does not finish in time goes back, and its attempt does not count."""
        self._closing.set()
        await asyncio.gather(*(run.drain(grace_ms) for run in list(self._runs.values())))
        await self._let_calls_end()
        await self._worker.close()

    async def work(self, queue: str, pass_on: Callable[[], None]) -> None:
        """Claims and runs what waits in the queue. If more waits, first wakes another process."""
        if self._closing.is_set():
            return
        if queue not in self._services:
            log.warning("woken for a queue that is not served here", queue=queue)
            return
        await self._worker.backend.maintain()  # before the first claim: our clock is the ledger's
        await self._weigh()
        if self._closing.is_set():  # meanwhile: `close` drains only the runs that had begun
            return
        number = next(n for n in range(len(self._runs) + 1) if n not in self._runs)
        run = self._runs[number] = Runner(
            self._dispatcher,
            self._worker.executor,
            worker=f"{self._name}.{number}" if number else self._name,
            queues=(queue,),
            slots=1,
        )
        try:
            run.start()
            await _until(run, lambda: run.taken > 0)
            if run.taken == 0:
                return
            if (await self._waiting()).get(queue):
                await asyncio.to_thread(pass_on)
            loop = asyncio.get_running_loop()
            end = loop.time() + CLAIM_S
            await _until(run, lambda: loop.time() >= end)
            run.stop_claiming()
            await _until(run, lambda: False)
        finally:
            del self._runs[number]
            await run.drain(0)
        await self._dispatcher.pressure.weigh()  # what this run has seen of the service, for others

    async def sweep(self) -> Mapping[str, int]:
        """Moves all that is due. Returns how many tasks wait, by queue that Celery serves."""
        await self._worker.backend.maintain()
        await self._worker.alarm.sweep()
        members = self._worker.roster.members()
        served = {q for member in members if member.transport == TRANSPORT for q in member.queues}
        return {queue: n for queue, n in (await self._waiting()).items() if queue in served}

    async def _sweep_while_busy(self) -> None:
        # Only then: weighing may take the probe of a failing service, which needs a process that
        # claims.
        if self._runs:
            await self._worker.alarm.sweep()
            await self._dispatcher.pressure.weigh()

    async def _weigh(self) -> None:
        """Wake-ups that come together share one reading, and its error."""
        if self._weighing is None or self._weighing.done():
            self._weighing = asyncio.create_task(self._worker.weigh())
        await asyncio.shield(self._weighing)

    async def _waiting(self) -> Mapping[str, int]:
        waiting: dict[str, int] = {}
        for (queue, _, state), count in (await self._worker.backend.tasks.counts()).items():
            if state is State.QUEUED:
                waiting[queue] = waiting.get(queue, 0) + count
        return waiting

    async def _let_calls_end(self) -> None:
        """Besides the background tasks, only calls of Celery's threads run on this loop."""
        calls = asyncio.all_tasks() - {asyncio.current_task(), *self._worker.background.tasks}
        if calls:
            _, late = await asyncio.wait(calls, timeout=CALLS_S)
            for call in late:
                call.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _join(self) -> None:
        await self._worker.sign_on()
        await self._worker.roster.run()


async def _until(run: Runner, enough: Callable[[], bool]) -> None:
    """Until that holds, or the slot is free and its claim has found nothing."""
    pause, longest = LOOK_S
    while not enough():
        await asyncio.sleep(pause)
        if _is_idle(run):
            await asyncio.sleep(0)  # a slot that became free just now is claimed for in a moment
            if _is_idle(run):
                return
        pause = min(pause * 1.3, longest)


def _is_idle(run: Runner) -> bool:
    return not run.busy and run.worker_slots.free > 0


class HostThread:
    """A CeleryHost in a thread, for Celery's blocking tasks. One for each process that runs tasks,
    made after the fork: processes share no connection and no loop.
    """

    def __init__(self, make: Callable[[], CeleryHost]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="onward-celery", daemon=True
        )
        self._thread.start()

        async def open_() -> CeleryHost:
            host = make()
            await host.open()
            return host

        self._host = self._submit(open_()).result()

    def work(self, queue: str, pass_on: Callable[[], None]) -> None:
        self._submit(self._host.work(queue, pass_on)).result()

    def sweep(self) -> Mapping[str, int]:
        return self._submit(self._host.sweep()).result()

    def close(self, grace_ms: int) -> None:
        if not self._thread.is_alive():
            return
        try:
            self._submit(self._host.close(grace_ms)).result(grace_ms / 1000 + CLOSING_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(1)
            if not self._thread.is_alive():
                self._loop.close()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)
