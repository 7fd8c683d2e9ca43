"""A worker's way over Redis streams: the task queue protocol, with an owner check on every step.

Keys: `stream:task` and its group `cg:workers` (read), `stream:result` (answers), `stream:dlq` (what
cannot even be answered), `onward:cancel:{task}:{fence}` (it should stop). An entry may be taken
from us at any moment after a silence; XACK and XCLAIM do not ask whose it is, so a script does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Mapping
from concurrent.futures import Executor as Threads
from time import monotonic
from typing import Any
from urllib.parse import quote

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from onward.client import frames
from onward.client.context import TaskContext
from onward.client.errors import NotAdmitted, ProblemError, ServerNeeded, Unreachable
from onward.client.execution import Ended, Execution, RunningTasks
from onward.client.wire import Wire
from onward.core.errors import OnwardError
from onward.core.outcome import Failed, Succeeded
from onward.core.task import Fault, unknown_service
from onward.services.function import Service
from onward.workers.streams.dialects import Fields, StreamProtocol

log = logging.getLogger("onward.worker")

BLOCK_MS = 1_000  # a drain waits for the read that is under way: what it brings must go back
CALL_S = 10.0
FIRST_FENCE = 1  # under which the server adopts an entry of somebody who gives none
ADOPTED_S = 30.0  # until when it should have
LOOK_S = 1.0  # how often a running task looks whether it should stop
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
HANDED_BACK_MS = (
    86_400_000  # the silence that a returned entry is given, so that it is seen at once
)

WORDS = StreamProtocol()

# KEYS stream, cancel key of each entry · ARGV group, consumer, entries → a word each
_BEAT = """
local words = {}
for at = 3, #ARGV do
  local owner = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[at], ARGV[at], 1)[1]
  if not owner or owner[2] ~= ARGV[2] then words[#words + 1] = 'LOST'
  else
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[at], 'JUSTID')
    words[#words + 1] = redis.call('EXISTS', KEYS[at - 1]) == 1 and 'CANCEL' or 'OK'
  end
end
return words
"""

# KEYS stream, where the answer goes · ARGV group, consumer, entry, the answer → was it ours
_SETTLE = """#!lua flags=allow-oom
local owner = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)[1]
if not owner or owner[2] ~= ARGV[2] then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 4))
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
return 1
"""

# KEYS stream · ARGV group, consumer, heir, silence: the heir has all that it held; its name goes
_LEAVE = """
local from = '-'
while true do
  local mine = redis.call('XPENDING', KEYS[1], ARGV[1], from, '+', 100, ARGV[2])
  for _, entry in ipairs(mine) do
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, entry[1], 'IDLE', ARGV[4], 'JUSTID')
    from = '(' .. entry[1]
  end
  if #mine < 100 then break end
