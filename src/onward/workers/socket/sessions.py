"""Workers on a WebSocket: one session a connection, one executor a session.

The dialect is the table of frames below (S0-12). A frame that is not understood is answered with
one `error` frame and the connection stays; a connection that ends takes its tasks with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
import structlog
from msgspec import UNSET, Meta, Raw, UnsetType

from onward.core import strict_json
from onward.core.contract import LeaseRenewal, LeaseStatus
from onward.core.dispatch import Dispatcher
from onward.core.errors import Conflict, Invalid, OnwardError
from onward.core.outcome import Failed, Lost, Outcome, Released, Succeeded
from onward.core.task import Claimed, Fault, Note, TaskId, encode, new_id
from onward.core.trace import handed_on
from onward.workers.roster import Member, Roster, group_of, group_queue, is_service
from onward.workers.runner import Runner
from onward.workers.socket.turnstile import Turnstile

log = structlog.get_logger("onward.socket")

Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
Slots = Annotated[int, Meta(ge=1, le=1000)]
Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # as much as a ledger holds
Fraction = Annotated[float, Meta(ge=0, le=1)]
Message = MutableMapping[str, Any]
Declare: TypeAlias = Callable[[Sequence[Raw]], Awaitable[None]]

REPLACED, TOO_MANY, GOING_AWAY = 4001, 4003, 1001
DEPARTURES = 50  # connections that are cleared away in one turn of the loop
# Of one connection, what may be on its way to the ledger; then its next frame waits to be read.
MAX_NOTES, MAX_NOTE_BYTES = 256, 1 << 20
LARGEST = (1 << 20) + (64 << 10)  # of a frame: a body, and the frame's own words around it


class Register(msgspec.Struct, tag="register", tag_field="type"):
    workerId: Name | None = None  # noqa: N815 the frame's own words, here and below
    group: Name | None = "default"  # null: none
    services: list[Name] = []
    concurrency: Slots = 1
    declare: list[Raw] = []  # ours: schemas of the services, as POST /api/v2/services takes them


class TaskResult(msgspec.Struct, tag="taskResult", tag_field="type"):
    taskId: str  # noqa: N815
    result: Raw = Raw(b"null")
    error: str | None = None
    errorType: str | None = None  # noqa: N815
    status: Whole | None = None
    retryable: bool | None = None
    retryAfterMs: Whole | None = None  # noqa: N815
    fence: Whole | None = None  # ours: tells this attempt's answer from a late one of the same task
    released: bool = False  # ours: with an error; the worker cannot do it and has not begun it


class Progress(msgspec.Struct, tag="progress", tag_field="type"):
    taskId: str  # noqa: N815
    progress: Fraction
    message: str | None = None


class Chunk(msgspec.Struct, tag="chunk", tag_field="type"):
    taskId: str  # noqa: N815
    data: Raw


class Ping(msgspec.Struct, tag="ping", tag_field="type"):
    pass


class Pong(msgspec.Struct, tag="pong", tag_field="type"):
    pass


class Drain(msgspec.Struct, tag="drain", tag_field="type"):
    """Ours, both ways: no more tasks; the running ones are finished, and then the worker goes."""


class TaskFrame(msgspec.Struct, tag="task", tag_field="type"):
    taskId: str  # noqa: N815
    group: str | None
    payload: Raw
    timeout: int | None
    attempt: int
    service: str | None
    queue: str
    fence: int
    key: str
    traceparent: str | UnsetType = UNSET  # ours: where this attempt stands in a trace


_decode = msgspec.json.Decoder(
    Register | TaskResult | Progress | Chunk | Ping | Pong | Drain
).decode
_encode = msgspec.json.Encoder().encode


class WorkerSockets:
    """All worker connections of this server."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        *,
        lease_ms: int,
        most: int,
        declare: Declare,
    ) -> None:
        self.dispatcher = dispatcher
        self.roster = roster
        self.lease_ms = lease_ms
        self.declare = declare
        self._most = most
        self.departures = Turnstile(DEPARTURES)
        self._open = 0  # connections, registered or not
        self._sessions: dict[str, Session] = {}
        self._closing = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """An ASGI endpoint: one WebSocket, from handshake to end."""
        await receive()
        await send({"type": "websocket.accept"})
        if self._closing or self._open >= self._most:
            reason = "going away" if self._closing else "too many workers"
            code = GOING_AWAY if self._closing else TOO_MANY
            await send({"type": "websocket.close", "code": code, "reason": reason})
            return
        self._open += 1
        try:
            await Session(self, receive, send).run()
        finally:
            self._open -= 1

    async def enlist(self, session: Session, worker: str) -> None:
        """A second connection under a live name replaces the first, whose tasks are lost."""
        before = self._sessions.get(worker)
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
    """One task in a remote worker's hands."""

    def __init__(self, task: Claimed, answer: asyncio.Future[Outcome]) -> None:
        self.task = task
        self.answer = answer
        self.noted: asyncio.Future[Any] | None = None  # the last progress or chunk on its way


