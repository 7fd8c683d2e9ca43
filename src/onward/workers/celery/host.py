"""A crew on an event loop of its own, in a thread: what Celery's blocking tasks talk to.

One for each process that runs tasks, opened after the fork: no connection and no loop is shared.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from onward.workers.celery.crew import Crew

T = TypeVar("T")

CLOSING_S = 5  # beyond the grace, for the goodbyes


class Host:
    def __init__(self, hire: Callable[[], Crew]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="onward-crew", daemon=True
        )
        self._thread.start()

        async def open_() -> Crew:
            crew = hire()
            await crew.open()
            return crew

        self._crew = self._call(open_())

    def work(self, queue: str, pass_on: Callable[[], None]) -> None:
        """Do what waits in the queue; if there is more of it, somebody else is woken first."""
        begun = self._call(self._crew.begin(queue))
        if begun is not None:
            shift, waiting = begun
            if waiting:
                pass_on()
            self._call(self._crew.finish(shift))

    def sweep(self) -> Mapping[str, int]:
        return self._call(self._crew.sweep())

    def close(self, grace_ms: int) -> None:
        if not self._thread.is_alive():
            return
        try:
            self._soon(self._crew.close(grace_ms)).result(grace_ms / 1000 + CLOSING_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(1)
            if not self._thread.is_alive():
                self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._soon(work).result()

    def _soon(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)
