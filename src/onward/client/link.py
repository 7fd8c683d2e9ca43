"""The WebSocket of a worker to the server: tasks come in, answers go out.

A task belongs to the connection that brought it. When that connection ends, the server takes the
task back; so its handler is stopped, and what it returns is dropped.
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

from onward.client.address import credentials, is_loopback, socket_url
from onward.client.api import ServerApi
from onward.client.context import LostTask, TaskContext
from onward.client.execution import Ended, Execution, RunningTasks
from onward.core.outcome import Failed
from onward.core.task import Fault, unknown_service
from onward.core.urls import shown
from onward.services.function import Service
from onward.wire.frames import (
    LARGEST,
    CancelFrame,
    DrainFrame,
    ErrorFrame,
    FromServer,
    PingFrame,
    PongFrame,
    RegisteredFrame,
    RegisterFrame,
    ResultFrame,
    SocketFrame,
    TaskFrame,
)

log = logging.getLogger("onward.worker")

ANSWER_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
STEADY_S = 1.0  # after a connection that lasted this long, the next pause is the first one again
REPLACED = 4001  # the server's close code: another worker has registered with this id

_decode = msgspec.json.Decoder(FromServer).decode
_encode = msgspec.json.Encoder().encode


class TooLarge(ValueError):
    pass


class NameTaken(RuntimeError):
    """Another worker has registered with this worker's id."""


class SocketTransport:
    """Connects, and connects again, until the worker ends."""

    def __init__(
        self,
        registration: RegisterFrame,
        services: Mapping[str | None, Service],  # None: the handler of the group
        *,
        api: ServerApi,
        threads: Threads,
    ) -> None:
        self._registration = registration
        self._services = services
        self._api = api
        self._threads = threads
        self._link: SocketLink | None = None
        self.on_drain: Callable[[], None] = _ignore  # called when the server drains this worker

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
                where = shown(self._api.url)
                log.warning("no connection to %s (%s); trying again in %.1f s", where, error, wait)
                await asyncio.sleep(wait)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    async def drain(self, grace_ms: int) -> None:
        if self._link is not None:
            await self._link.drain(grace_ms)

    def _give_way(self, code: int) -> None:
        # If both came back each time, each would take every task from the other.
        if code == REPLACED:
            me = self._registration.worker_id
            raise NameTaken(f"another worker has connected as {me!r}; this one stops")

    async def _serve_one_connection(self) -> None:
        url = self._api.url
        async with connect(
            socket_url(url),
            additional_headers=credentials(url),
            compression=None,  # costs more than it saves on small frames
            max_size=None,  # the server bounds what it accepts; what it has accepted must arrive
            max_queue=256,
            proxy=None if is_loopback(url) else True,
        ) as socket:
            link = SocketLink(socket, self._services, api=self._api, threads=self._threads)
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
        api: ServerApi,
        threads: Threads,
    ) -> None:
        self.api = api
        self._socket = socket
        self._services = services
        self._running = RunningTasks(threads)
        self._ponged = asyncio.Event()
        self.on_drain: Callable[[], None] = _ignore

    async def register(self, frame: RegisterFrame) -> None:
        await self.send(frame)
        async with asyncio.timeout(ANSWER_S):
            answer = _decode(await self._socket.recv(decode=False))
        if isinstance(answer, ErrorFrame):
            raise ConnectionRefusedError(answer.message)
        if not isinstance(answer, RegisteredFrame):
            raise ConnectionRefusedError("the server did not answer the registration")

    async def read(self) -> None:
        """Starts what comes in, until the connection ends."""
        try:
            while True:
                data = await self._socket.recv(decode=False)
                try:
                    frame = _decode(data)
                except msgspec.DecodeError:
                    log.debug("a frame of %d bytes was not understood", len(data))
                    continue
                await self._on_frame(frame)
        finally:
            await self._running.drop()

    async def drain(self, grace_ms: int) -> None:
        """Takes nothing more, and finishes what runs as far as the time allows."""
        with contextlib.suppress(TimeoutError, LostTask):
            async with asyncio.timeout(grace_ms / 1000):
                self._ponged.clear()
                await self.send(DrainFrame())
                # Frames keep their order: once this is answered, no task is on its way here.
                await self.send(PingFrame())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ponged.wait(), ANSWER_S)
                await self._running.all_over()
        if len(self._running):
            log.warning("time is over: %d running tasks go back to the server", len(self._running))

    async def send(self, frame: SocketFrame) -> None:
        data = _encode(frame)
        if len(data) > LARGEST:
            raise TooLarge(f"{len(data):,} bytes; at most {LARGEST:,} can be sent")
        try:
            await self._socket.send(data, text=True)
        except ConnectionClosed:
            raise LostTask("the connection that brought the task is gone") from None

    async def _on_frame(self, frame: FromServer) -> None:
        match frame:
            case TaskFrame():
                await self._start(frame)
            case CancelFrame():
                self._cancel(frame.task_id)
            case PingFrame():
                await self.send(PongFrame())
            case PongFrame():
                self._ponged.set()
            case DrainFrame():
                self.on_drain()
            case ErrorFrame():
                log.warning("the server refused a frame: %s", frame.message)
            case RegisteredFrame():
                pass

    def _cancel(self, task: str) -> None:
        execution = self._running.of(task)
        if execution is not None:
            execution.cancel()

    async def _start(self, task: TaskFrame) -> None:
        service = self._services.get(task.service)
        if service is None and task.service is not None:
            service = self._services.get(task.queue)
        if service is None:
            fault = unknown_service(task.service or "group")
            log.warning("task %s goes back: %s", task.task_id, fault.message)
            answer = _failed(task.task_id, fault)
            await self.send(msgspec.structs.replace(answer, fence=task.fence, released=True))
            return
        execution = Execution(service, TaskContext(task, self))

        async def answer_with(ended: Ended) -> None:
            try:
                await self.send(_answer(task, ended))
            except TooLarge as error:
                fault = Fault(kind="ResultTooLarge", message=str(error), retryable=False)
                await self.send(_answer(task, Failed(fault)))

        self._running.begin(execution, bytes(task.payload).decode(), answer_with)


def _ignore() -> None:
    log.info("the server drains this worker; nothing here reacts to it")


def _answer(task: TaskFrame, ended: Ended) -> ResultFrame:
    if isinstance(ended, Failed):
        answer = _failed(task.task_id, ended.fault)
    else:
        answer = ResultFrame(task_id=task.task_id, result=msgspec.Raw(ended.result.encode()))
    return msgspec.structs.replace(answer, fence=task.fence)


def _failed(task_id: str, fault: Fault) -> ResultFrame:
    return ResultFrame(
        task_id=task_id,
        error=fault.message,
        error_type=fault.kind,
        status=fault.status,
        retryable=fault.retryable,
        retry_after_ms=fault.retry_after_ms,
    )