end
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
end
"""


class HeldEntry:
    """An entry that is ours as far as we know."""

    def __init__(self, entry: str, task: str, execution: Execution) -> None:
        self.entry = entry
        self.task = task
        self.execution = execution
        self.cancel_key = WORDS.cancel_key(task, execution.context.fence)
        self.heard_at = monotonic()  # when the server last took us for its owner


class StreamTransport:
    def __init__(
        self,
        url: str,
        registration: frames.Register,
        services: Mapping[str | None, Service],
        *,
        wire: Wire | None,
        threads: Threads,
    ) -> None:
        if None in services:
            raise ValueError("a worker group is served over a socket; over streams, services only")
        if len(registration.services) > len(services):
            raise ValueError(
                "over streams there is one stream for all services; queues need a socket"
            )
        self._services = services
        self._registration = registration
        self._wire = wire
        self._running = RunningTasks(threads)
        self._slots = registration.concurrency
        # A name of this life alone: what an earlier one left behind is not ours.
        self._name = f"{registration.worker_id}:{os.urandom(4).hex()}"
        self._calls = _connect(url, CALL_S)
        self._reading = _connect(url, None)
        self._visibility_s = float(os.environ.get("VISIBILITY_TIMEOUT_S") or 300)
        heartbeat_s = float(os.environ.get("HEARTBEAT_INTERVAL_S") or 30)
        self._beat_s = min(heartbeat_s, self._visibility_s / 3)
        self._taken: dict[str, HeldEntry] = {}
        self._draining = False
        self._reader: asyncio.Task[None] | None = None
        self.connected = False
        self._known = False  # whether we were ever let in

    # What handlers ask of the line that brought their task.

    @property
    def wire(self) -> Wire:
        if self._wire is None:
            raise ServerNeeded
        return self._wire

    async def send(self, frame: frames.Frame) -> None:
        """Progress and parts, to whoever follows; the stream has no words for them."""
        if self._wire is None:
            return
        said: dict[str, Any]
        match frame:
            case frames.Progress(task_id=task):
                path, said = "progress", {"progress": frame.progress, "message": frame.message}
            case frames.Chunk(task_id=task):
                path, said = "chunks", {"data": frame.data}
            case _:
                return
        for taken in self._taken.values():
            if taken.task == task and not taken.execution.context.lost:
                said["fence"] = taken.execution.context.fence
        request = self._wire.request(
            "POST", f"/api/v2/tasks/{quote(task, safe='')}/{path}", body=said
        )
        try:
            await self._wire.tell(request)
        except (Unreachable, ProblemError) as error:
            log.debug("%s of %s not told: %s", path, task, error)

    # Serving.

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        beating = loop.create_task(self._beat())
        self._reader = loop.create_task(self._read_on())
        try:
            await self._declare()
            await self._reader
            await beating
        finally:
            self._reader.cancel()
            beating.cancel()
            await asyncio.wait({self._reader, beating})
            await self._running.drop()
            await self._calls.aclose()
            await self._reading.aclose()

    async def drain(self, grace_ms: int) -> None:
        """Finish what runs; what does not finish in time is handed back, and our name with it."""
        self._draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_ms / 1000):
                if self._reader is not None:
                    await asyncio.wait({self._reader})
                await self._running.all_over()
        if self._reader is not None and not self._reader.done():
            await asyncio.wait({self._reader}, timeout=2 * BLOCK_MS / 1000)
        if len(self._running):
            log.warning("time is over: %d running tasks are handed back", len(self._running))
        self._running.lose(taken.execution for taken in self._taken.values())
        self._taken.clear()
        if not self._known:
            return
        try:
            arguments = (WORDS.group, self._name, WORDS.released, str(HANDED_BACK_MS))
            await self._calls.eval(_LEAVE, 1, WORDS.tasks, *arguments)
        except (RedisError, OSError) as error:  # then they are taken back for our silence
            log.warning("nothing could be handed back (%s)", error)

    async def _declare(self) -> None:
        """Say what we can do, so that its tasks find their way to the stream."""
        if self._wire is None:
            return
        for service in self._registration.declare:
            body = {**service, "via": "streams"}
            try:
                await self._wire.tell(
                    self._wire.request("POST", "/api/v2/services", body=body, by="worker")
                )
            except OnwardError as error:
                log.warning("%s is not declared: %s", service["name"], error)
                return

    async def _read_on(self) -> None:
        pause, start = FIRST_PAUSE_S, ">"
        while not self._draining:
            try:
                if not self.connected:
                    await self._arrive()
                if len(self._running) >= self._slots:
                    await self._running.one_over()
                    continue
                start = await self._read(start)
                pause = FIRST_PAUSE_S
            except (RedisError, OSError) as error:
                # Who was let in before may be so again: passwords are changed one by one.
                if not self._known and _refused(error):
                    raise NotAdmitted(str(error)) from error
                # The reply may have been lost with the connection: look at what is ours already.
                self.connected, start = False, "0"
                log.warning("no Redis (%s); trying again in %.1f s", error, pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _arrive(self) -> None:
        try:
            await self._calls.xgroup_create(WORDS.tasks, WORDS.group, id="0", mkstream=True)
        except RedisError as error:
            if "BUSYGROUP" not in str(error):
                raise
        names = ", ".join(service.name for service in self._services.values())
        log.info("reading %s as %s, serving %s", WORDS.tasks, self._name, names)
        self.connected = self._known = True

    async def _read(self, start: str) -> str:
        """Take as many as there are free hands; returns where to read on."""
        streams: dict[Any, Any] = {WORDS.tasks: start}
        free = self._slots - len(self._running)
        reply: Any = await self._reading.xreadgroup(
            WORDS.group, self._name, streams, count=free, block=BLOCK_MS
        )
        rows = [row for _, rows in reply or () for row in rows]
        for entry, fields in rows:
            if _text(entry) not in self._taken:
                await self._take(_text(entry), _fields(fields))
        return ">" if start == ">" or not rows else _text(rows[-1][0])

    async def _take(self, entry: str, fields: Fields) -> None:
        task = fields.get("task_id")
        if not task:
            await self._bury(entry, fields)
            return
        if self._draining:
            return  # it goes back with the rest
        name = fields.get("tool_name", "")
        service = self._services.get(name)
        if service is None:
            fault = unknown_service(name)
            log.warning("task %s goes back: %s", task, fault.message)
            answer = {**self._answer(fields, Failed(fault)), "released": "true"}
            await self._settle(entry, WORDS.results, answer)
            return
        context = TaskContext(
            _frame(task, fields), self, unknown_s=0 if "fence" in fields else ADOPTED_S
        )
        execution = Execution(service, context)
        taken = self._taken[entry] = HeldEntry(entry, task, execution)

        async def tell(ended: Ended) -> None:
            answer = self._answer(fields, ended)
            if sum(map(len, answer.values())) > frames.LARGEST:
                fault = Fault(kind="ResultTooLarge", message="too large to send", retryable=False)
                answer = self._answer(fields, Failed(fault))
            if not await self._settle_surely(taken, answer):
                log.info("task %s was taken back; what came of it is dropped", task)

        self._running.begin(execution, fields.get("payload", "null"), tell)
        assert execution.job is not None  # noqa: S101 begun just now
        execution.job.add_done_callback(lambda _: self._taken.pop(entry, None))

    # Answering.

    def _answer(self, fields: Fields, ended: Ended) -> dict[str, str]:
        answer = {
            "task_id": fields["task_id"],
            "worker": self._name,
            "finished_at": str(time.time_ns() // 1_000_000),
        }
        if "fence" in fields:
            answer["fence"] = fields["fence"]
        match ended:
            case Succeeded(result):
                return {**answer, "status": "succeeded", "result": result}
            case Failed(fault):
                said = {"status": "failed", "error": fault.message, "error_type": fault.kind}
                if fault.kind == "SchemaInvalid":
                    said["retryable"] = "false"
                elif fault.retryable is not None:
                    said["retryable"] = "true" if fault.retryable else "false"
                if fault.retry_after_ms is not None:
                    said["retry_after_ms"] = str(fault.retry_after_ms)
                return {**answer, **said}

    async def _settle_surely(self, taken: HeldEntry, answer: Mapping[str, str]) -> bool:
        """Again while it may still be ours: one that did get through is refused the second time."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                return await self._settle(taken.entry, WORDS.results, answer)
            except (RedisError, OSError) as error:
                if monotonic() - taken.heard_at > self._visibility_s:
                    raise
                log.warning("not answered yet (%s)", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _settle(self, entry: str, stream: str, answer: Mapping[str, str]) -> bool:
        """Answer and acknowledge in one step, or neither; False: it is somebody else's by now."""
        flat = [part for pair in answer.items() for part in pair]
        keys = (WORDS.tasks, stream)
        done = await self._calls.eval(_SETTLE, 2, *keys, WORDS.group, self._name, entry, *flat)
        return bool(done)

    async def _bury(self, entry: str, fields: Fields) -> None:
        """An entry without a task: nobody can be answered, but somebody should know."""
        letter = {
            "task_id": "",
            "tool_name": fields.get("tool_name", ""),
            "payload": fields.get("payload", ""),
            "error": "an entry without task_id",
            "retry_count": fields.get("retry_count", "0"),
            "failed_at": str(time.time_ns() // 1_000_000),
        }
        log.warning("entry %s names no task", entry)
        await self._settle(entry, WORDS.dead, letter)

    # Staying the owner.

    async def _beat(self) -> None:
        beaten = monotonic()
        while True:
            await asyncio.sleep(min(LOOK_S, self._beat_s))
            held = list(self._taken.values())
            if not held:
                continue
            try:
                if monotonic() - beaten >= self._beat_s or _newest(held) > beaten:
                    await self._renew(held)
                    beaten = monotonic()
                else:
                    await self._look(held)
            except (RedisError, OSError) as error:
                log.warning("no heartbeat (%s)", error)
                self._lose_silent(held)

    async def _renew(self, held: list[HeldEntry]) -> None:
        began = monotonic()
        keys = [WORDS.tasks, *(taken.cancel_key for taken in held)]
        entries = [taken.entry for taken in held]
        words = await self._calls.eval(_BEAT, len(keys), *keys, WORDS.group, self._name, *entries)
        for taken, word in zip(held, words, strict=True):
            if word == b"LOST":
                self._lose(taken)
                continue
            taken.heard_at = began
            if word == b"CANCEL":
                _cancel(taken)

    async def _look(self, held: list[HeldEntry]) -> None:
        asked = await self._calls.mget([taken.cancel_key for taken in held])
        for taken, word in zip(held, asked, strict=True):
            if word is not None:
                _cancel(taken)

    def _lose_silent(self, held: list[HeldEntry]) -> None:
        # By now it has been given to somebody else; what we would still do, they do as well.
        for taken in held:
            if monotonic() - taken.heard_at > self._visibility_s:
                self._lose(taken)

    def _lose(self, taken: HeldEntry) -> None:
        if self._taken.pop(taken.entry, None) is not None:
            log.info("task %s is in other hands", taken.task)
            taken.execution.lose()


def _newest(held: list[HeldEntry]) -> float:
    return max(taken.heard_at for taken in held)


def _cancel(taken: HeldEntry) -> None:
    if not taken.execution.context.cancelled:
        taken.execution.cancel()


def _frame(task: str, fields: Fields) -> frames.Task:
    return frames.Task(
        task_id=task,
        payload=msgspec.Raw(fields.get("payload", "null").encode()),
        attempt=_number(fields.get("attempt", ""), 1),
        fence=_number(fields.get("fence", ""), FIRST_FENCE),
        key=fields.get("idempotency_key") or None,
        traceparent=fields.get("traceparent"),
    )


def _connect(url: str, timeout_s: float | None) -> Redis:
    # redis-py would try a write whose reply was lost again; what is unknown is asked for instead.
    return Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=CALL_S,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )


def _refused(error: BaseException) -> bool:
    refusals = (AuthenticationError, NoPermissionError)
    # On a unix socket redis-py makes a broken connection of it.
    return isinstance(error, refusals) or isinstance(error.__cause__, refusals)


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() else otherwise


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _fields(raw: Mapping[Any, Any] | None) -> Fields:
    return {_text(name): _text(value) for name, value in (raw or {}).items()}
