"""One connection of a worker: what it was sent, what of it runs, and the answers.

A task belongs to the connection that brought it. When that is gone the server has taken the task
back, so its handler is told to stop and whatever it returns is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from concurrent.futures import Executor as Threads

import msgspec
from pydantic import ValidationError
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from onward.client import frames
from onward.client.context import LostTask, SocketContext
from onward.client.wire import Wire
from onward.core.task import Fault
from onward.service import Refused, Service, TryAgain, fault_from

log = logging.getLogger("onward.worker")

ANSWER_S = 10.0
EXPECTED = (Refused, TryAgain, ValidationError)  # a handler's way of saying no: no traceback


class TooLarge(ValueError):
    pass


class Execution:
    def __init__(self, task: frames.Task, service: Service, link: SocketLink) -> None:
        self.service = service
        self.context = SocketContext(task, link)
        self.job: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        self.context.cancelled = True
        # A plain function runs in a thread, which cannot be stopped: it has to look by itself.
        if self.service.is_async and self.job is not None:
            self.job.cancel()

    def lose(self) -> None:
        self.context.lost = True
        self.cancel()


class SocketLink:
    def __init__(
        self,
        socket: ClientConnection,
        services: Mapping[str | None, Service],  # None: the handler of the group
        *,
        wire: Wire,
        threads: Threads,
    ) -> None:
        self.wire = wire
        self._socket = socket
        self._services = services
        self._threads = threads
        self._running: dict[str, Execution] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._ponged = asyncio.Event()

    async def register(self, frame: frames.Register) -> None:
        await self.send(frame)
        async with asyncio.timeout(ANSWER_S):
            answer = frames.decode(await self._socket.recv(decode=False))
        if isinstance(answer, frames.Complaint):
            raise ConnectionRefusedError(answer.message)
        if not isinstance(answer, frames.Registered):
            raise ConnectionRefusedError("the server did not take the registration")

    async def read(self) -> None:
        """Take up what comes, until the connection ends."""
        try:
            while True:
                data = await self._socket.recv(decode=False)
                try:
                    frame = frames.decode(data)
                except msgspec.DecodeError:
                    log.debug("a frame was not understood: %.80r", data)
                    continue
                await self._take(frame)
        finally:
            for execution in list(self._running.values()):
                execution.lose()

    async def drain(self, grace_ms: int) -> None:
        """Take nothing more, and finish what runs as far as the time allows."""
        with contextlib.suppress(TimeoutError, LostTask):
            async with asyncio.timeout(grace_ms / 1000):
                self._ponged.clear()
                await self.send(frames.Drain())
                # Frames keep their order: once this is answered, no task is on its way to us.
                await self.send(frames.Ping())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ponged.wait(), ANSWER_S)
                while self._jobs:
                    await asyncio.wait(self._jobs)
        if self._jobs:
            log.warning("time is over: %d running tasks go back to the server", len(self._jobs))

    async def send(self, frame: frames.Frame) -> None:
        data = frames.encode(frame)
        if len(data) > frames.LARGEST:
            raise TooLarge(f"{len(data):,} bytes; at most {frames.LARGEST:,} can be sent")
        try:
            await self._socket.send(data, text=True)
        except ConnectionClosed:
            raise LostTask("the connection that brought the task is gone") from None

    async def _take(self, frame: frames.Incoming) -> None:
        match frame:
            case frames.Task():
                await self._start(frame)
            case frames.Cancel():
                execution = self._running.get(frame.task_id)
                if execution is not None:
                    execution.cancel()
            case frames.Ping():
                await self.send(frames.Pong())
            case frames.Pong():
                self._ponged.set()
            case frames.Complaint():
                log.warning("the server did not take a frame: %s", frame.message)
            case frames.Registered():
                pass

    async def _start(self, task: frames.Task) -> None:
        service = self._services.get(task.service)
        if service is None:
            what = "no group" if task.service is None else f"no {task.service!r}"
            fault = Fault(
                kind="UnknownService", message=f"this worker serves {what}", retryable=True
            )
            await self.send(frames.failed(task.task_id, fault))
            return
        earlier = self._running.get(task.task_id)
        if earlier is not None:
            # The server gave up on an attempt that still runs here; its answer would be taken for
            # the new one's.
            earlier.lose()
        execution = Execution(task, service, self)
        self._running[task.task_id] = execution
        execution.job = asyncio.get_running_loop().create_task(self._execute(task, execution))
        self._jobs.add(execution.job)
        execution.job.add_done_callback(self._jobs.discard)

    async def _execute(self, task: frames.Task, execution: Execution) -> None:
        context = execution.context
        answer = await self._answer(task, execution)
        if self._running.get(task.task_id) is execution:
            del self._running[task.task_id]
        if answer is None or context.lost:
            log.info("task %s was taken back; what came of it is dropped", task.task_id)
            return
        with contextlib.suppress(LostTask):
            await context.flush()
            try:
                await self.send(answer)
            except TooLarge as error:
                fault = Fault(kind="ResultTooLarge", message=str(error), retryable=False)
                await self.send(frames.failed(task.task_id, fault))

    async def _answer(self, task: frames.Task, execution: Execution) -> frames.Result | None:
        context, service = execution.context, execution.service
        try:
            said = await service.call(bytes(task.payload).decode(), context, threads=self._threads)
        except LostTask:
            return None
        except asyncio.CancelledError:
            kind = "Canceled" if context.cancelled else "CancelledError"
            fault = Fault(kind=kind, message="the task was canceled", retryable=False)
            return frames.failed(task.task_id, fault)
        except (Exception, SystemExit) as error:
            trace = None if isinstance(error, EXPECTED) else error
            log.warning("%s failed (%s)", service.name, type(error).__name__, exc_info=trace)
            return frames.failed(task.task_id, fault_from(error))
        return frames.Result(task_id=task.task_id, result=msgspec.Raw(said.encode()))
