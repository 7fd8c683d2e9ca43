"""The agents' streams and keys (S2-2, S2-5): what became of a session's task, told on Redis.

Reads the event log and writes what agents read: ends, timeouts and dead letters on the streams,
notices on each session's own, and keys for looking up. Decides which events are worth telling; an
end that a service told itself is not told again. Never changes a task. Told at least once: an event
told twice has the same id, and within MARKED_S it is not told twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.tail import KIND as CURSORS
from onward.core.tail import Tail
from onward.core.task import (
    FINAL,
    FINAL_EVENTS,
    Event,
    Fault,
    Instant,
    Json,
    State,
    Task,
    TaskId,
    encode,
    fault_of,
)
from onward.surfaces.agents.notices import TYPES as NOTICED
from onward.surfaces.agents.notices import Noticing, notice_of
from onward.surfaces.console.shapes import PRIORITY_WORDS
from onward.surfaces.vocabulary import AGENTS, phase
from onward.surfaces.wire import iso
from onward.workers.agent_dialect import (
    ANSWERED,
    COMPLETED,
    CREATE,
    DEAD,
    FAILED,
    ORIGIN,
    TIMEOUT,
    AgentProtocol,
    envelope,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline

log = structlog.get_logger("onward.agents")

DAY_S = 24 * 3600
LIVE_S = 30 * DAY_S  # keys of tasks that are not over; their end sets a nearer one
NOTICES_S = 7 * DAY_S
MOST_NOTICES = 1_000
MARKED_S = 600
AGAIN_S = 1.0
QUEUE = AgentProtocol.queue
CANCELED = Fault(kind="CANCELED", message="the task was canceled")

_TOLD = FINAL_EVENTS | {"task.timeout", "task.dlq"}
_QUIET = frozenset({"task.progress", "task.chunk", ANSWERED})

# Both or neither. ARGV: the marker's seconds, the most entries and the stream's seconds (0: as it
# is), then the fields.
_TELL = """
if not redis.call('SET', KEYS[2], 1, 'NX', 'EX', ARGV[1]) then return end
if ARGV[2] == '0' then redis.call('XADD', KEYS[1], '*', unpack(ARGV, 4))
else redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', unpack(ARGV, 4)) end
if ARGV[3] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
"""


class AgentStreams:
    """The projector."""

    name = "agent-streams"

    def __init__(
        self, backend: Backend, redis: Redis, clock: Clock, *, prefix: str, ledger_keys: bool
    ) -> None:
        self._backend = backend
        self._store = backend.tasks
        self._redis = redis
        self._clock = clock
        self._prefix = prefix
        self._ledger_keys = ledger_keys  # a Redis ledger: its hash of a task has this very name

    async def run(self) -> None:
        """Once there is anybody to tell: until then nobody reads the log for nobody."""
        since = ""
        while True:
            try:
                if await self._cursor(self.name):
                    break
                end = (await self._store.events(after="$", limit=1)).next or ""
                if await self._wanted():
                    await self._backend.documents.put(
                        CURSORS, self.name, encode(since), now=self._clock.now(), expect=0
                    )
                    break
                since = end  # nobody was there yet when the log ended here
            except Exception as error:
                log.warning("agents' streams wait", error=repr(error))
            await asyncio.sleep(AGAIN_S)
        await Tail(self._backend, self, self._clock).run()

    async def _wanted(self) -> bool:
        """A session was seen, or somebody uses the stream."""
        if await self._cursor(Noticing.name):
            return True
        if not await self._redis.exists(CREATE):
            return False
        if await self._redis.xlen(CREATE):
            return True
        groups = [_text(group["name"]) for group in await self._redis.xinfo_groups(CREATE)]
        return any(AgentProtocol().serves(group) for group in groups)

    async def _cursor(self, projector: str) -> bool:
        found = await self._backend.documents.get(CURSORS, projector, now=self._clock.now())
        return found is not None

    # Projecting.

    async def project(self, events: Sequence[Event]) -> None:
        told_since = self._clock.now() - DAY_S * 1000
        news = [event for event in events if event.at > told_since and self._tells(event)]
        if not news:
            return
        ids = list(dict.fromkeys(event.task for event in news))
        tasks = {
            task.id: task
            for task in await self._store.get(ids)
            if task is not None and (task.session is not None or task.queue == QUEUE)
        }
        if not tasks:
            return
        answered = await self._answered(events)
        pipe = self._redis.pipeline(transaction=False)
        for event in news:
            task = tasks.get(event.task)
            if task is None:
                continue
            if event.type in _TOLD:
                self._tell(pipe, task, event, answered=(task.id, event.n - 1) in answered)
            if task.session is not None and event.type in NOTICED:
                self._notify(pipe, task.session, task, event)
        for task in tasks.values():
            self._keep(pipe, task)
        await pipe.execute()

    def _tells(self, event: Event) -> bool:
        if self._ledger_keys:
            return event.type in _TOLD or event.type == "task.created"
        return event.type not in _QUIET

    async def _answered(self, events: Sequence[Event]) -> set[tuple[TaskId, int]]:
        """Ends that services told themselves: the note stands right before the end."""
        found = {(event.task, event.n) for event in events if event.type == ANSWERED}
        first = events[0]
        if first.type in FINAL_EVENTS:  # its note may have been the last of the batch before
            page = await self._store.events(after=str(first.n - 2), limit=1, task=first.task)
            found |= {(note.task, note.n) for note in page.items if note.type == ANSWERED}
        return found

    def _tell(self, pipe: Pipeline, task: Task, event: Event, *, answered: bool) -> None:
        which = f"{task.id}:{event.generation}:{event.n}"
        if event.type == "task.timeout":
            self._add(pipe, TIMEOUT, which, event.at, _late(task, event))
        elif event.type == "task.dlq":
            if task.generation == event.generation:  # else replayed since: no dead letter any more
                self._add(pipe, DEAD, which, event.at, _letter(task, event))
        elif answered:
            return
        elif event.type == "task.succeeded":
            self._add(pipe, COMPLETED, which, event.at, _completed(task, event))
        else:
            self._add(pipe, FAILED, which, event.at, _failed(task, event))

    def _add(
        self, pipe: Pipeline, stream: str, which: str, at: Instant, data: Mapping[str, Any]
    ) -> None:
        fields = envelope(stream, which, at, {**data, "origin": ORIGIN})
        self._once(pipe, stream, fields)

    def _notify(self, pipe: Pipeline, session: str, task: Task, event: Event) -> None:
        notice = notice_of(task, event)
        fields = {
            "event_id": notice.notification_id,
            "event_type": notice.type,
            "timestamp": notice.timestamp,
            "data": encode(notice),
        }
        stream = f"user:stream:notifications:{session}"
        self._once(pipe, stream, fields, most=MOST_NOTICES, seconds=NOTICES_S)

    def _once(
        self,
        pipe: Pipeline,
        stream: str,
        fields: Mapping[str, str],
        *,
        most: int = 0,
        seconds: int = 0,
    ) -> None:
        marker = f"{self._prefix}onward:told:{fields['event_id']}"
        flat = [part for pair in fields.items() for part in pair]
        _ = pipe.eval(_TELL, 2, stream, marker, str(MARKED_S), str(most), str(seconds), *flat)

    # Keys.

    def _keep(self, pipe: Pipeline, task: Task) -> None:
        over = task.state in FINAL
        seconds = DAY_S if over else LIVE_S
        key = f"{self._prefix}task:{task.id}"
        if task.session is not None:
            index = f"{self._prefix}session:{task.session}:tasks"
            _ = pipe.sadd(index, task.id)
            _ = pipe.expire(index, seconds)
        if not self._ledger_keys:
            _ = pipe.hset(key, mapping=_hash(task, self._clock.now()))
            _ = pipe.expire(key, seconds)
        if task.state is State.SUCCEEDED:
            cached = {"result": _raw(task.result), "cached_at": iso(self._clock.now())}
            _ = pipe.set(f"{key}:result", encode(cached), ex=DAY_S)


def _completed(task: Task, event: Event) -> Mapping[str, Any]:
    return {
        "task_id": task.id,
        "status": "success",
        "result": _raw(task.result),
        "duration_ms": _duration(task, event),
        "completed_by": task.worker or ORIGIN,
    }


def _failed(task: Task, event: Event) -> Mapping[str, Any]:
    return {
        "task_id": task.id,
        "status": "failed",
        "error": _error(_fault(event) or CANCELED),
        "duration_ms": _duration(task, event),
        "failed_by": task.worker or ORIGIN,
    }


def _late(task: Task, event: Event) -> Mapping[str, Any]:
    said: Any = msgspec.json.decode(event.data or "{}")
    elapsed_ms = int(said.get("elapsed_ms", event.at - task.created_at))
    limit_ms = int(said.get("timeout_ms", elapsed_ms))
    return {
        "task_id": task.id,
        "status": "timeout",
        "message": f"Task exceeded timeout of {limit_ms // 1000} seconds",
        "elapsed_ms": elapsed_ms,
    }


def _letter(task: Task, event: Event) -> Mapping[str, Any]:
    return {
        "task_id": task.id,
        "task_type": task.type,
        "params": _raw(task.payload),
        "session_id": task.session,
        "priority": PRIORITY_WORDS[task.priority],
        "status": "failed",
        "error": _error(fault_of(task.error) or CANCELED),
        "attempts": task.attempt,
        "failed_at": iso(event.at),
    }


def _hash(task: Task, now: Instant) -> dict[Any, Any]:
    """The agents' fields. JSON where a value has parts, an empty text where there is none."""
    fault = fault_of(task.error)
    limit = None if task.expires_at is None else (task.expires_at - task.created_at) // 1000
    return {
        "task_id": task.id,
        "task_type": task.type,
        "status": AGENTS[phase(task)],
        "session_id": task.session or "",
        "params": task.payload,
        "result": task.result or "null",
        "error": "null" if fault is None else encode(_error(fault)),
        "created_at": iso(task.created_at),
        "updated_at": iso(now),
        "completed_at": "" if task.finished_at is None else iso(task.finished_at),
        **({} if limit is None else {"timeout": str(limit)}),  # told, it is gone from the ledger
        "priority": PRIORITY_WORDS[task.priority],
    }


def _fault(event: Event) -> Fault | None:
    said: Any = msgspec.json.decode(event.data or "{}")
    return msgspec.convert(said["error"], Fault) if said.get("error") else None


def _error(fault: Fault) -> Mapping[str, Any]:
    return {"code": fault.kind, "message": fault.message, "details": fault.details or {}}


def _duration(task: Task, event: Event) -> int:
    began = task.started_at if task.generation == event.generation else None
    return max(0, event.at - (began or task.created_at))


def _raw(text: Json | None) -> msgspec.Raw:
    return msgspec.Raw((text or "null").encode())


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
