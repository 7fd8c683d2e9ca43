"""A worker's socket to the server: what it was sent, what of it runs, and the answers.

A task belongs to the connection that brought it. When that is gone the server has taken the task
back, so its handler is told to stop and whatever it returns is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Threads
from time import monotonic

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from onward.client import frames
from onward.client.address import credentials, is_loopback, socket_url
from onward.client.context import LostTask, TaskContext
from onward.client.execution import Ended, Execution, RunningTasks
from onward.client.wire import Wire
from onward.core.outcome import Failed
from onward.core.task import Fault, unknown_service
from onward.core.urls import shown
from onward.services.function import Service

log = logging.getLogger("onward.worker")

ANSWER_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
STEADY_S = 1.0  # a connection that held this long was a good one: the next pause is short again
REPLACED = 4001  # the server's close code for a connection whose name somebody else took


class TooLarge(ValueError):
    pass


class NameTaken(RuntimeError):
    """Somebody else works under this worker's id."""


class SocketTransport:
    """One connection after the other, for as long as the worker lives."""

    def __init__(
        self,
        registration: frames.Register,
        services: Mapping[str | None, Service],  # None: the handler of the group
        *,
        wire: Wire,
        threads: Threads,
    ) -> None:
        self._registration = registration
        self._services = services
        self._wire = wire
        self._threads = threads
        self._link: SocketLink | None = None
        self.on_drain: Callable[[], None] = _stay  # told that the server wants us to go

    @property
    def connected(self) -> bool:
        return self._link is not None

    async def serve(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            began = monotonic()
            try:
                await self._serve_one_connection()
            except (OSError, WebSocketException, LostTask) as error:
                if isinstance(error, ConnectionClosed) and error.rcvd is not None:
                    self._give_way(error.rcvd.code)
                if monotonic() - began > STEADY_S:
                    pause = FIRST_PAUSE_S
                wait = pause * random.uniform(0.5, 1)
                where = shown(self._wire.url)
                log.warning("no connection to %s (%s); trying again in %.1f s", where, error, wait)
                await asyncio.sleep(wait)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    async def drain(self, grace_ms: int) -> None:
        if self._link is not None:
            await self._link.drain(grace_ms)

    def _give_way(self, code: int) -> None:
        # Both of us coming back for ever would take every task from the other.
        if code == REPLACED:
            me = self._registration.worker_id
            raise NameTaken(f"another worker has connected as {me!r}; this one stops")

    async def _serve_one_connection(self) -> None:
        url = self._wire.url
        async with connect(
            socket_url(url),
            additional_headers=credentials(url),
            compression=None,  # costs more than it saves on small frames
            max_size=None,  # the server bounds what it takes in; what it took must reach us
            max_queue=256,
            proxy=None if is_loopback(url) else True,
        ) as socket:
            link = SocketLink(socket, self._services, wire=self._wire, threads=self._threads)
            link.on_drain = self.on_drain
            await link.register(self._registration)
            names = ", ".join(service.name for service in self._services.values())
            me = self._registration.worker_id
            log.info("connected to %s as %s, serving %s", shown(url), me, names)
            self._link = link
            try:
                await link.read()
            finally:
                self._link = None


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
        self._running = RunningTasks(threads)
        self._ponged = asyncio.Event()
        self.on_drain: Callable[[], None] = _stay

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
                    log.debug("a frame of %d bytes was not understood", len(data))
                    continue
                await self._take(frame)
        finally:
            await self._running.drop()

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
                await self._running.all_over()
        if len(self._running):
            log.warning("time is over: %d running tasks go back to the server", len(self._running))

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
                self._cancel(frame.task_id)
            case frames.Ping():
                await self.send(frames.Pong())
            case frames.Pong():
                self._ponged.set()
            case frames.Drain():
                self.on_drain()
            case frames.Complaint():
                log.warning("the server did not take a frame: %s", frame.message)
            case frames.Registered():
                pass

    def _cancel(self, task: str) -> None:
        execution = self._running.of(task)
        if execution is not None:
            execution.cancel()

    async def _start(self, task: frames.Task) -> None:
        service = self._services.get(task.service)
        if service is None and task.service is not None:
            service = self._services.get(task.queue)
        if service is None:
            fault = unknown_service(task.service or "group")
            log.warning("task %s goes back: %s", task.task_id, fault.message)
            answer = frames.failed(task.task_id, fault)
            await self.send(msgspec.structs.replace(answer, fence=task.fence, released=True))
            return
        execution = Execution(service, TaskContext(task, self))

        async def tell(ended: Ended) -> None:
            try:
                await self.send(_answer(task, ended))
            except TooLarge as error:
                fault = Fault(kind="ResultTooLarge", message=str(error), retryable=False)
                await self.send(_answer(task, Failed(fault)))

        self._running.begin(execution, bytes(task.payload).decode(), tell)


def _stay() -> None:
    log.info("the server wants this worker to go, and nobody here listens to that")


def _answer(task: frames.Task, ended: Ended) -> frames.Result:
    if isinstance(ended, Failed):
        answer = frames.failed(task.task_id, ended.fault)
    else:
        answer = frames.Result(task_id=task.task_id, result=msgspec.Raw(ended.result.encode()))
    return msgspec.structs.replace(answer, fence=task.fence)
