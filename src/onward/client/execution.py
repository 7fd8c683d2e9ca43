"""A task while its handler runs, for every transport: started, stopped, answered or dropped.

A transport adds how the answer is sent, and how it learns that the task is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor as Threads
from typing import TypeAlias

from onward.client.failures import MEANT
from onward.client.service import Json, Service
from onward.client.task_context import LostTask, TaskContext
from onward.faults import Fault
from onward.tracing import handling

log = logging.getLogger("onward.worker")

Ended: TypeAlias = Json | Fault  # what the function returned, or why there is nothing
SendAnswer = Callable[[Ended], Awaitable[None]]


class Execution:
    def __init__(self, service: Service, context: TaskContext) -> None:
        self.service = service
        self.context = context
        context.state = service.state
        self.job: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        self.context.cancelled = True
        # A plain function runs in a thread, which cannot be stopped: it has to check `cancelled`.
        if self.service.is_async and self.job is not None:
            self.job.cancel()

    def lose(self) -> None:
        self.context.lost = True
        self.cancel()

    async def call(self, payload: Json, threads: Threads) -> Ended | None:
        """Its outcome; None: another worker has the task by now, and the outcome is dropped."""
        try:
            context = self.context
            span = handling(
                context.traceparent, self.service.name, context.task_id, context.attempt
            )
            with span, context.log.around():
                return await self.service.call(payload, self.context, threads=threads)
        except LostTask:
            return None
        except asyncio.CancelledError:
            kind = "Canceled" if self.context.cancelled else "CancelledError"
            return Fault(kind=kind, message="the task was canceled", retryable=False)
        except (Exception, SystemExit) as error:
            self._note_failure(error)
            return self.service.fault(error, self.context.attempt)

    def _note_failure(self, error: BaseException) -> None:
        """In the worker's own log, and with the task."""
        context, what = self.context, f"{self.service.name} failed ({type(error).__name__})"
        bug = not isinstance(error, MEANT)
        with context.log.around():  # so that the record itself names the task, too
            log.warning(
                "%s, task %s, attempt %d",
                *(what, context.task_id, context.attempt),
                exc_info=error if bug else None,
            )
        context.log.failed(what if bug else f"{what}: {error}", error, trace=bug)


class RunningTasks:
    """The handlers that run here, by task; only the newest attempt of a task counts."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._current: dict[str, Execution] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._jobs)

    def of(self, task: str) -> Execution | None:
        return self._current.get(task)

    def begin(self, execution: Execution, payload: Json, send_answer: SendAnswer) -> None:
        task = execution.context.task_id
        earlier = self._current.get(task)
        if earlier is not None:
            # The server gave up on an attempt that still runs here: its answer would be taken for
            # the answer of the new one.
            earlier.lose()
        self._current[task] = execution
        execution.job = asyncio.get_running_loop().create_task(
            self._run(execution, payload, send_answer)
        )
        self._jobs.add(execution.job)
        execution.job.add_done_callback(self._jobs.discard)
        execution.job.add_done_callback(self._answering.discard)

    async def _run(self, execution: Execution, payload: Json, send_answer: SendAnswer) -> None:
        context = execution.context
        ended = await execution.call(payload, self._threads)
        if self._current.get(context.task_id) is execution:
            del self._current[context.task_id]
        if ended is None or context.lost:
            log.info("task %s was taken back; its outcome is dropped", context.task_id)
            return
        assert execution.job is not None  # noqa: S101 set by begin()
        self._answering.add(execution.job)
        with contextlib.suppress(LostTask):
            await context.flush()
            await send_answer(ended)

    def lose(self, executions: Iterable[Execution] | None = None) -> None:
        for execution in list(self._current.values() if executions is None else executions):
            execution.lose()

    async def drop(self) -> None:
        """Loses what runs, and stops what is being answered: the transport is closed next."""
        self.lose()
        for job in self._answering:
            job.cancel()
        if self._answering:
            await asyncio.wait(self._answering)

    async def one_over(self) -> None:
        """Waits until one of the running tasks has ended."""
        await asyncio.wait(self._jobs, return_when=asyncio.FIRST_COMPLETED)

    async def all_over(self) -> None:
        while self._jobs:
            await asyncio.wait(self._jobs)
