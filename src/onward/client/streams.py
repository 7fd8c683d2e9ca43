"""A worker on Redis streams: the task queue protocol, with an owner check on every step.

Keys: `stream:task` and its group `cg:workers` (read), `stream:result` (answers), `stream:dlq`
(entries without a task), `onward:cancel:{task}:{fence}` (the attempt should stop). After a silence
an entry may be given to another worker at any moment; XACK and XCLAIM do not check the owner, so a
script does.
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

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from onward.client.api import ServerApi
from onward.client.errors import NotAdmitted, ServerNeeded
from onward.client.execution import Ended, Execution, RunningTasks
from onward.client.reporting import declare_services, post_note
from onward.client.service import Service
from onward.client.task_context import TaskContext
from onward.faults import Fault, unknown_service
from onward.wire.frames import (
    LARGEST,
    ChunkFrame,
    LogFrame,
    ProgressFrame,
    RegisterFrame,
    SocketFrame,
    TaskFrame,
)
from onward.wire.streams import (
    DEAD_LETTERS,
    RELEASED,
    RESULTS,
    TASKS,
    WORKERS_GROUP,
    Fields,
    cancel_key,
    fields_of,
    text_of,
)

log = logging.getLogger("onward.worker")

BLOCK_MS = 1_000  # a drain waits for the read that is under way: its entries must be handed back
CALL_S = 10.0
FIRST_FENCE = 1  # under which the server adopts an entry that has none
ADOPTED_S = 30.0  # by when it has adopted it
LOOK_S = 1.0  # between two looks at the cancel keys of running tasks
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
HANDED_BACK_MS = 86_400_000  # the idle time of a returned entry, so that the server sees it at once

# KEYS stream, cancel key of each entry · ARGV group, consumer, entries → LOST, OK or CANCEL of each
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

# KEYS stream, stream of answers · ARGV group, consumer, entry, the answer → 1 if it was ours
_SETTLE = """#!lua flags=allow-oom
local owner = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)[1]
if not owner or owner[2] ~= ARGV[2] then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 4))
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
return 1
"""

# KEYS stream · ARGV group, consumer, heir, idle time: the heir gets its entries, its name goes
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
    """An entry that is ours as far as this worker knows."""

    def __init__(self, entry: str, task: str, execution: Execution) -> None:
        self.entry = entry
        self.task = task
        self.execution = execution
        self.cancel_key = cancel_key(task, execution.context.fence)
        self.owned_at = monotonic()  # when Redis last confirmed that it is ours


class StreamTransport:
    def __init__(
        self,
        url: str,
        registration: RegisterFrame,
        services: Mapping[str | None, Service],
        *,
        api: ServerApi | None,
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
        self._api = api
        self._running = RunningTasks(threads)
        self._slots = registration.concurrency
        # A new name each time: entries of an earlier process with this id are not ours.
        self._name = f"{registration.worker_id}:{os.urandom(4).hex()}"
        self._calls = _connect(url, CALL_S)
        self._reading = _connect(url, None)
        self._visibility_s = float(os.environ.get("VISIBILITY_TIMEOUT_S") or 300)
        heartbeat_s = float(os.environ.get("HEARTBEAT_INTERVAL_S") or 30)
        self._beat_s = min(heartbeat_s, self._visibility_s / 3)
        self._held: dict[str, HeldEntry] = {}
        self._draining = False
        self._reader: asyncio.Task[None] | None = None
        self.connected = False
        self._admitted = False  # whether Redis has ever accepted our credentials

    # What TaskContext needs of the transport.

    @property
    def keeps_logs(self) -> bool:
        return self._api is not None

    @property
    def api(self) -> ServerApi:
        if self._api is None:
            raise ServerNeeded
        return self._api

    async def send(self, frame: SocketFrame) -> None:
        """Progress and chunks go to the server: the streams have no entries for them."""
        if self._api is None or not isinstance(frame, ProgressFrame | ChunkFrame | LogFrame):
            return
        contexts = [held.execution.context for held in self._held.values()]
        fences = [one.fence for one in contexts if one.task_id == frame.task_id and not one.lost]
        await post_note(self._api, frame, fences[-1] if fences else None)

    # Serving.

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        beating = loop.create_task(self._beat())
        self._reader = loop.create_task(self._read_on())
        try:
            if self._api is not None:
                await declare_services(self._api, self._services, via="streams")
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
        """Finishes what runs; hands back what does not finish in time, and removes our name."""
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
        self._running.lose(one.execution for one in self._held.values())
        self._held.clear()
        if not self._admitted:
            return
        try:
            arguments = (WORKERS_GROUP, self._name, RELEASED, str(HANDED_BACK_MS))
            await self._calls.eval(_LEAVE, 1, TASKS, *arguments)
        except (RedisError, OSError) as error:  # then the server reclaims them for our silence
            log.warning("nothing could be handed back (%s)", error)

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
                # After a first success it is retried: passwords are changed on one side first.
                if not self._admitted and _refused(error):
                    raise NotAdmitted(str(error)) from error
                # The reply may have been lost with the connection: read our pending entries first.
                self.connected, start = False, "0"
                log.warning("no Redis (%s); trying again in %.1f s", error, pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _arrive(self) -> None:
        try:
            await self._calls.xgroup_create(TASKS, WORKERS_GROUP, id="0", mkstream=True)
        except RedisError as error:
            if "BUSYGROUP" not in str(error):
                raise
        names = ", ".join(service.name for service in self._services.values())
        log.info("reading %s as %s, serving %s", TASKS, self._name, names)
        self.connected = self._admitted = True

    async def _read(self, start: str) -> str:
        """Takes as many entries as there are free slots; returns where to read on."""
        streams: dict[Any, Any] = {TASKS: start}
        free = self._slots - len(self._running)
        reply: Any = await self._reading.xreadgroup(
            WORKERS_GROUP, self._name, streams, count=free, block=BLOCK_MS
        )
        rows = [row for _, rows in reply or () for row in rows]
        for entry, fields in rows:
            if text_of(entry) not in self._held:
                await self._take(text_of(entry), fields_of(fields))
        return ">" if start == ">" or not rows else text_of(rows[-1][0])

    async def _take(self, entry: str, fields: Fields) -> None:
        task = fields.get("task_id")
        if not task:
            await self._write_dead_letter(entry, fields)
            return
        if self._draining:
            return  # it is handed back with the others
        name = fields.get("tool_name", "")
        service = self._services.get(name)
        if service is None:
            fault = unknown_service(name)
            log.warning("task %s goes back: %s", task, fault.message)
            answer = {**self._answer(fields, fault), "released": "true"}
            await self._settle(entry, RESULTS, answer)
            return
        context = TaskContext(
            _frame(task, fields), self, unknown_s=0 if "fence" in fields else ADOPTED_S
        )
        execution = Execution(service, context)
        one = self._held[entry] = HeldEntry(entry, task, execution)

        async def answer_with(ended: Ended) -> None:
            answer = self._answer(fields, ended)
            if sum(map(len, answer.values())) > LARGEST:
                fault = Fault(kind="ResultTooLarge", message="too large to send", retryable=False)
                answer = self._answer(fields, fault)
            if not await self._settle_surely(one, answer):
                log.info("task %s was taken back; its outcome is dropped", task)

        self._running.begin(execution, fields.get("payload", "null"), answer_with)
        assert execution.job is not None  # noqa: S101 set by begin()
        execution.job.add_done_callback(lambda _: self._held.pop(entry, None))

    # Answering.

    def _answer(self, fields: Fields, ended: Ended) -> dict[str, str]:
        answer = {
            "task_id": fields["task_id"],
            "worker": self._name,
            "finished_at": str(time.time_ns() // 1_000_000),
        }
        if "fence" in fields:
            answer["fence"] = fields["fence"]
        if isinstance(ended, str):
            return {**answer, "status": "succeeded", "result": ended}
        answer |= {"status": "failed", "error": ended.message, "error_type": ended.kind}
        if ended.kind == "SchemaInvalid":
            answer["retryable"] = "false"
        elif ended.retryable is not None:
            answer["retryable"] = "true" if ended.retryable else "false"
        if ended.retry_after_ms is not None:
            answer["retry_after_ms"] = str(ended.retry_after_ms)
        return answer

    async def _settle_surely(self, one: HeldEntry, answer: Mapping[str, str]) -> bool:
        """Tries again while it may be ours: if the first try was applied, the next is refused."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                return await self._settle(one.entry, RESULTS, answer)
            except (RedisError, OSError) as error:
                if monotonic() - one.owned_at > self._visibility_s:
                    raise
                log.warning("not answered yet (%s)", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _settle(self, entry: str, stream: str, answer: Mapping[str, str]) -> bool:
        """Answers and acknowledges in one step, or neither; False: another worker has it by now."""
        flat = [part for pair in answer.items() for part in pair]
        keys = (TASKS, stream)
        done = await self._calls.eval(_SETTLE, 2, *keys, WORKERS_GROUP, self._name, entry, *flat)
        return bool(done)

    async def _write_dead_letter(self, entry: str, fields: Fields) -> None:
        """An entry without a task has no answer; a dead letter shows it to a person."""
        letter = {
            "task_id": "",
            "tool_name": fields.get("tool_name", ""),
            "payload": fields.get("payload", ""),
            "error": "an entry without task_id",
            "retry_count": fields.get("retry_count", "0"),
            "failed_at": str(time.time_ns() // 1_000_000),
        }
        log.warning("entry %s has no task_id", entry)
        await self._settle(entry, DEAD_LETTERS, letter)

    # Staying the owner.

    async def _beat(self) -> None:
        beaten = monotonic()
        while True:
            await asyncio.sleep(min(LOOK_S, self._beat_s))
            held = list(self._held.values())
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
        keys = [TASKS, *(one.cancel_key for one in held)]
        entries = [one.entry for one in held]
        replies = await self._calls.eval(
            _BEAT, len(keys), *keys, WORKERS_GROUP, self._name, *entries
        )
        for one, reply in zip(held, replies, strict=True):
            if reply == b"LOST":
                self._lose(one)
                continue
            one.owned_at = began
            if reply == b"CANCEL":
                _cancel(one)

    async def _look(self, held: list[HeldEntry]) -> None:
        marks = await self._calls.mget([one.cancel_key for one in held])
        for one, mark in zip(held, marks, strict=True):
            if mark is not None:
                _cancel(one)

    def _lose_silent(self, held: list[HeldEntry]) -> None:
        # The server has reclaimed it by now: another worker does what this one would still do.
        for one in held:
            if monotonic() - one.owned_at > self._visibility_s:
                self._lose(one)

    def _lose(self, one: HeldEntry) -> None:
        if self._held.pop(one.entry, None) is not None:
            log.info("task %s belongs to another worker by now", one.task)
            one.execution.lose()


def _newest(held: list[HeldEntry]) -> float:
    return max(one.owned_at for one in held)


def _cancel(one: HeldEntry) -> None:
    if not one.execution.context.cancelled:
        one.execution.cancel()


def _frame(task: str, fields: Fields) -> TaskFrame:
    return TaskFrame(
        task_id=task,
        payload=msgspec.Raw(fields.get("payload", "null").encode()),
        attempt=_number(fields.get("attempt", ""), 1),
        fence=_number(fields.get("fence", ""), FIRST_FENCE),
        key=fields.get("idempotency_key") or None,
        traceparent=fields.get("traceparent"),
    )


def _connect(url: str, timeout_s: float | None) -> Redis:
    # redis-py would repeat a write whose reply was lost; this worker reads what is its own instead.
    return Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=CALL_S,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )


def _refused(error: BaseException) -> bool:
    refusals = (AuthenticationError, NoPermissionError)
    # On a unix socket redis-py raises it as a connection error.
    return isinstance(error, refusals) or isinstance(error.__cause__, refusals)


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() else otherwise
