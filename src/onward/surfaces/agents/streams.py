"""The agents' streams and keys (S2-2, S2-5): what became of a session's task, told on Redis.

Reads the event log and writes what agents read: ends, timeouts and dead letters on the streams,
notices on each session's own, and keys for looking up. Decides which events are worth telling; an
end that a service told itself is not told again. Never changes a task. Told at least once: an event
told twice has the same id, and within MARKED_S it is not told twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.duty import Duty
from onward.core.readers import CURSORS, begin
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
from onward.core.troubles import Troubles
from onward.surfaces.agents.figures import duration_ms
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
NOTIFICATIONS = "user:stream:notifications"
MARKED_S = 600
MOST_FOLLOWED = 10_000
FIELDS = frozenset(Task.__struct_fields__)
AGAIN_S = 1.0
QUEUE = AgentProtocol.queue
AtRest = Callable[[TaskId, str, Json], str]  # task, field, text: as it may lie around
CANCELED = Fault(kind="CANCELED", message="the task was canceled")

_TOLD = FINAL_EVENTS | {"task.timeout", "task.dlq"}
_QUIET = frozenset({"task.progress", "task.chunk", ANSWERED})

# Both or neither. ARGV: the marker's seconds, the most entries and the stream's seconds (0: as it
# is), then the fields.
_TELL = """
if not redis.call('SET', KEYS[2], 1, 'NX', 'EX', ARGV[1]) then return 0 end
if ARGV[2] == '0' then redis.call('XADD', KEYS[1], '*', unpack(ARGV, 4))
else redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', unpack(ARGV, 4)) end
if ARGV[3] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return 1
"""


# A ledger's own hash of a task, with the agents' fields beside its own; one that is gone stays so.
_BESIDE = """
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], unpack(ARGV)) end
"""


class _Said(NamedTuple):
    place: int  # of the reply that tells whether it was new
    stream: str  # without the session's name, which is nobody's business
    id: str


class AgentStreams:
    """The projector."""

    name = "agent-streams"

    def __init__(
        self,
        backend: Backend,
        redis: Redis,
        clock: Clock,
        *,
        prefix: str,
        ledger_keys: bool,
        tally: Counter[tuple[str, str]] | None = None,
        at_rest: AtRest | None = None,
    ) -> None:
        self._backend = backend
        self._at_rest = at_rest  # None: what is kept may be read by whoever reads Redis
        self._store = backend.tasks
        self._redis = redis
        self._clock = clock
        self._prefix = prefix
        self._tally = Counter() if tally is None else tally
        self._ledger_keys = ledger_keys  # a Redis ledger: its hash of a task has this very name
        self._followed: dict[TaskId, None] = {}  # of a Redis ledger: whose every step is looked at

    async def run(self, troubles: Troubles, duty: Duty | None = None) -> None:
        """Once there is anybody to tell: until then nobody reads the log for nobody."""
        since = ""
        while True:
            try:
                if await self._cursor(self.name):
                    break
                end = (await self._store.events(after="$", limit=1)).next or ""
                if await self._wanted():
                    await begin(self._backend.documents, self.name, since, now=self._clock.now())
                    break
                since = end  # nobody was there yet when the log ended here
            except Exception as error:
                log.warning("agents' streams wait", error=repr(error))
            await asyncio.sleep(AGAIN_S)
        await Tail(self._backend, self, self._clock, duty=duty).run(troubles)

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
            for task in await self._store.look(ids)
            if task is not None and (task.session is not None or task.queue == QUEUE)
        }
        if not tasks:
            return
        self._follow(tasks.values())
        answered = await self._answered(events)
        pipe = self._redis.pipeline(transaction=False)
        said: list[_Said] = []
        for event in news:
            task = tasks.get(event.task)
            if task is None:
                continue
            if event.type in _TOLD:
                said += self._tell(pipe, task, event, answered=(task.id, event.n - 1) in answered)
            if task.session is not None and event.type in NOTICED:
                said.append(self._notify(pipe, task.session, task, event))
        for task in tasks.values():
            self._keep(pipe, task)
        done = await pipe.execute()
        for place, stream, id in said:
            if done[place]:  # else it was told before
                self._tally[stream, "published"] += 1
                log.debug("Event published", stream=stream, event_id=id)

    def _tells(self, event: Event) -> bool:
        if not self._ledger_keys or event.task in self._followed:
            return event.type not in _QUIET
        # There may be thousands of others in the same ledger, and each of these is read.
        return event.type in _TOLD or event.type in ("task.created", "task.replayed")

    def _follow(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self._followed.pop(task.id, None)
            if task.state not in FINAL:
                self._followed[task.id] = None
        while len(self._followed) > MOST_FOLLOWED:
            del self._followed[next(iter(self._followed))]

    async def _answered(self, events: Sequence[Event]) -> set[tuple[TaskId, int]]:
        """Ends that services told themselves: the note stands right before the end."""
        found = {(event.task, event.n) for event in events if event.type == ANSWERED}
        first = events[0]
        if first.type in FINAL_EVENTS:  # its note may have been the last of the batch before
            page = await self._store.events(after=str(first.n - 2), limit=1, task=first.task)
            found |= {(note.task, note.n) for note in page.items if note.type == ANSWERED}
        return found

    def _tell(self, pipe: Pipeline, task: Task, event: Event, *, answered: bool) -> Sequence[_Said]:
        which = f"{task.id}:{event.generation}:{event.n}"
        if event.type == "task.timeout":
            return [self._add(pipe, TIMEOUT, which, event.at, _late(task, event))]
        if event.type == "task.dlq":
            if task.generation != event.generation:  # replayed since: no dead letter any more
                return []
            return [self._add(pipe, DEAD, which, event.at, _letter(task, event))]
        if answered:
            return []
        if event.type == "task.succeeded":
            return [self._add(pipe, COMPLETED, which, event.at, _completed(task, event))]
        return [self._add(pipe, FAILED, which, event.at, _failed(task, event))]

    def _add(
        self, pipe: Pipeline, stream: str, which: str, at: Instant, data: Mapping[str, Any]
    ) -> _Said:
        fields = envelope(stream, which, at, {**data, "origin": ORIGIN})
        return _Said(self._once(pipe, stream, fields), stream, fields["event_id"])

    def _notify(self, pipe: Pipeline, session: str, task: Task, event: Event) -> _Said:
        notice = notice_of(task, event)
        fields = {
            "event_id": notice.notification_id,
            "event_type": notice.type,
            "timestamp": notice.timestamp,
            "data": encode(notice),
        }
        stream = f"{NOTIFICATIONS}:{session}"
        place = self._once(pipe, stream, fields, most=MOST_NOTICES, seconds=NOTICES_S)
        return _Said(place, NOTIFICATIONS, notice.notification_id)

    def _once(
        self,
        pipe: Pipeline,
        stream: str,
        fields: Mapping[str, str],
        *,
        most: int = 0,
        seconds: int = 0,
    ) -> int:
        """Its place among the replies."""
        marker = f"{self._prefix}onward:told:{fields['event_id']}"
        flat = [part for pair in fields.items() for part in pair]
        _ = pipe.eval(_TELL, 2, stream, marker, str(MARKED_S), str(most), str(seconds), *flat)
        return len(pipe) - 1

    # Keys.

    def _keep(self, pipe: Pipeline, task: Task) -> None:
        over, at_rest = task.state in FINAL, self._at_rest
        seconds = DAY_S if over else LIVE_S
        key = f"{self._prefix}task:{task.id}"
        if task.session is not None:
            index = f"{self._prefix}session:{task.session}:tasks"
            _ = pipe.sadd(index, task.id)
            _ = pipe.expire(index, seconds)
        fields = _hash(task, self._clock.now())
        if at_rest is not None:
            for name in ("params", "result", "error"):
                fields[name] = at_rest(task.id, name, fields[name])
        if self._ledger_keys:
            beside = [part for pair in fields.items() if pair[0] not in FIELDS for part in pair]
            _ = pipe.eval(_BESIDE, 1, key, *beside)
        else:
            _ = pipe.hset(key, mapping=fields)
            _ = pipe.expire(key, seconds)
        if task.state is State.SUCCEEDED:
            result: object = _raw(task.result)
            if at_rest is not None:
                result = at_rest(task.id, "result", task.result or "null")
            cached = {"result": result, "cached_at": iso(self._clock.now())}
            _ = pipe.set(f"{key}:result", encode(cached), ex=DAY_S)


def _completed(task: Task, event: Event) -> Mapping[str, Any]:
    return {
        "task_id": task.id,
        "status": "success",
        "result": _raw(task.result),
        "duration_ms": duration_ms(task, event),
        "completed_by": task.worker or ORIGIN,
    }


def _failed(task: Task, event: Event) -> Mapping[str, Any]:
    return {
        "task_id": task.id,
        "status": "failed",
        "error": _error(_fault(event) or CANCELED),
        "duration_ms": duration_ms(task, event),
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


def _raw(text: Json | None) -> msgspec.Raw:
    return msgspec.Raw((text or "null").encode())


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
