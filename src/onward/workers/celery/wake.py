"""Wake-ups from a server: when the bell rings for a queue that Celery workers serve, it sends one.

Of several servers, the one on duty sends. Sending blocks, so a thread does it; rings meanwhile
become one message more. A failure is logged once and costs latency only: beat's sweep finds what
waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial

import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.duty import Duty
from onward.settings import Settings
from onward.workers.roster import Roster

log = structlog.get_logger("onward.celery")

Send = Callable[[str], None]

AGAIN_S = 1.0
BROKER_TIMEOUT_S = 3


class WakeUps:
    def __init__(self, backend: Backend, roster: Roster, clock: Clock, send: Send) -> None:
        self._bell = backend.bell
        self._roster = roster
        self._duty = Duty(backend.documents, clock, "celery:wake", roster.server)
        self._send = send
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onward-wake")
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._failing = False

    def start(self) -> None:
        self._roster.watch(self._look)
        self._look()

    async def close(self) -> None:
        listening = list(self._listening.values())
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)
        with suppress(Exception):
            await self._duty.give_up()

    def _look(self) -> None:
        """Listens for the queues of Celery workers: without one, Celery is not even imported."""
        members = self._roster.members()
        served = {q for member in members if member.transport == "celery" for q in member.queues}
        for queue in served - self._listening.keys():
            listening = asyncio.get_running_loop().create_task(self._listen(queue))
            self._listening[queue] = listening
        for queue in self._listening.keys() - served:
            self._listening.pop(queue).cancel()

    async def _listen(self, queue: str) -> None:
        loop = asyncio.get_running_loop()
        async with self._bell.listen(f"queue:{queue}") as listener:
            while True:
                await listener.wait()
                try:
                    if await self._duty.mine():
                        await loop.run_in_executor(self._thread, self._send, queue)
                        self._failing = False
                        continue
                except Exception as error:
                    if not self._failing:
                        log.warning("celery workers not woken", error=repr(error))
                    self._failing = True
                await asyncio.sleep(AGAIN_S)


def sender(settings: Settings) -> Send:
    """Connects at the first wake-up: a server without Celery workers need not have Celery."""

    @cache
    def connected() -> Send:
        from onward.workers.celery.wiring import celery_app, wake

        app = celery_app(
            settings, socket_timeout=BROKER_TIMEOUT_S, socket_connect_timeout=BROKER_TIMEOUT_S
        )
        return partial(wake, app)

    return lambda queue: connected()(queue)
