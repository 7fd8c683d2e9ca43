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
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from onward.client import frames
from onward.client.address import is_loopback, socket_url
from onward.client.context import LostTask, TaskContext
from onward.client.execution import Bench, Ended, Execution
from onward.client.wire import Wire
from onward.core.outcome import Failed
from onward.core.task import Fault
from onward.service import Service

log = logging.getLogger("onward.worker")

ANSWER_S = 10.0


class TooLarge(ValueError):
    pass


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
        self._bench = Bench(threads)
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
            self._bench.lose()

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
                await self._bench.all_over()
        if len(self._bench):
            log.warning("time is over: %d running tasks go back to the server", len(self._bench))

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
                execution = self._bench.of(frame.task_id)
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
        execution = Execution(service, TaskContext(task, self))

        async def tell(ended: Ended) -> None:
            try:
                await self.send(_answer(task, ended))
            except TooLarge as error:
                fault = Fault(kind="ResultTooLarge", message=str(error), retryable=False)
                await self.send(_answer(task, Failed(fault)))

        self._bench.begin(execution, bytes(task.payload).decode(), tell)


def _answer(task: frames.Task, ended: Ended) -> frames.Result:
    if isinstance(ended, Failed):
        answer = frames.failed(task.task_id, ended.fault)
    else:
        answer = frames.Result(task_id=task.task_id, result=msgspec.Raw(ended.result.encode()))
    return msgspec.structs.replace(answer, fence=task.fence)
