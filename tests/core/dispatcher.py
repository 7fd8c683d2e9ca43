"""A Dispatcher with a worker to look at, and changes made behind its back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from onward.core.clock import ManualClock
from onward.core.contract import Backend
from onward.core.dispatch import Dispatcher
from onward.core.outcome import Failed
from onward.core.slots import WorkerSlots
from onward.core.task import Claimed, Task
from onward.faults import Fault
from onward.ledgers import open_backend
from tests.support import LEASE_MS, PROFILES, a_task, wait_until

BUSY = Failed(Fault(kind="ServiceUnavailable", message="later"))
BAD = Failed(Fault(kind="InvalidInput", message="never"))


class Observed(Dispatcher):
    """A Dispatcher with one worker, who keeps what is delivered."""

    def __init__(self, backend: Backend, clock: ManualClock) -> None:
        super().__init__(backend, PROFILES, clock)
        self.inbox: list[Claimed] = []
        self.stopped: list[tuple[str, bool]] = []

    def add_worker(self, slots: int = 1, *, queues: str = "q", worker: str = "w") -> WorkerSlots:
        worker_slots = WorkerSlots(
            worker,
            queues.split(),
            lease_ms=LEASE_MS,
            deliver=self.inbox.append,
            stop=lambda task, revoked: self.stopped.append((task.id, revoked)),
        )
        self.slots.add(worker_slots, slots)
        return worker_slots

    async def running(self, **fields: Any) -> Claimed:
        """A task held by a worker that takes this one and no more."""
        worker_slots = self.add_worker(worker=f"w{len(self.inbox)}")
        receipt = await self.submit(a_task(**fields))
        await wait_until(lambda: self.inbox and self.inbox[-1].id == receipt.task)
        self.slots.remove(worker_slots)
        return self.inbox[-1]

    async def idle(self) -> None:
        """Until the ledger has been asked for whatever might be waiting."""
        await wait_until(lambda: self._claiming is None)

    async def task(self, id: str) -> Task:
        (task,) = await self.backend.tasks.get([id])
        assert task is not None
        return task

    async def history(self, id: str) -> list[str]:
        page = await self.backend.tasks.events(after="", limit=100, task=id)
        return [event.type for event in page.items]


def before_applying(dispatcher: Observed, act: Callable[[], Any], *, times: int = 1) -> None:
    """Another server acts between this process's decision and the ledger's applying it."""
    store = dispatcher.backend.tasks
    apply, left = store.apply, times

    async def meddled(moves: Any, asks: Any = (), **named: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            store.apply = apply  # type: ignore[method-assign]
            await act()
            store.apply = meddled  # type: ignore[method-assign]
        return await apply(moves, asks, **named)

    store.apply = meddled  # type: ignore[method-assign]


@pytest.fixture
async def dispatcher(clock: ManualClock) -> AsyncIterator[Observed]:
    backend = open_backend("sqlite:///:memory:")
    yield Observed(backend, clock)
    await backend.close()
