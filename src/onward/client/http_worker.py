"""A worker that the server calls: it listens for `POST /exec/<service>` and registers its URL.

A task belongs to the request that brought it. When the caller hangs up it has given the task to
another worker; so the handler is stopped, and what it returns is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Threads
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from onward import signature
from onward.client.api import ServerApi
from onward.client.errors import ProblemError, Unreachable, WorkerRefused
from onward.client.execution import Ended, Execution, RunningTasks
from onward.client.listening import bind, server_of
from onward.client.reporting import declare_services, post_note
from onward.client.retrying import Admission
from onward.client.service import Json, Service
from onward.client.task_context import TaskContext
from onward.faults import Fault, unknown_service
from onward.urls import shown
from onward.wire.base import MAX_BODY
from onward.wire.frames import LARGEST, RegisterFrame, SocketFrame, TaskFrame

log = logging.getLogger("onward.worker")

UNSIGNED = "this call is not signed with the secret of the registration"
SOONEST_S = 1.0  # between two heartbeats, however the load changes
LINGER_S = 1.2  # within a second all servers know that this worker leaves; until then they may call
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
REFUSALS = (400, 403)  # of a registration that would be refused each time it came


class _Registered(msgspec.Struct):
    secret: str


class HttpTransport:
    def __init__(
        self,
        url: str,
        registration: RegisterFrame,
        services: Mapping[str | None, Service],
        *,
        api: ServerApi,
        threads: Threads,
        on_registered: Callable[[str], None] | None,
        on_drain: Callable[[], None],  # called when the server drains this worker
    ) -> None:
        if None in services:
            raise ValueError("a worker group is served over a socket; over HTTP, services only")
        self._services = services
        self._registration = registration
        self._api = api
        self._admission = Admission(api)
        self._running = RunningTasks(threads)
        self._limit = asyncio.Semaphore(registration.concurrency)
        self._beat_s = _ttl_ms() / 3000
        self._socket, self.url = bind(url)
        self._load = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._changed = asyncio.Event()
        self._draining = False
        self._secret: str | None = None  # that the server signs its calls with
        self.connected = False
        self._on_registered = on_registered
        self._on_drain = on_drain

    async def serve(self) -> None:
        server = server_of(self._app())
        serving = asyncio.get_running_loop().create_task(server.serve([self._socket]))
        try:
            await declare_services(self._api, self._services)
            await self._stay_registered()
            # Draining: `serve` is canceled, and the shielded HTTP server closes after that.
            await asyncio.shield(serving)
        finally:
            await self._running.drop()
            server.should_exit = True
            await asyncio.wait({serving})
            self._socket.close()

    async def drain(self, grace_ms: int) -> None:
        """Deregisters, then finishes what runs and what is still called until all servers know."""
        self._draining = True
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_ms / 1000):
                if self.connected and await self._deregister():
                    await asyncio.sleep(LINGER_S)
                await self._idle.wait()
        if self._load:
            log.warning("time is over: %d running tasks go back to the server", self._load)

    # Registration.

    async def _stay_registered(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._draining:
            try:
                await self._beat() if self.connected else await self._register()
                pause = FIRST_PAUSE_S
            except (Unreachable, ProblemError) as error:
                log.warning("not registered (%s); trying again in %.1f s", error, pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)
                continue
            if self.connected:
                await self._until_next_beat()

    async def _register(self) -> None:
        me = self._registration
        body = {
            "id": me.worker_id,
            "url": self.url,
            "services": me.services,
            "load": self._load,
            "slots": me.concurrency,
        }
        request = self._api.request("POST", "/workers/register", body=body)
        try:
            answer = await self._api.send(request)
        except ProblemError as error:
            if error.status in REFUSALS:
                raise WorkerRefused(self._api.url, error.title) from error
            if error.status == 401:
                self._admission.refuse(error.title)
            raise
        self._admission.grant()
        if self._api.key is not None:  # without keys anybody may call it, and a test by hand does
            self._secret = msgspec.json.decode(answer.content, type=_Registered).secret
        self.connected = True
        names = ", ".join(me.services)
        log.info("registered %s with %s, serving %s", self.url, shown(self._api.url), names)
        if self._on_registered is not None:
            self._on_registered(self.url)

    async def _beat(self) -> None:
        body = {"id": self._registration.worker_id, "load": self._load}
        request = self._api.request("POST", "/workers/heartbeat", body=body)
        answer = await self._api.send(request, ok_status=404)
        if answer.status_code == 404:
            log.info("the server has forgotten this worker")
            self.connected = False
        elif _field(answer.content, "draining") is True:
            self._on_drain()

    async def _until_next_beat(self) -> None:
        """Waits a third of the TTL, or until the load has changed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._beat_s):
                await self._changed.wait()
                if not self._draining:
                    await asyncio.sleep(SOONEST_S)
        self._changed.clear()

    async def _deregister(self) -> bool:
        body = {"id": self._registration.worker_id}
        request = self._api.request("POST", "/workers/deregister", body=body)
        try:
            await self._api.send(request, ok_status=404)
        except (Unreachable, ProblemError) as error:  # then its missing heartbeats remove it
            log.warning("this worker is still registered (%s)", error)
            return False
        return True

    # Calls.

    def _app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/exec/{service:path}", self._exec, methods=["POST"]),
                Route("/cancel", self._cancel, methods=["POST"]),
                Route("/health", self._health),
            ]
        )

    async def _exec(self, request: Request) -> Response:
        queue = request.path_params["service"]
        type_ = unquote(request.headers.get("x-onward-type", queue))
        service = self._services.get(type_) or self._services.get(queue)
        if service is None and queue in self._registration.services:
            fault = unknown_service(type_)
            task = request.headers.get("x-onward-task")
            log.warning("task %s goes back: %s", task, fault.message)
            return _failed(fault, released=True)
        if service is None:
            return _refuse(404, f"this worker has no service {queue!r}")
        try:
            body = await _body(request)
            if not self._is_signed(request, body):
                return _refuse(401, UNSIGNED)
            payload = _payload(body, request)
        except NotReadable as error:
            return _refuse(400, str(error))
        except ClientDisconnect:
            return _refuse(400, "the body is incomplete")
        self._count(+1)
        try:
            async with self._limit:
                return await self._run(service, payload, request)
        finally:
            self._count(-1)

    def _is_signed(self, request: Request, body: bytes) -> bool:
        if self._secret is None:
            return self._api.key is None
        header = request.headers.get(signature.HEADER, "")
        return signature.is_signed(header, self._secret, body, int(time.time() * 1000))

    def _count(self, more: int) -> None:
        self._load += more
        self._changed.set()
        self._idle.clear() if self._load else self._idle.set()

    async def _run(self, service: Service, payload: Json, request: Request) -> Response:
        call = TaskRequest(request, self._api)
        execution = Execution(service, TaskContext(call.task, call))
        answers: list[Ended] = []

        async def keep(ended: Ended) -> None:
            answers.append(ended)

        self._running.begin(execution, payload, keep)
        assert execution.job is not None  # noqa: S101 it has just begun
        gone = asyncio.get_running_loop().create_task(_hung_up(request))
        try:
            await asyncio.wait({execution.job, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if not answers:
            # The caller hung up, or called again with a newer attempt: this answer is not wanted.
            execution.lose()
            return _refuse(409, "this attempt no longer holds the task")
        return _answer(answers[0])

    async def _cancel(self, request: Request) -> Response:
        try:
            body = await _body(request)
            if not self._is_signed(request, body):
                return _refuse(401, UNSIGNED)
            task = _object(body).get("task_id")
        except NotReadable as error:
            return _refuse(400, str(error))
        execution = self._running.of(str(task))
        if execution is not None:
            execution.cancel()
        return _json(200, msgspec.json.encode({"canceled": execution is not None}))

    async def _health(self, _: Request) -> Response:
        body = {"status": "healthy", "services": self._registration.services, "load": self._load}
        return _json(200, msgspec.json.encode(body))


class TaskRequest:
    """The request that brought a task. Its progress and chunks go to the server."""

    def __init__(self, request: Request, api: ServerApi) -> None:
        headers = request.headers
        self.api = api
        self._from_server = "x-onward-task" in headers  # else the server does not know the task
        self.keeps_logs = self._from_server
        self.task = TaskFrame(
            headers.get("x-onward-task") or str(uuid.uuid4()),
            attempt=_count(headers.get("x-onward-attempt"), 1),
            fence=_count(headers.get("x-onward-fence"), 0),
            key=headers.get("idempotency-key", "").rpartition(":")[0] or None,
            traceparent=headers.get("traceparent"),
        )

    async def send(self, frame: SocketFrame) -> None:
        if self._from_server:
            await post_note(self.api, frame, self.task.fence)


class NotReadable(ValueError):
    """A request that this worker does not take."""


def _object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotReadable(f"not a JSON object: {error}") from None


def _ttl_ms() -> int:
    text = os.environ.get("WORKER_TTL_MS") or "15000"
    if not text.isdigit() or not int(text):
        raise ValueError(f"WORKER_TTL_MS cannot be read: {text!r} is no number of milliseconds")
    return int(text)


async def _body(request: Request) -> bytes:
    # A web page in a browser on this machine can call it, too, but cannot leave out its origin.
    if "origin" in request.headers:
        raise NotReadable("a web page may not call a worker")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            raise NotReadable(f"the body is larger than {LARGEST} bytes")
    return bytes(body)


def _payload(body: bytes, request: Request) -> Json:
    """What was submitted: a flow's input and params as they are, any other payload unwrapped."""
    _object(body)
    if request.headers.get("x-onward-payload") != "input":
        return body.decode()
    return bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw])["input"]).decode()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _answer(ended: Ended) -> Response:
    if isinstance(ended, Fault):
        return _failed(ended)
    body = b'{"result":' + ended.encode() + b',"error":""}'
    if len(body) > MAX_BODY:
        text = f"{len(body):,} bytes; at most {MAX_BODY:,} can be sent"
        return _failed(Fault(kind="ResultTooLarge", message=text, retryable=False))
    return _json(200, body)


def _failed(fault: Fault, *, released: bool = False) -> Response:
    body = {
        "result": None,
        "error": fault.message or fault.kind,
        "errorType": fault.kind,
        "status": fault.status,
        "retryable": fault.retryable,
        "retryAfterMs": fault.retry_after_ms,
        "released": released,
    }
    return _json(200, msgspec.json.encode(body))


def _refuse(status: int, error: str) -> Response:
    return _json(status, msgspec.json.encode({"result": None, "error": error}))


def _json(status: int, body: bytes) -> Response:
    return Response(body, status, media_type="application/json")


def _field(body: bytes, name: str) -> Any:
    """Of a server's answer; None also if the answer is no object."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any]).get(name)
    except msgspec.DecodeError:
        return None


def _count(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else otherwise
