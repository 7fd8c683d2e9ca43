"""Workers that the server calls: tasks of their services are claimed here and sent by HTTP.

Workers with the same services make a pool, and a pool has one Runner with the slots of all of them:
no more is claimed than they take. Which of them is called is decided for each claimed task.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from typing import Any

from onward.core.contract import LeaseStatus
from onward.core.dispatch import Dispatcher
from onward.core.errors import LedgerUnavailable
from onward.core.outcome import Failed, Lost, Outcome, Released, Succeeded
from onward.core.task import Claimed, Note, TaskId, encode
from onward.faults import Fault, transient
from onward.workers.http.call import CANCEL_S, OutboundHttp, Unreached
from onward.workers.http.choice import EndpointChoice
from onward.workers.http.registry import HttpWorker, Registry
from onward.workers.roster import Roster
from onward.workers.runner import Runner

LATE_MS = 1_000  # the alarm ends an attempt that takes too long; after this, the call ends itself


class WorkerCall:
    """One task on its way to a worker."""

    def __init__(self, task: Claimed, execution: asyncio.Task[Any]) -> None:
        self.task = task
        self.execution = execution
        self.worker: HttpWorker | None = None  # that may be running it
        self.stopped = False


class HttpExecutor:
    """All calls of this server to workers: the Executor of what the pools claim."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        registry: Registry,
        *,
        timeout_ms: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._registry = registry
        self._timeout_ms = timeout_ms
        self._http = OutboundHttp()
        self._choice = EndpointChoice(registry.slots_of)
        self._pools: dict[tuple[str, ...], Runner] = {}
        self._retired: list[Runner] = []
        self._names = count(1)
        self._calls: dict[TaskId, WorkerCall] = {}
        self._canceling: set[asyncio.Task[None]] = set()
        self._draining = False

    def start(self) -> None:
        self._registry.watch(self.arrange)
        self.arrange()

    def arrange(self) -> None:
        """One pool for each set of services that live workers have, with all their slots."""
        if self._draining:
            return
        live = self._registry.all_live()
        wanted: Counter[tuple[str, ...]] = Counter()
        for worker in live:
            wanted[tuple(sorted(worker.services))] += self._registry.slots_of(worker)
        for services in self._pools.keys() - wanted.keys():
            pool = self._pools.pop(services)
            pool.stop_claiming()
            self._retired.append(pool)
        self._retired = [pool for pool in self._retired if pool.busy]
        for services, slots in wanted.items():
            if services in self._pools:
                self._pools[services].resize(slots)
            else:
                self._pools[services] = self._start_pool(services, slots)
        self._choice.keep({worker.id for worker in live})

    def _start_pool(self, services: tuple[str, ...], slots: int) -> Runner:
        pool = Runner(
            self._dispatcher,
            self,
            # A new name each time: claims under way are matched by it.
            worker=f"http-{self._roster.server[-12:]}-{next(self._names)}",
            queues=services,
            slots=slots,
        )
        pool.start()
        return pool

    async def drain(self, grace_ms: int) -> None:
        self._draining = True
        pools = [*self._pools.values(), *self._retired]
        await asyncio.gather(*[pool.drain(grace_ms) for pool in pools])
        if self._canceling:
            await asyncio.wait(self._canceling, timeout=CANCEL_S)

    async def close(self) -> None:
        await self._http.close()

    # One task.

    async def execute(self, task: Claimed) -> Outcome:
        execution = asyncio.current_task()
        assert execution is not None  # noqa: S101 executors run in a task of their own
        call = WorkerCall(task, execution)
        self._calls[task.id] = call
        try:
            async with asyncio.timeout(self._time_for(task) / 1000):
                outcome = await self._call(call)
        except TimeoutError:
            self._cancel_call(call)
            fault = Fault(kind="TIMEOUT", message="the worker did not answer in time")
            outcome = Failed(fault)
        except asyncio.CancelledError:
            self._cancel_call(call)
            if call.stopped and execution.uncancel() == 0:
                return Lost()  # canceled, or no longer ours: an outcome would change nothing
            raise  # we are shutting down: the runner hands the task back
        finally:
            if self._calls.get(task.id) is call:
                del self._calls[task.id]
        if isinstance(outcome, Succeeded) or (
            isinstance(outcome, Failed) and not transient(outcome.fault)
        ):
            self._choice.forget(task.id)
        return outcome

    def cancel(self, task: Claimed) -> None:
        call = self._calls.get(task.id)
        if call is not None and call.task.fence == task.fence and not call.stopped:
            call.stopped = True
            call.execution.cancel()

    async def _call(self, call: WorkerCall) -> Outcome:
        task = call.task
        tried: set[str] = set()
        missed: tuple[Note, ...] = ()
        while worker := self._choice.pick(task, self._registry.live(task.queue), tried):
            tried.add(worker.id)
            try:
                # In the log before the call: each worker that may have run it must be found there.
                sent = _note("task.sent", worker, task)
                status = await self._dispatcher.note(task, *missed, sent)
            except LedgerUnavailable:
                return Released()
            if status is not LeaseStatus.HELD:
                return Lost()
            try:
                return await self._post(call, worker)
            except Unreached:
                # The worker has not seen the task, so another may get it at once.
                self._choice.missed(worker)
                missed = (_note("task.unreached", worker, task),)
        if not tried:
            # All have gone since it was claimed. Without its pool it is not claimed again.
            self.arrange()
            return Released()
        one = "worker" if len(tried) == 1 else f"of {len(tried)} workers"
        message = f"no {one} for {task.queue!r} can be reached"
        return Failed(Fault(kind="ServiceUnavailable", message=message))

    async def _post(self, call: WorkerCall, worker: HttpWorker) -> Outcome:
        call.worker = worker
        self._choice.busy[worker.id] += 1
        try:
            return await self._http.execute(worker, call.task, self._dispatcher.clock.now())
        except Unreached:
            call.worker = None
            raise
        finally:
            self._choice.busy[worker.id] -= 1
            if not self._choice.busy[worker.id]:
                del self._choice.busy[worker.id]

    def _time_for(self, task: Claimed) -> int:
        if task.attempt_by is None:
            return self._timeout_ms
        left = task.attempt_by - self._dispatcher.clock.now() + LATE_MS
        return max(0, min(left, self._timeout_ms))

    def _cancel_call(self, call: WorkerCall) -> None:
        """The worker may stop: its answer is not wanted."""
        if call.worker is not None:
            canceling = asyncio.get_running_loop().create_task(
                self._http.cancel(call.worker, call.task.id, self._dispatcher.clock.now())
            )
            self._canceling.add(canceling)
            canceling.add_done_callback(self._canceling.discard)


def _note(event: str, worker: HttpWorker, task: Claimed) -> Note:
    return event, encode({"worker": worker.id, "url": worker.url, "attempt": task.attempt})
