"""What a session is told of its tasks, kept until it has been read (S2-6).

Each ending and each timeout of a session's task becomes one notice, under an id that follows from
the event: seen twice, it is still one notice. Decides what is worth a notice and how long it is
kept. Never delivers any: push.py, webhooks.py and whoever asks do.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend, TaskStore
from onward.core.duty import Duty
from onward.core.errors import Conflict, LedgerUnavailable, NotFound
from onward.core.readers import CURSORS, begin
from onward.core.tail import Tail
from onward.core.task import Event, Instant, Task, encode
from onward.core.troubles import Troubles
from onward.doors.rest.shapes import PRIORITY_WORDS
from onward.native.notifications.deliveries import Deliveries
from onward.native.notifications.figures import WORDS, Figures, Roll
from onward.wire.times import iso

log = structlog.get_logger("onward.notices")

DAY_MS = 24 * 3_600_000
KEPT_MS = 7 * DAY_MS
MOST = 1_000  # notices of one session
SLACK = 100  # so many more, then the oldest go: not every notice costs a look at all
TRIM_MS = DAY_MS // 2
KNOWN_SESSIONS = 10_000  # whose number of notices is remembered
SAID = 200  # characters of an error that are worth repeating
TRIES = 5
AGAIN_S = 1.0

COMPLETED, FAILED, TIMEOUT = "task_completed", "task_failed", "task_timeout"
TYPES: Mapping[str, str] = {
    "task.succeeded": COMPLETED,
    "task.failed": FAILED,
    "task.timeout": TIMEOUT,
}
_ACTIONS = {COMPLETED: "retrieve_result", FAILED: "review_error", TIMEOUT: "check_status"}
_LATE = (
    "Your {type} is taking longer than expected. The task is still running. I'll notify you when it"
    " completes, or you can check status with: 'Show task status for {id}'"
)


class Notice(msgspec.Struct, frozen=True):
    """As it goes out, by whatever way."""

    notification_id: str
    type: str
    task_id: str
    task_type: str
    message: str
    action: str
    timestamp: str
    priority: str


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    notice: Notice
    at: Instant  # when it happened; the timestamp says the same
    written_at: Instant
    read_at: Instant | None = None
    told_by: str | None = None  # the way by which it first went out
    told_at: Instant | None = None

    @property
    def id(self) -> str:
        return self.notice.notification_id


Hear = Callable[[str, Sequence[Kept]], Awaitable[None]]
_decode = msgspec.json.Decoder(Kept).decode


def notice_of(task: Task, event: Event) -> Notice:
    kind = TYPES[event.type]
    return Notice(
        notification_id=_id(event),
        type=kind,
        task_id=task.id,
        task_type=task.type,
        message=_message(kind, task, event),
        action=_ACTIONS[kind],
        timestamp=iso(event.at),
        priority=PRIORITY_WORDS[task.priority],
    )


def late(task: Task) -> str:
    return _LATE.format(type=task.type, id=task.id)


def _id(event: Event) -> str:
    """The instant in front, so that ids sort by time; the rest is which event it was."""
    which = f"{event.task}:{event.generation}:{event.n}".encode()
    made = bytearray(event.at.to_bytes(6, "big") + hashlib.sha256(which).digest()[:10])
    made[6] = 0x70 | made[6] & 0x0F
    made[8] = 0x80 | made[8] & 0x3F
    return f"notif-{uuid.UUID(bytes=bytes(made))}"


def _message(kind: str, task: Task, event: Event) -> str:
    if kind == COMPLETED:
        return f"Your {task.type} is ready."
    if kind == TIMEOUT:
        return late(task)
    said: Any = msgspec.json.decode(event.data or "{}")
    reason = str(said.get("error", {}).get("message", "")).strip()
    if len(reason) > SAID:
        reason = f"{reason[: SAID - 1]}…"
    return f"Your {task.type} failed: {reason}" if reason else f"Your {task.type} failed."


class Notices:
    """All sessions' notices, in the ledger: one kind of document a session."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._documents = backend.documents
        self._clock = clock
        self.deliveries = Deliveries(TYPES.values())
        self._sizes: dict[str, tuple[int, Instant]] = {}  # how many, and when that was counted

    async def of(self, session: str) -> Sequence[Kept]:
        """Oldest first."""
        now = self._clock.now()
        found = await self._documents.list(_kind(session), now=now)
        kept = [_decode(document.body) for document in found]
        return [one for one in kept if one.at + KEPT_MS > now]

    async def unread(self, session: str) -> Sequence[Kept]:
        return [kept for kept in await self.of(session) if kept.read_at is None]

    async def get(self, session: str, id: str) -> Kept | None:
        found = await self._documents.get(_kind(session), id, now=self._clock.now())
        return None if found is None else _decode(found.body)

    async def ack(self, session: str, id: str, *, told_by: str | None = None) -> Kept:
        """Read, as of the first time it is said. Another session's is as good as none."""
        for _ in range(TRIES):
            now = self._clock.now()
            found = await self._documents.get(_kind(session), id, now=now)
            if found is None:
                raise NotFound("no such notification")
            kept = _decode(found.body)
            if kept.read_at is not None:
                return kept
            told = _told(kept, told_by, now)
            read = msgspec.structs.replace(told, read_at=now)
            if await self._put(session, read, expect=found.version):
                if told is not kept:
                    self.deliveries.reached(told, now)
                self.deliveries.read(read, now)
                return read
        raise Conflict("the notification keeps changing; try again")

    async def record(self, session: str, told: Iterable[Kept], how: str) -> None:
        """Which way each went first, and when; it has arrived, whether or not that is kept."""
        fresh = [kept.id for kept in told if kept.told_by is None]
        with suppress(LedgerUnavailable):
            await asyncio.gather(*[self._record(session, id, how) for id in fresh])

    async def _record(self, session: str, id: str, how: str) -> None:
        for _ in range(TRIES):
            now = self._clock.now()
            found = await self._documents.get(_kind(session), id, now=now)
            before = None if found is None else _decode(found.body)
            if found is None or before is None or before.told_by is not None:
                return
            # It may be acknowledged between the reading and this: that must not be undone.
            if await self._put(session, _told(before, how, now), expect=found.version):
                self.deliveries.reached(before, now)
                return

    async def keep(self, session: str, kept: Kept) -> bool:
        """Written unless it is there: what was read stays read when its event comes again.

        Returns whether it is still to be told.
        """
        if not await self._put(session, kept, expect=0):
            before = await self.get(session, kept.id)
            return before is not None and before.read_at is None
        self.deliveries.wrote(kept)
        count, since = self._sizes.pop(session, (MOST + SLACK, 0))
        self._sizes[session] = (count + 1, since)
        if len(self._sizes) > KNOWN_SESSIONS:
            del self._sizes[next(iter(self._sizes))]
        return True

    async def trim(self, session: str) -> None:
        """No more than so many: the oldest that were read go first, then the oldest."""
        now = self._clock.now()
        count, since = self._sizes.get(session, (0, now))
        if count < MOST + SLACK and since + TRIM_MS > now:
            return
        found = await self._documents.list(_kind(session), now=now)
        kept = [_decode(document.body) for document in found]
        fresh = [one for one in kept if one.at + KEPT_MS > now]
        ranked = sorted(fresh, key=lambda one: (one.read_at is None, one.id))
        gone = [one for one in kept if one.at + KEPT_MS <= now]
        gone += ranked[: max(0, len(fresh) - MOST)]
        await asyncio.gather(*[self._documents.delete(_kind(session), one.id) for one in gone])
        self._sizes[session] = (len(kept) - len(gone), now)

    async def _put(self, session: str, kept: Kept, *, expect: int) -> bool:
        put = await self._documents.put(
            _kind(session),
            kept.id,
            encode(kept),
            now=self._clock.now(),
            expect=expect,
            # A day longer than it is shown: what a look still finds, that look can throw away.
            expires_at=kept.at + KEPT_MS + DAY_MS,
        )
        return put is not None


