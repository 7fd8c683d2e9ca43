"""A worker on Redis streams: reads, beats and answers, with an owner check on every step.

Which streams and groups, and what an entry and an answer look like, is in stream_dialects.py; the
key `onward:cancel:{task}:{fence}` says that an attempt should stop. After a silence an entry may be
given to another worker at any moment; XACK and XCLAIM do not check the owner, so a script does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
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
from onward.client.stream_dialects import ResultEntry, StreamPlace, StreamWords
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
from onward.wire.streams import RELEASED, Fields, cancel_key, fields_of, text_of

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

    def __init__(self, place: StreamPlace, entry: str, task: str, execution: Execution) -> None:
        self.place = place
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
        words: StreamWords,
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
        self._words = words
        self._places = list(words.places)
        self._starts = dict.fromkeys(words.places, ">")  # where to read on in each
        self._seen: dict[Any, Any] = {}  # by stream, up to where news were waited for
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
        self._held: dict[tuple[StreamPlace, str], HeldEntry] = {}
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
                await declare_services(self._api, self._services, via=self._words.via)
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
            for place in self._places:
                arguments = (place.group, self._name, RELEASED, str(HANDED_BACK_MS))
                await self._calls.eval(_LEAVE, 1, place.stream, *arguments)
        except (RedisError, OSError) as error:  # then the server reclaims them for our silence
            log.warning("nothing could be handed back (%s)", error)

    async def _read_on(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._draining:
            try:
                if not self.connected:
                    await self._arrive()
                if len(self._running) >= self._slots:
                    await self._running.one_over()
                    continue
                await self._read()
                pause = FIRST_PAUSE_S
            except (RedisError, OSError) as error:
                # After a first success it is retried: passwords are changed on one side first.
                if not self._admitted and _refused(error):
                    raise NotAdmitted(str(error)) from error
                # The reply may have been lost with the connection: read our pending entries first.
                self.connected = False
                self._starts = dict.fromkeys(self._places, "0")
                log.warning("no Redis (%s); trying again in %.1f s", error, pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _arrive(self) -> None:
        for stream, group, _ in self._places:
            try:
                await self._calls.xgroup_create(stream, group, id="0", mkstream=True)
            except RedisError as error:
                if "BUSYGROUP" not in str(error):
                    raise
            if len(self._places) > 1:
                about = await self._calls.xinfo_stream(stream)
                self._seen[stream] = about["last-generated-id"]
        streams = ", ".join(dict.fromkeys(place.stream for place in self._places))
        names = ", ".join(service.name for service in self._services.values())
        log.info("reading %s as %s, serving %s", streams, self._name, names)
        self.connected = self._admitted = True

    async def _read(self) -> None:
        """Takes as many entries as there are free slots; waits for news if there are none."""
        alone = len(self._places) == 1
        found = False
        for place in list(self._places):
            free = self._slots - len(self._running)
            if free == 0:
                return
            reply: Any = await self._reading.xreadgroup(
                place.group,
                self._name,
                {place.stream: self._starts[place]},
                count=free,
                block=BLOCK_MS if alone else None,
            )
            rows = [row for _, rows in reply or () for row in rows]
            for entry, fields in rows:
                if (place, text_of(entry)) not in self._held:
                    await self._take(place, text_of(entry), fields_of(fields))
            if rows:
                # The next look begins with the others: none waits behind one that is never empty.
                self._places.remove(place)
                self._places.append(place)
            found |= bool(rows) or self._starts[place] != ">"
            if self._starts[place] != ">":
                self._starts[place] = text_of(rows[-1][0]) if rows else ">"
        if not found and not alone:
            await self._wait_for_news()

    async def _wait_for_news(self) -> None:
        # A read in a group can wait for one group alone. This one takes nothing, it only wakes.
        reply: Any = await self._reading.xread(self._seen, count=1, block=BLOCK_MS)
        for stream, rows in reply or ():
            self._seen[text_of(stream)] = rows[-1][0]

    async def _take(self, place: StreamPlace, entry: str, raw: Fields) -> None:
        fields = self._words.opened(raw)
        task = fields.get("task_id")
        if not task:
            log.warning("entry %s has no task_id", entry)
            await self._settle(place, entry, self._words.nameless(fields))
            return
        if self._draining:
            return  # it is handed back with the others
        name = fields.get("tool_name", "")
        service = self._services.get(name) if place.service in (None, name) else None
        if service is None:
            fault = unknown_service(name)
            back = self._words.unserved(fields, fault, self._name)
            if back is not None:
                log.warning("task %s goes back: %s", task, fault.message)
            await self._settle(place, entry, back)
            return
        context = TaskContext(
            _frame(task, fields), self, unknown_s=0 if "fence" in fields else ADOPTED_S
        )
        execution = Execution(service, context)
        one = self._held[place, entry] = HeldEntry(place, entry, task, execution)
        began = monotonic()

        async def answer_with(ended: Ended) -> None:
            took_ms = int((monotonic() - began) * 1000)
            answer = self._words.answer(fields, ended, self._name, took_ms)
            if sum(map(len, answer.fields.values())) > LARGEST:
                fault = Fault(kind="ResultTooLarge", message="too large to send", retryable=False)
                answer = self._words.answer(fields, fault, self._name, took_ms)
            if not await self._settle_surely(one, answer):
                log.info("task %s was taken back; its outcome is dropped", task)

        self._running.begin(execution, fields.get("payload", "null"), answer_with)
        assert execution.job is not None  # noqa: S101 set by begin()
        execution.job.add_done_callback(lambda _: self._held.pop((place, entry), None))

    # Answering.

    async def _settle_surely(self, one: HeldEntry, answer: ResultEntry) -> bool:
        """Tries again while it may be ours: if the first try was applied, the next is refused."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                return await self._settle(one.place, one.entry, answer)
            except (RedisError, OSError) as error:
                if monotonic() - one.owned_at > self._visibility_s:
                    raise
                log.warning("not answered yet (%s)", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _settle(self, place: StreamPlace, entry: str, answer: ResultEntry | None) -> bool:
        """Answers and acknowledges in one step, or neither; False: another worker has it by now."""
        if answer is None:
            return bool(await self._calls.xack(place.stream, place.group, entry))
        flat = [part for pair in answer.fields.items() for part in pair]
        keys = (place.stream, answer.stream)
        done = await self._calls.eval(_SETTLE, 2, *keys, place.group, self._name, entry, *flat)
        return bool(done)

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
        for place in self._places:
            here = [one for one in held if one.place == place]
            if here:
                await self._renew_at(place, here)

    async def _renew_at(self, place: StreamPlace, held: list[HeldEntry]) -> None:
        began = monotonic()
        keys = [place.stream, *(one.cancel_key for one in held)]
        entries = [one.entry for one in held]
        replies = await self._calls.eval(_BEAT, len(keys), *keys, place.group, self._name, *entries)
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
        if self._held.pop((one.place, one.entry), None) is not None:
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
