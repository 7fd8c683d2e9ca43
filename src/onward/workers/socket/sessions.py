"""Workers on a WebSocket: each connection is a session, and the executor of its own tasks.

A frame that cannot be read is answered with one `error` frame, and the connection stays open. A
connection that ends loses the tasks that it has not answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple, TypeAlias

import msgspec
import structlog
from msgspec import UNSET, Raw

from onward.core import strict_json
from onward.core.contract import LeaseStatus
from onward.core.dispatch import Dispatcher
from onward.core.errors import Conflict, Forbidden, Invalid, NotYet
from onward.core.outcome import Failed, Lost, Outcome, Released, Succeeded
from onward.core.task import Claimed, Note, TaskId, encode, new_id
from onward.core.trace import handed_on
from onward.errors import OnwardError
from onward.faults import Fault
from onward.wire.frames import (
    LARGEST,
    CancelFrame,
    ChunkFrame,
    DrainFrame,
    ErrorFrame,
    FromServer,
    FromWorker,
    LogFrame,
    PingFrame,
    PongFrame,
    ProgressFrame,
    RegisteredFrame,
    RegisterFrame,
    ResultFrame,
    TaskFrame,
)
from onward.wire.problems import fault_of
from onward.workers.roster import Member, Roster, group_of, group_queue, is_service
from onward.workers.runner import Runner
from onward.workers.socket.turnstile import Turnstile
from onward.workers.task_logs import TaskLogs

log = structlog.get_logger("onward.socket")

Message = MutableMapping[str, Any]
Declare: TypeAlias = Callable[[Sequence[Raw]], Awaitable[None]]

REPLACED, TOO_MANY, GOING_AWAY = 4001, 4003, 1001
DEPARTURES = 50  # connections that are cleaned up in one turn of the loop
# So much progress of one connection may be on its way to the ledger before the next frame is read.
MAX_NOTES, MAX_NOTE_BYTES = 256, 1 << 20

_decode = msgspec.json.Decoder(FromWorker).decode
_encode = msgspec.json.Encoder().encode


class WorkerRights(NamedTuple):
    """What the one that connects may do."""

    key: str | None  # the id of its key; None: there are no keys
    may_serve: Callable[[str], bool]  # a service or group of this name
    declare: Declare


class WorkerSockets:
    """All worker connections of this server."""

    def __init__(
        self, dispatcher: Dispatcher, roster: Roster, *, most: int, logs: TaskLogs
    ) -> None:
        self.dispatcher = dispatcher
        self.roster = roster
        self.logs = logs
        self._most = most
        self.departures = Turnstile(DEPARTURES)
        self._open = 0  # connections, registered or not
        self._sessions: dict[str, Session] = {}
        self._closing = False

    async def serve(self, receive: Any, send: Any, rights: WorkerRights) -> None:
        """One WebSocket, from the accepted handshake to its end."""
        await send({"type": "websocket.accept"})
        if self._closing or self._open >= self._most:
            reason = "going away" if self._closing else "too many workers"
            code = GOING_AWAY if self._closing else TOO_MANY
            await send({"type": "websocket.close", "code": code, "reason": reason})
            return
        self._open += 1
        try:
            await Session(self, receive, send, rights).run()
        finally:
            self._open -= 1

    async def enlist(self, session: Session, worker: str) -> None:
        """A second connection with the name of a live one replaces it, and its tasks are lost."""
        before = self._sessions.get(worker)
        if before is not None and before.rights.key != session.rights.key:
            # A key must not end another key's worker by taking its name.
            raise Conflict(f"another key's worker is connected as {worker!r}")
        self._sessions[worker] = session
        if before is not None:
            await before.end(REPLACED, "replaced by a newer connection")

    def dismiss(self, session: Session, worker: str) -> None:
        if self._sessions.get(worker) is session:
            del self._sessions[worker]

    async def close(self, grace_ms: int) -> None:
        self._closing = True
        sessions = list(self._sessions.values())
        await asyncio.gather(*[session.drain(grace_ms) for session in sessions])


class SentTask:
    """A task that was sent to the worker and has no result yet."""

    def __init__(self, task: Claimed, answer: asyncio.Future[Outcome]) -> None:
        self.task = task
        self.answer = answer
        self.noted: asyncio.Future[Any] | None = None  # the last progress or chunk on its way


class Session:
    """One connection. It is the Executor of the tasks that are claimed for it."""

    def __init__(
        self,
        sockets: WorkerSockets,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
        rights: WorkerRights,
    ) -> None:
        self._sockets = sockets
        self.rights = rights
        self._receive = receive
        self._send = send
        self._sending = asyncio.Lock()  # one frame at a time: at most one waits in a full buffer
        self._executions: dict[TaskId, SentTask] = {}
        self._notes = self._note_bytes = 0  # since this session last waited for the ledger
        self._runner: Runner | None = None
        self._member: Member | None = None
        self._leaving = False  # the worker has sent a drain frame
        self._ended = False

    async def run(self) -> None:
        try:
            while True:
                message = await self._receive()
                if message["type"] == "websocket.disconnect":
                    break
                text = message.get("text")
                await self._on_message(text if text is not None else message.get("bytes") or b"")
            await self._sockets.departures.enter()
        finally:
            await self._leave()

    async def _on_message(self, text: str | bytes) -> None:
        try:
            frame = _decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # Whoever is not registered has sent its registration.
            await self._send_error(_unreadable(text, error), final=self._member is None)
            self._fail_unreadable(text)
            return
        except RecursionError:
            await self._send_error(strict_json.TOO_DEEP)
            return
        if len(text) > LARGEST:
            too_large = f"a frame of {len(text):,} bytes; at most {LARGEST:,} are taken"
            await self._send_error(too_large)
            if not isinstance(frame, ResultFrame):
                return
            frame = ResultFrame(
                task_id=frame.task_id,
                error=too_large,
                error_type="ResultTooLarge",
                retryable=False,
                fence=frame.fence,
            )
        await self._ON[type(frame)](self, frame)

    def _fail_unreadable(self, text: str | bytes) -> None:
        """Fails the task that an unreadable result names: no other result will follow it."""
        try:
            frame = json.loads(text)  # reads NaN and lone surrogates, which no JSON may hold
        except (ValueError, RecursionError):
            return
        if not isinstance(frame, dict) or frame.get("type") != "taskResult":
            return
        execution = self._executions.get(str(frame.get("taskId")))
        if execution is None or execution.answer.done():
            return
        try:
            strict_json.parse(
                text.encode(errors="surrogatepass") if isinstance(text, str) else text
            )
            why = "not the fields of a taskResult"
        except Invalid as error:
            why = str(error)
        fault = Fault(kind="ResultInvalid", message=f"result: {why}", retryable=False)
        execution.answer.set_result(Failed(fault))

    async def _on_progress(self, frame: ProgressFrame) -> None:
        progress = encode({"progress": frame.progress, "message": frame.message})
        await self._on_note(frame.task_id, ("task.progress", progress), progress)

    async def _on_chunk(self, frame: ChunkFrame) -> None:
        await self._on_note(frame.task_id, ("task.chunk", bytes(frame.data).decode()), None)

    async def _on_log(self, frame: LogFrame) -> None:
        execution = self._executions.get(frame.task_id)
        if execution is None:
            await self._send_error(f"task {frame.task_id} is not yours")
            return
        sockets, task = self._sockets, execution.task
        kept_ms = sockets.dispatcher.profiles[task.profile].retention_ms
        sockets.logs.add(task.id, frame.records, retention_ms=kept_ms)

    async def _on_ping(self, _: PingFrame) -> None:
        await self._send_frame(PongFrame())

    async def _on_pong(self, _: PongFrame) -> None:
        pass

    async def _on_drain(self, _: DrainFrame) -> None:
        if self._member is not None and not self._leaving:
            self._leaving = True
            # It takes no new tasks: a caller that needs such a worker must not count on this one.
            await self._sockets.roster.drain(self._member)

    async def _set_draining(self, draining: bool) -> None:
        assert self._runner is not None  # noqa: S101 every member of the roster has one
        if draining:
            self._runner.stop_claiming()
            if not self._leaving:
                await self._send_frame(DrainFrame())
        elif self._leaving:
            raise Conflict("the worker drains because it was stopped where it runs")
        else:
            self._runner.claim_again()

    async def _on_register(self, frame: RegisterFrame) -> None:
        if self._member is not None:
            await self._send_error("this connection is registered already")
            return
        worker = frame.worker_id or new_id()
        wanted = {} if frame.group is None else {group_queue(frame.group): frame.group}
        wanted |= {service: service for service in frame.services if is_service(service)}
        if not wanted:
            why = "register with a group, or with services, or both"
            await self._send_error(why, final=True)
            return
        queues = [queue for queue, name in wanted.items() if self.rights.may_serve(name)]
        refused = [name for queue, name in wanted.items() if queue not in queues]
        not_served = f"this key may not serve {', '.join(refused)}"
        if not queues:  # what a key may serve never changes
            await self._send_error(not_served, final=True)
            return
        sockets = self._sockets
        self._runner = Runner(
            sockets.dispatcher,
            self,
            worker=worker,
            queues=queues,
            slots=frame.concurrency,
            most=frame.most,
        )
        try:
            await self.rights.declare(frame.declare)
            await sockets.enlist(self, worker)
            member = sockets.roster.member(worker, "socket", queues, frame.concurrency)
            await sockets.roster.join(member, self._set_draining)
        except OnwardError as error:
            sockets.dismiss(self, worker)
            final = isinstance(error, Invalid | Forbidden) and not isinstance(error, NotYet)
            await self._send_error(str(error), final=final)
            return
        self._member = member
        if not self._ended:
            self._runner.start()  # claims in a later turn: no task overtakes the frame below
        await self._send_frame(RegisteredFrame(worker, logs=sockets.logs.on))
        if refused:  # only now: a worker takes an error before it is registered for a refusal
            await self._send_error(not_served)

    async def _on_result(self, frame: ResultFrame) -> None:
        execution = self._executions.get(frame.task_id)
        stale = frame.fence is not None and execution and execution.task.fence != frame.fence
        if execution is None or stale or execution.answer.done():
            await self._send_error(f"task {frame.task_id} is not yours to answer")
            return
        outcome = _outcome(frame)
        if execution.noted is not None:
            # Its progress must be in the log before its end is.
            await asyncio.wait([execution.noted])
        if not execution.answer.done():
            execution.answer.set_result(outcome)

    async def _on_note(self, task: TaskId, note: Note, progress: str | None) -> None:
        execution = self._executions.get(task)
        if execution is None:
            await self._send_error(f"task {task} is not yours")
            return
        noted = asyncio.ensure_future(
            self._sockets.dispatcher.note(execution.task, note, progress=progress)
        )
        noted.add_done_callback(_log_failure)
        execution.noted = noted
        self._notes += 1
        self._note_bytes += len(note[1] or "")
        if self._notes >= MAX_NOTES or self._note_bytes >= MAX_NOTE_BYTES:
            # A worker faster than the ledger would fill the memory. The last note is written last.
            await asyncio.wait([noted])
            self._notes = self._note_bytes = 0

    async def execute(self, task: Claimed) -> Outcome:
        loop = asyncio.get_running_loop()
        execution = SentTask(task, loop.create_future())
        self._executions[task.id] = execution
        try:
            if self._ended:
                return Lost()
            async with self._sending:
                await self._send({"type": "websocket.send", "text": self._frame(task)})
            return await execution.answer
        except (OSError, RuntimeError):  # the connection broke while the frame was being sent
            return Lost()
        finally:
            if self._executions.get(task.id) is execution:
                del self._executions[task.id]

    def _frame(self, task: Claimed) -> str:
        group = group_of(task.queue)
        limits = [at for at in (task.attempt_by, task.expires_at) if at is not None]
        left = min(limits) - self._sockets.dispatcher.clock.now() if limits else None
        frame = TaskFrame(
            task.id,
            group,
            Raw(task.payload.encode()),
            None if left is None else max(left, 0),
            task.attempt,
            None if group is not None else task.type,
            task.queue,
            task.fence,
            task.key or task.id,
            handed_on(task) or UNSET,
        )
        return _encode(frame).decode()

    def cancel(self, task: Claimed) -> None:
        execution = self._executions.get(task.id)
        if execution is not None and execution.task.fence == task.fence and not self._ended:
            self._sockets.dispatcher.spawn(self._send_frame(CancelFrame(task.id)))

    async def drain(self, grace_ms: int) -> None:
        if self._runner is not None:
            await self._runner.drain(grace_ms)
        await self.end(GOING_AWAY, "the server is going away")

    async def end(self, code: int, reason: str) -> None:
        if not self._ended:
            await self._leave()
            with suppress(OSError, RuntimeError):  # it may be gone already
                await self._send({"type": "websocket.close", "code": code, "reason": reason})

    async def _leave(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._runner is not None:
            self._runner.stop_claiming()
        for execution in self._executions.values():
            if not execution.answer.done():
                execution.answer.set_result(Lost())
        if self._member is not None:
            self._sockets.dismiss(self, self._member.id)
            await self._sockets.roster.leave(self._member)

    async def _send_error(self, message: str, *, final: bool = False) -> None:
        await self._send_frame(ErrorFrame(message, final))

    async def _send_frame(self, frame: FromServer) -> None:
        with suppress(OSError, RuntimeError):  # `run` reads that the connection has ended
            await self._send({"type": "websocket.send", "text": _encode(frame).decode()})

    _ON: ClassVar[dict[type, Callable[[Any, Any], Awaitable[None]]]] = {
        ResultFrame: _on_result,
        ProgressFrame: _on_progress,
        ChunkFrame: _on_chunk,
        LogFrame: _on_log,
        RegisterFrame: _on_register,
        PingFrame: _on_ping,
        PongFrame: _on_pong,
        DrainFrame: _on_drain,
    }


def _outcome(frame: ResultFrame) -> Outcome:
    if frame.error is not None:
        fault = Fault(
            kind=frame.error_type or "Error",
            message=frame.error,
            status=frame.status,
            retryable=frame.retryable,
            retry_after_ms=frame.retry_after_ms,
        )
        return Released(fault) if frame.released else Failed(fault)
    try:
        result = b"null" if frame.result is UNSET else bytes(frame.result)
        strict_json.parse(result)
    except Invalid as error:  # a result is checked as what callers send is: callers read it
        return Failed(Fault(kind="ResultInvalid", message=f"result: {error}", retryable=False))
    return Succeeded(result.decode())


def _log_failure(noted: asyncio.Future[LeaseStatus]) -> None:
    if not noted.cancelled() and noted.exception() is not None:
        log.warning("progress not written", error=repr(noted.exception()))


def _unreadable(text: str | bytes, error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        wrong = fault_of(str(error), FromWorker)
        return f"{wrong.pointer}: {wrong.message}" if wrong.pointer else wrong.message
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8, byte {error.start}"
    body = text.encode("utf-8", "replace") if isinstance(text, str) else text
    return strict_json.fault(body, str(error))