class Session:
    """One connection. It is the Executor of the tasks it is given."""

    def __init__(
        self,
        sockets: WorkerSockets,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        self._sockets = sockets
        self._receive = receive
        self._send = send
        self._sending = asyncio.Lock()  # one at a time: no more than one waits in a full buffer
        self._executions: dict[TaskId, SentTask] = {}
        self._notes = self._note_bytes = 0  # since the ledger was last waited for
        self._runner: Runner | None = None
        self._member: Member | None = None
        self._leaving = False  # it said so itself
        self._ended = False

    async def run(self) -> None:
        try:
            while True:
                message = await self._receive()
                if message["type"] == "websocket.disconnect":
                    break
                text = message.get("text")
                await self._hear(text if text is not None else message.get("bytes") or b"")
            await self._sockets.departures.enter()
        finally:
            await self._leave()

    async def _hear(self, text: str | bytes) -> None:
        try:
            frame = _decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            await self._complain(str(error))
            self._fail_unreadable(text)
            return
        except RecursionError:
            await self._complain(strict_json.TOO_DEEP)
            return
        if len(text) > LARGEST:
            said = f"a frame of {len(text):,} bytes; at most {LARGEST:,} are taken"
            await self._complain(said)
            if not isinstance(frame, TaskResult):
                return
            frame = TaskResult(
                frame.taskId,
                error=said,
                errorType="ResultTooLarge",
                retryable=False,
                fence=frame.fence,
            )
        await self._ON[type(frame)](self, frame)

    def _fail_unreadable(self, text: str | bytes) -> None:
        """If it can be made out whose result that should be: nobody need wait for another."""
        try:
            said = json.loads(text)  # it lets pass what no JSON may hold
        except (ValueError, RecursionError):
            return
        if not isinstance(said, dict) or said.get("type") != "taskResult":
            return
        execution = self._executions.get(str(said.get("taskId")))
        if execution is None or execution.answer.done():
            return
        try:
            strict_json.parse(
                text.encode(errors="surrogatepass") if isinstance(text, str) else text
            )
            why = "not as a taskResult should be"
        except Invalid as error:
            why = str(error)
        fault = Fault(kind="ResultInvalid", message=f"result: {why}", retryable=False)
        execution.answer.set_result(Failed(fault))

    async def _on_progress(self, frame: Progress) -> None:
        progress = encode({"progress": frame.progress, "message": frame.message})
        await self._on_note(frame.taskId, ("task.progress", progress), progress)

    async def _on_chunk(self, frame: Chunk) -> None:
        await self._on_note(frame.taskId, ("task.chunk", _text(frame.data)), None)

    async def _on_ping(self, _: Ping) -> None:
        await self._say({"type": "pong"})

    async def _on_pong(self, _: Pong) -> None:
        pass

    async def _on_drain(self, _: Drain) -> None:
        if self._member is not None and not self._leaving:
            self._leaving = True
            # It serves nobody new: whoever waits for such a worker must not count on it.
            await self._sockets.roster.drain(self._member)

    async def _obey(self, draining: bool) -> None:
        assert self._runner is not None  # noqa: S101 whoever is on the roster has one
        if draining:
            self._runner.stop_claiming()
            if not self._leaving:
                await self._say({"type": "drain"})
        elif self._leaving:
            raise Conflict("the worker is leaving by itself")
        else:
            self._runner.claim_again()

    async def _on_register(self, frame: Register) -> None:
        if self._member is not None:
            await self._complain("this connection is registered already")
            return
        worker = frame.workerId or new_id()
        queues = [group_queue(frame.group)] if frame.group is not None else []
        queues += filter(is_service, frame.services)
        if not queues:
            await self._complain("register with a group, or with services, or both")
            return
        sockets = self._sockets
        self._runner = Runner(
            sockets.dispatcher,
            self,
            worker=worker,
            queues=queues,
            slots=frame.concurrency,
            lease_ms=sockets.lease_ms,
        )
        try:
            await sockets.declare(frame.declare)
            await sockets.enlist(self, worker)
            member = sockets.roster.member(worker, "socket", queues, frame.concurrency)
            await sockets.roster.join(member, self._obey)
        except OnwardError as error:
            sockets.dismiss(self, worker)
            await self._complain(str(error))
            return
        self._member = member
        if not self._ended:
            self._runner.start()  # claims in a later turn: no task overtakes the answer below
        await self._say({"type": "registered", "workerId": worker})

    async def _on_result(self, frame: TaskResult) -> None:
        execution = self._executions.get(frame.taskId)
        stale = frame.fence is not None and execution and execution.task.fence != frame.fence
        if execution is None or stale or execution.answer.done():
            await self._complain(f"task {frame.taskId} is not yours to answer")
            return
        outcome = _outcome(frame)
        if execution.noted is not None:
            # What it said before the end must be in the log before the end is.
            await asyncio.wait([execution.noted])
        if not execution.answer.done():
            execution.answer.set_result(outcome)

    async def _on_note(self, task: TaskId, note: Note, progress: str | None) -> None:
        execution = self._executions.get(task)
        if execution is None:
            await self._complain(f"task {task} is not yours")
            return
        claimed = execution.task
        dispatcher = self._sockets.dispatcher
        until = dispatcher.clock.now() + self._sockets.lease_ms
        hold = LeaseRenewal(claimed.id, claimed.fence, until, progress, (note,))
        noted = asyncio.ensure_future(dispatcher.extend(hold))
        noted.add_done_callback(_shrug)
        execution.noted = noted
        self._notes += 1
        self._note_bytes += len(note[1] or "")
        if self._notes >= MAX_NOTES or self._note_bytes >= MAX_NOTE_BYTES:
            # A worker faster than the ledger would fill the memory. The last one is written last.
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
        except (OSError, RuntimeError):  # the connection broke while the frame was on its way
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
            self._sockets.dispatcher.spawn(self._say({"type": "cancel", "taskId": task.id}))

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

    async def _complain(self, message: str) -> None:
        await self._say({"type": "error", "message": message})

    async def _say(self, frame: dict[str, Any]) -> None:
        with suppress(OSError, RuntimeError):  # the receive side will see the end of it
            await self._send({"type": "websocket.send", "text": _encode(frame).decode()})

    _ON: ClassVar[dict[type, Callable[[Any, Any], Awaitable[None]]]] = {
        TaskResult: _on_result,
        Progress: _on_progress,
        Chunk: _on_chunk,
        Register: _on_register,
        Ping: _on_ping,
        Pong: _on_pong,
        Drain: _on_drain,
    }


def _outcome(frame: TaskResult) -> Outcome:
    if frame.error is not None:
        fault = Fault(
            kind=frame.errorType or "Error",
            message=frame.error,
            status=frame.status,
            retryable=frame.retryable,
            retry_after_ms=frame.retryAfterMs,
        )
        return Released(fault) if frame.released else Failed(fault)
    try:
        strict_json.parse(bytes(frame.result))
    except Invalid as error:  # held to what every door is held to: somebody has to read it
        return Failed(Fault(kind="ResultInvalid", message=f"result: {error}", retryable=False))
    return Succeeded(_text(frame.result))


def _text(raw: Raw) -> str:
    return bytes(raw).decode()


def _shrug(noted: asyncio.Future[LeaseStatus]) -> None:
    if not noted.cancelled() and noted.exception() is not None:
        log.warning("progress not kept", error=repr(noted.exception()))