class Noticing:
    """The projector: events of sessions' tasks become notices, and whoever tells is told."""

    name = "notices"

    def __init__(
        self, store: TaskStore, notices: Notices, clock: Clock, tell: Sequence[Hear]
    ) -> None:
        self._store = store
        self._notices = notices
        self._clock = clock
        self._tell = tell
        self.figures = Figures()

    async def project(self, events: Sequence[Event]) -> None:
        news = [event for event in events if event.type in WORDS]
        if not news:
            return
        ids = list(dict.fromkeys(event.task for event in news))
        tasks = dict(zip(ids, await self._store.look(ids), strict=True))
        now = self._clock.now()
        made: list[tuple[str, Kept]] = []
        for event in news:
            task = tasks[event.task] if event.type in TYPES else None
            if task is not None and task.session is not None and event.at + KEPT_MS > now:
                made.append((task.session, Kept(notice_of(task, event), event.at, now)))
        unread = await asyncio.gather(*[self._notices.keep(*one) for one in made])
        # Also those that were there before: whoever wrote them may have died before telling. But
        # not what was acknowledged since, or it would come back at everybody who is connected.
        told: dict[str, list[Kept]] = {}
        for (session, kept), tell in zip(made, unread, strict=True):
            if tell:
                told.setdefault(session, []).append(kept)
        for session, all_ in told.items():
            await self._notices.trim(session)
            for hear in self._tell:
                await hear(session, all_)
        self.figures.note(news, tasks)


