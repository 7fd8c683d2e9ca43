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
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from onward.client.address import credentials, is_loopback, socket_url
from onward.client.api import ServerApi
from onward.client.errors import WorkerRefused, problem_from
from onward.client.execution import Ended, Execution, RunningTasks
from onward.client.retrying import Admission
from onward.client.service import Service
from onward.client.task_context import LostTask, TaskContext
from onward.faults import Fault, unknown_service
from onward.urls import shown
from onward.wire import frames

log = logging.getLogger("onward.worker")
# At debug, websockets writes heads and frames: keys and payloads.
wire_log = logging.getLogger("onward.worker.websocket")
wire_log.setLevel(logging.INFO)

ANSWER_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
STEADY_S = 1.0  # after a connection that lasted this long, the next pause is the first one again
REPLACED = 4001  # the server's close code: another worker has registered with this id

_decode = msgspec.json.Decoder(frames.FromServer).decode
_encode = msgspec.json.Encoder().encode


class TooLarge(ValueError):
    pass


class NameTaken(RuntimeError):
    """Another worker has registered with this worker's id."""


class SocketTransport:
    """Connects, and connects again, until the worker ends."""

    def __init__(
        self,
        registration: frames.RegisterFrame,
        services: Mapping[str | None, Service],  # None: the handler of the group
        *,
        api: ServerApi,
        threads: Threads,
        on_drain: Callable[[], None],  # called when the server drains this worker
    ) -> None:
        self._registration = registration
        self._services = services
        self._api = api
        self._threads = threads
        self._on_drain = on_drain
        self._link: SocketLink | None = None
        self._admission = Admission(api)

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
                if isinstance(error, InvalidStatus) and error.response.status_code in (401, 403):
                    self._admission.refuse(_why(error))
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
            additional_headers=credentials(url, self._api.key),
            compression=None,  # costs more than it saves on small frames
            max_size=None,  # the server bounds what it accepts; what it has accepted must arrive
            max_queue=256,
            proxy=None if is_loopback(url) else True,
            logger=wire_log,
        ) as socket:
            running = RunningTasks(self._threads)
            link = SocketLink(socket, self._services, running, self._api, self._on_drain)
            await link.register(self._registration)
            self._admission.grant()
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
        services: Mapping[str | None, Service],
        running: RunningTasks,
        api: ServerApi,
        on_drain: Callable[[], None],
    ) -> None:
        self.api = api
        self.keeps_logs = False
        self._socket = socket
        self._services = services
        self._running = running
        self._on_drain = on_drain
        self._ponged = asyncio.Event()

    async def register(self, frame: frames.RegisterFrame) -> None:
        await self.send(frame)
        async with asyncio.timeout(ANSWER_S):
            answer = _decode(await self._socket.recv(decode=False))
        if isinstance(answer, frames.ErrorFrame):
            if answer.final:
                raise WorkerRefused(self.api.url, answer.message)
            raise ConnectionRefusedError(answer.message)
        if not isinstance(answer, frames.RegisteredFrame):
            raise ConnectionRefusedError("the server did not answer the registration")
        self.keeps_logs = answer.logs

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
                await self.send(frames.DrainFrame())
                # Frames keep their order: once this is answered, no task is on its way here.
                await self.send(frames.PingFrame())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ponged.wait(), ANSWER_S)
                await self._running.all_over()
        if len(self._running):
            log.warning("time is over: %d running tasks go back to the server", len(self._running))

    async def send(self, frame: frames.SocketFrame) -> None:
        data = _encode(frame)
        if len(data) > frames.LARGEST:
            raise TooLarge(f"{len(data):,} bytes; at most {frames.LARGEST:,} can be sent")
        try:
            await self._socket.send(data, text=True)
        except ConnectionClosed:
            raise LostTask("the connection that brought the task is gone") from None

    async def _on_frame(self, frame: frames.FromServer) -> None:
        match frame:
            case frames.TaskFrame():
                await self._start(frame)
            case frames.CancelFrame():
                self._cancel(frame.task_id)
            case frames.PingFrame():
                await self.send(frames.PongFrame())
            case frames.PongFrame():
                self._ponged.set()
            case frames.DrainFrame():
                self._on_drain()
            case frames.ErrorFrame():
                log.warning("the server refused a frame: %s", frame.message)
            case frames.RegisteredFrame():
                pass

    def _cancel(self, task: str) -> None:
        execution = self._running.of(task)
        if execution is not None:
            execution.cancel()

    async def _start(self, task: frames.TaskFrame) -> None:
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
                await self.send(_answer(task, fault))

        self._running.begin(execution, bytes(task.payload).decode(), answer_with)


def _why(error: InvalidStatus) -> str:
    body = error.response.body
    if not body:
        return "its key lacks the scope work, or the server does not know the host that it calls"
    return str(problem_from(error.response.status_code, bytes(body)))


def _answer(task: frames.TaskFrame, ended: Ended) -> frames.ResultFrame:
    if isinstance(ended, Fault):
        answer = _failed(task.task_id, ended)
    else:
        answer = frames.ResultFrame(task_id=task.task_id, result=msgspec.Raw(ended.encode()))
    return msgspec.structs.replace(answer, fence=task.fence)


def _failed(task_id: str, fault: Fault) -> frames.ResultFrame:
    return frames.ResultFrame(
        task_id=task_id,
        error=fault.message,
        error_type=fault.kind,
        status=fault.status,
        retryable=fault.retryable,
        retry_after_ms=fault.retry_after_ms,
    )
