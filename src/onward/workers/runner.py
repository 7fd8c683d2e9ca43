"""Executes what the Dispatcher claims for one executor's slots, and settles the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import structlog

from onward.core.contract import Executor, Verdict
from onward.core.dispatch import Dispatcher
from onward.core.errors import LedgerUnavailable, Unreadable
from onward.core.outcome import Failed, Outcome, Released
from onward.core.slots import NO_BOUNDS, WorkerSlots
from onward.core.task import Claimed, WorkerId
from onward.faults import Fault

log = structlog.get_logger("onward.runner")

LET_GO_S = 1.0  # a revoked task's slot is free when its handler ends, or after this
KEY_S = 5.0  # between two tries at a task whose key is missing


class Runner:
    def __init__(
        self,
        dispatcher: Dispatcher,
        executor: Executor,
        *,
        worker: WorkerId,
        queues: Iterable[str],
        slots: int,
        most: Mapping[str, int] = NO_BOUNDS,
        keeps: Callable[[Claimed], bool] = lambda _: False,
    ) -> None:
        """`most`: of its slots, how many a queue may take, where that is not all of them.

        `keeps`: whether this attempt, which is no longer ours, still occupies its slot."""
        self._dispatcher = dispatcher
        self._executor = executor
        self._slots = slots
        self._keeps = keeps
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.taken = 0  # tasks, since it was made
        self._settling: set[asyncio.Future[Verdict]] = set()
        self._let_go: set[tuple[str, int]] = set()
        self.worker_slots = WorkerSlots(
            worker,
            queues,
            lease_ms=dispatcher.lease_ms,
            deliver=self._deliver,
            stop=self._stop,
            most=most,
        )

    def start(self) -> None:
        self._dispatcher.slots.add(self.worker_slots, self._slots)

    def serve(self, queues: Iterable[str]) -> None:
        self._dispatcher.slots.rearrange(self.worker_slots, queues)

    def resize(self, slots: int) -> None:
        """So many slots from now on; what runs beyond that is finished."""
        if slots != self._slots:
            more, self._slots = slots - self._slots, slots
            self._dispatcher.slots.free(self.worker_slots, more)
            # With fewer slots none may be free, or less than none: then it must not be claimed for.
            self.serve(self.worker_slots.queues)

    def stop_claiming(self) -> None:
        self._dispatcher.slots.remove(self.worker_slots)

    def claim_again(self) -> None:
        self._dispatcher.slots.restore(self.worker_slots)

    async def drain(self, grace_ms: int) -> None:
        """Takes nothing more, finishes what runs, and hands back what does not finish in time."""
        self.stop_claiming()
        running = list(self._running.values())
        if running:
            await asyncio.wait(running, timeout=grace_ms / 1000)
        late = list(self._running.values())
        for task in late:
            task.cancel()
        if late:  # a handler that swallows the cancellation is left to its lease
            await asyncio.wait(late, timeout=LET_GO_S)
        await asyncio.gather(*self._settling, return_exceptions=True)

    @property
    def busy(self) -> int:
        return len(self._running)

    def _deliver(self, task: Claimed) -> None:
        key = (task.id, task.fence)
        self.taken += 1
        self._running[key] = asyncio.get_running_loop().create_task(self._run(task))

    async def _run(self, task: Claimed) -> None:
        key = (task.id, task.fence)
        outcome = await self._execute(task)
        del self._running[key]
        settled = self._dispatcher.settle_soon(task, outcome)
        self._free(key)  # in the same turn: the next claim is part of the settlement's transaction
        self._settling.add(settled)
        settled.add_done_callback(lambda done: self._settled(done, task, outcome))

    async def _execute(self, task: Claimed) -> Outcome:
        try:
            return await self._executor.execute(task)
        except asyncio.CancelledError:
            return Released()
        except Unreadable as error:
            # A part of it (such as a child's result) is sealed under a key that is missing: no
            # failure, and tried again, but not as fast as it can be claimed.
            log.error("a task waits for a key", task=task.id, error=str(error))
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(KEY_S)
            return Released()
        except Exception as error:
            log.exception("executor failed", task=task.id, type=task.type)
            fault = Fault(kind="ExecutorError", message=type(error).__name__)
            return Failed(fault)

    def _settled(self, done: asyncio.Future[Verdict], task: Claimed, outcome: Outcome) -> None:
        self._settling.discard(done)
        error = None if done.cancelled() else done.exception()
        if isinstance(error, LedgerUnavailable):
            # The ledger does not answer: the result is settled again while the lease may last.
            log.warning("settlement postponed", task=task.id, error=str(error))
            self._dispatcher.spawn(self._dispatcher.settle_surely(task, outcome))
        elif error is not None:
            log.error("settlement failed", task=task.id, error=repr(error))

    def _stop(self, task: Claimed, revoked: bool) -> None:
        self._executor.cancel(task)
        if revoked:
            loop = asyncio.get_running_loop()
            loop.call_later(LET_GO_S, self._give_up, task)

    def _give_up(self, task: Claimed) -> None:
        key = (task.id, task.fence)
        # A function that cannot be stopped has its thread until it returns: a task in its slot
        # would wait for that thread, away from every idle worker and with its own clock running.
        if key in self._running and key not in self._let_go and not self._keeps(task):
            self._let_go.add(key)
            self._dispatcher.slots.free(self.worker_slots)

    def _free(self, key: tuple[str, int]) -> None:
        if key in self._let_go:
            self._let_go.discard(key)
        else:
            self._dispatcher.slots.free(self.worker_slots)