class Watch:
    """Runs the projector, on one server at a time, once the ledger has seen a session.

    The cursor is what tells: the first task with a session has it written before the task is. Until
    then nobody reads the log for nobody.
    """

    def __init__(
        self, backend: Backend, noticing: Noticing, clock: Clock, duty: Duty | None = None
    ) -> None:
        self._backend = backend
        self._noticing = noticing
        self._clock = clock
        self._tail = Tail(backend, noticing, clock, duty=duty, on_duty=self._turn)
        self._reading: asyncio.Task[None] | None = None
        self._opened = asyncio.Event()

    async def open(self) -> None:
        """A task with a session is about to be submitted."""
        if self._opened.is_set():
            return
        end = (await self._backend.tasks.events(after="$", limit=1)).next or ""
        now = self._clock.now()
        await begin(self._backend.documents, self._noticing.name, end, now=now)
        self._opened.set()

    async def run(self, troubles: Troubles) -> None:
        while not await self._seen():
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._opened.wait()
        await self._tail.run(troubles)

    async def step(self) -> bool:
        return await self._tail.catch_up()

    async def _turn(self, ours: bool) -> None:
        await self._stop_reading()
        if ours:
            self._noticing.figures.roll = roll = Roll()
            self._reading = asyncio.get_running_loop().create_task(self._read(roll))

    async def _read(self, roll: Roll) -> None:
        """Beside the notices: none of them waits until all live tasks are read."""
        while True:
            try:
                await roll.read(self._backend.tasks)
                return
            except Exception as error:
                log.warning("live tasks not read", error=repr(error))
                await asyncio.sleep(AGAIN_S)

    async def _stop_reading(self) -> None:
        self._noticing.figures.roll = None
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None

    async def close(self) -> None:
        await self._stop_reading()

    async def _seen(self) -> bool:
        if self._opened.is_set():
            return True
        try:
            name, now = self._noticing.name, self._clock.now()
            found = await self._backend.documents.get(CURSORS, name, now=now)
        except Exception as error:
            log.warning("notices wait", error=repr(error))
            return False
        if found is not None:
            self._opened.set()
        return found is not None


def _told(kept: Kept, how: str | None, now: Instant) -> Kept:
    if how is None or kept.told_by is not None:
        return kept
    return msgspec.structs.replace(kept, told_by=how, told_at=now)


def _kind(session: str) -> str:
    return f"notice:{session}"
