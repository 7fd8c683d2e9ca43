"""The agents' streams (S2-2): what became of a session's task, on Redis.

Reads the event log and writes what agents read: ends, timeouts and dead letters on the streams, and
notifications on each session's own. Decides which events are written; an end that a service wrote
there itself is not written again. Never changes a task. Each is written at least once: a second
time has the same id, and is left out within MARKED_S.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.duty import Duty
from onward.core.readers import CURSORS, begin
from onward.core.tail import Tail
from onward.core.task import FINAL_EVENTS, Event, Instant, Task, TaskId, encode, fault_of
from onward.core.troubles import Troubles
from onward.doors.agents.view import CANCELED, error_of, raw, shown
from onward.faults import Fault
from onward.native.notifications.figures import duration_ms
from onward.native.notifications.notification import TYPES, notification_of, subjects_of
from onward.native.notifications.projector import NotificationProjector
from onward.native.views import PRIORITY_WORDS
from onward.services.catalog import Catalog
from onward.wire.streams import COMPLETED, CREATE, DEAD, FAILED, TIMEOUT
from onward.wire.times import iso
from onward.workers.streams.agent_dialect import (
    AGENT_STREAMS,
    ANSWERED,
    envelope,
)
from onward.workers.streams.dialects import ORIGIN, own_streams

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline

log = structlog.get_logger("onward.agents")

DAY_S = 24 * 3600
NOTIFICATIONS_S = 7 * DAY_S
MOST_NOTIFICATIONS = 1_000
NOTIFICATIONS = "user:stream:notifications"
MARKED_S = 600
AGAIN_S = 1.0

_WRITTEN = FINAL_EVENTS | {"task.timeout", "task.dlq"}
_READ = _WRITTEN | set(TYPES)

# Both or neither. ARGV: the marker's seconds, the most entries and the stream's seconds (0: as it
# is), then the fields.
_WRITE = """
if not redis.call('SET', KEYS[2], 1, 'NX', 'EX', ARGV[1]) then return 0 end
if ARGV[2] == '0' then redis.call('XADD', KEYS[1], '*', unpack(ARGV, 4))
else redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', unpack(ARGV, 4)) end
if ARGV[3] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return 1
"""


class _Entry(NamedTuple):
    place: int  # among the replies; that one is 1 if the entry is new
    stream: str  # without the session's name, which must not get into logs and metrics
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
        catalog: Catalog,
        tally: Counter[tuple[str, str]] | None = None,
    ) -> None:
        self._catalog = catalog
        self._backend = backend
        self._store = backend.tasks
        self._redis = redis
        self._clock = clock
        self._prefix = prefix
        self._tally = Counter() if tally is None else tally

    async def run(self, troubles: Troubles, duty: Duty | None = None) -> None:
        """Begins once there are agents: until then the log is not read for them."""
        await wanted(self._backend, self._redis, self._clock, self._catalog, self.name)
        await Tail(self._backend, self, self._clock, duty=duty).run(troubles)

    # Projecting.

    async def project(self, events: Sequence[Event]) -> None:
        since = self._clock.now() - DAY_S * 1000
        news = [event for event in events if event.at > since and event.type in _READ]
        if not news:
            return
        subjects = await subjects_of(self._store, news)
        found = [(event, task) for event in news if (task := subjects.of(event)) and shown(task)]
        if not found:
            return
        answered = await self._answered(events)
        pipe = self._redis.pipeline(transaction=False)
        entries: list[_Entry] = []
        for event, task in found:
            if event.type in _WRITTEN:
                is_answered = (task.id, event.n - 1) in answered
                entries += self._write(pipe, task, event, answered=is_answered)
            if task.session is not None and event.type in TYPES:
                entries.append(self._notify(pipe, task.session, task, event))
        done = await pipe.execute()
        for place, stream, id in entries:
            if done[place]:  # else it was written before
                self._tally[stream, "published"] += 1
                log.debug("Event published", stream=stream, event_id=id)

    async def _answered(self, events: Sequence[Event]) -> set[tuple[TaskId, int]]:
        """The ends that services wrote themselves: each has a note of that right before it."""
        found = {(event.task, event.n) for event in events if event.type == ANSWERED}
        first = events[0]
        if first.type in FINAL_EVENTS:  # its note may have been the last of the batch before
            page = await self._store.events(after=str(first.n - 2), limit=1, task=first.task)
            found |= {(note.task, note.n) for note in page.items if note.type == ANSWERED}
        return found

    def _write(
        self, pipe: Pipeline, task: Task, event: Event, *, answered: bool
    ) -> Sequence[_Entry]:
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
    ) -> _Entry:
        fields = envelope(stream, which, at, {**data, "origin": ORIGIN})
        return _Entry(self._once(pipe, stream, fields), stream, fields["event_id"])

    def _notify(self, pipe: Pipeline, session: str, task: Task, event: Event) -> _Entry:
        notification = notification_of(task, event)
        fields = {
            "event_id": notification.notification_id,
            "event_type": notification.type,
            "timestamp": notification.timestamp,
            "data": encode(notification),
        }
        stream = f"{NOTIFICATIONS}:{session}"
        place = self._once(pipe, stream, fields, most=MOST_NOTIFICATIONS, seconds=NOTIFICATIONS_S)
        return _Entry(place, NOTIFICATIONS, notification.notification_id)

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
        _ = pipe.eval(_WRITE, 2, stream, marker, str(MARKED_S), str(most), str(seconds), *flat)
        return len(pipe) - 1


async def wanted(
    backend: Backend, redis: Redis, clock: Clock, catalog: Catalog, projector: str
) -> None:
    """Waits for agents that read what this projector writes; its cursor begins where they came."""
    since = ""
    while True:
        try:
            if await _has_cursor(backend, clock, projector):
                return
            end = (await backend.tasks.events(after="$", limit=1)).next or ""
            notifies = await _has_cursor(backend, clock, NotificationProjector.name)
            if notifies or await _is_used(redis, catalog):
                await begin(backend.documents, projector, since, now=clock.now())
                return
            since = end  # there were no agents yet when the log ended here
        except Exception as error:
            log.warning("agents' streams wait", error=repr(error))
        await asyncio.sleep(AGAIN_S)


async def _has_cursor(backend: Backend, clock: Clock, projector: str) -> bool:
    return await backend.documents.get(CURSORS, projector, now=clock.now()) is not None


async def _is_used(redis: Redis, catalog: Catalog) -> bool:
    """Whether a stream of tasks has entries, or a service reads it."""
    alone, others = own_streams(AGENT_STREAMS, await catalog.all())
    for stream in dict.fromkeys([CREATE, *alone, *others]):
        if not await redis.exists(stream):
            continue
        if await redis.xlen(stream):
            return True
        groups = [_text(group["name"]) for group in await redis.xinfo_groups(stream)]
        if any(AGENT_STREAMS.serves(group) for group in groups):
            return True
    return False


def _completed(task: Task, event: Event) -> Mapping[str, Any]:
    return {
        "task_id": task.id,
        "status": "success",
        "result": raw(task.result),
        "duration_ms": duration_ms(task, event),
        "completed_by": task.worker or ORIGIN,
    }


def _failed(task: Task, event: Event) -> Mapping[str, Any]:
    return {
        "task_id": task.id,
        "status": "failed",
        "error": error_of(_fault(event) or CANCELED),
        "duration_ms": duration_ms(task, event),
        "failed_by": task.worker or ORIGIN,
    }


def _late(task: Task, event: Event) -> Mapping[str, Any]:
    data: Any = msgspec.json.decode(event.data or "{}")
    elapsed_ms = int(data.get("elapsed_ms", event.at - task.created_at))
    limit_ms = int(data.get("timeout_ms", elapsed_ms))
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
        "params": raw(task.payload),
        "session_id": task.session,
        "priority": PRIORITY_WORDS[task.priority],
        "status": "failed",
        "error": error_of(fault_of(task.error) or CANCELED),
        "attempts": task.attempt,
        "failed_at": iso(event.at),
    }


def _fault(event: Event) -> Fault | None:
    data: Any = msgspec.json.decode(event.data or "{}")
    return msgspec.convert(data["error"], Fault) if data.get("error") else None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
