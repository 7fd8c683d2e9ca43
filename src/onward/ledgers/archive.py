"""What leaves a ledger that forgets (Redis) goes on living in SQL: its events and finished tasks.

Archive is the file; Archiver reads the log into it, with a durable cursor; ArchivedStore answers
from it what the ledger no longer knows. The ledger stays the truth: a task that it still has is
never read from here. Nothing of this lies on the way of a task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

import apsw
import msgspec
import structlog

from onward.core.clock import Clock
from onward.core.contract import LOG_BYTES, Page, Query, SessionIndex, SessionTally
from onward.core.duty import Duty
from onward.core.errors import Invalid, LedgerUnavailable
from onward.core.readers import begin
from onward.core.tail import Tail
from onward.core.task import FINAL, FINAL_EVENTS, Event, Instant, Task, TaskId, encode, new_id
from onward.core.troubles import Troubles
from onward.ledgers.codec import FIELDS, Cut, RowReader, cut, text_bytes, to_row
from onward.ledgers.sealed.texts import SealedTexts
from onward.ledgers.sql.dialect import Row, Statements, Step, load, with_words
from onward.ledgers.sql.documents import SqlSessions
from onward.ledgers.sql.sealed_texts import ARCHIVE, SqlSealedTexts
from onward.ledgers.sql.store import Take, matching
from onward.ledgers.sql.write_batch import Plan, driven
from onward.ledgers.sqlite.database import Schema, open_schema
from onward.ledgers.sqlite.dialect import WORDS, SqliteDialect
from onward.ledgers.sqlite.files import create_private
from onward.urls import shown

if TYPE_CHECKING:
    from onward.ledgers.redis import RedisBackend
    from onward.ledgers.redis.store import RedisStore

log = structlog.get_logger("onward.archive")

T = TypeVar("T")
Placed = tuple[int, Task]

BATCH = 2_048  # events: beside a busy loop each batch costs a wait, whatever its size
READ = 32  # tasks in one call of the ledger: each may be of megabytes
KEEP_BYTES = 8 << 20  # of tasks written at once
PAUSE_S = 0.1  # between two looks at the log: the archive may be late, but not in the way
TIDY_MS = 3_600_000
CHUNK = 500
BUSY_MS = 10_000

# Each of these leaves a task finished, or changes one that is.
TURNS = FINAL_EVENTS | {"task.dlq", "task.abandoned", "task.replayed", "task.late_result"}

_WORDS = {
    **WORDS,
    "table_of_tasks": "archived_task",
    "task_key": "rowid",
    "task_fields": ", ".join(FIELDS),
    "payload": "payload",
    "json_values": ", ".join(f"value ->> {at}" for at in range(len(FIELDS) + 1)),
    "json_changes": ", ".join(f"{name} = excluded.{name}" for name in FIELDS),
}
_STATEMENTS = Statements(SqliteDialect(_WORDS), load("onward.ledgers", "archive.sql"))
_SCHEMA = Schema(
    with_words(load("onward.ledgers", "archive_schema.sql"), _WORDS),
    load("onward.ledgers", "archive_indexes.sql"),
    "archived_task",
    None,
    2,
)


class Archive:
    """The file: one thread writes, one reads."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        self.path = rest.removeprefix("/")
        if scheme != "sqlite" or self.path in ("", ":memory:"):
            raise Invalid(
                f"no archive can be kept in {shown(url)!r}",
                hint="use sqlite:///archive.db, or an empty text for none",
            )
        try:
            create_private(self.path)
            self._writer = _open(self.path)
            self.name = _open_schema(self._writer, self.path)
            self._reader = _open(self.path)
        except (apsw.Error, OSError) as error:
            raise LedgerUnavailable(
                f"the archive {self.path} cannot be opened: {error}",
                hint="name another file in ONWARD_ARCHIVE",
            ) from error
        self._tasks = RowReader()
        self.sessions = SqlSessions(self.read)
        self.sealed_texts = SqlSealedTexts(self, ARCHIVE)
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="onward-archive")
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="onward-archive-read")

    async def keep(
        self, events: Sequence[Event], over: Sequence[Placed], alive: Sequence[Task]
    ) -> None:
        """One batch of the log, with the tasks that it finished or called back to life."""
        rows = encode([msgspec.structs.astuple(event) for event in events])
        tasks = encode([(place, *to_row(task)) for place, task in over])
        revived = encode([(task.id, task.rev) for task in alive])

        def plan() -> Plan[None]:
            yield Step("keep_events", (rows,))
            yield Step("keep_tasks", (tasks,))
            yield Step("revive_tasks", (revived,))

        await self.write(plan)

    async def get(self, ids: Sequence[TaskId]) -> Mapping[TaskId, Task]:
        rows = await self.read(Step("get", (encode(ids),)))
        return {task.id: task for task in self._tasks.tasks(rows)[0]}

    async def find(self, query: Query, *, floor: int) -> Page[Placed]:
        """Newest first, of those above `floor`."""
        where, args = matching(query)
        where = f"tid > ?{len(args) + 2} AND {where}"
        taken = Cut(query.limit, query.most_bytes)
        rows = await self.read(Step("find", (query.limit + 1, *args, floor), where=where), taken)
        found = [(row[-1], task) for row in rows if (task := self._tasks.task(row)) is not None]
        return Page(found, str(rows[-1][-1]) if taken.more else None)

    async def history(self, task: TaskId, after: int, limit: int, most_bytes: int) -> Page[Event]:
        taken = Cut(limit, most_bytes)
        rows = await self.read(Step("history", (task, after, limit + 1)), taken)
        events = [Event(*row) for row in rows]
        return Page(events, str(events[-1].n) if events else str(after), taken.more)

    async def erase(self, ids: Sequence[TaskId]) -> None:
        """Whatever their age: an operator wants these gone."""
        await self.write(lambda: _forget(ids))

    async def last_place(self) -> int:
        ((place,),) = await self.read(Step("last_place"))
        return int(place)

    async def forget(self, profile: str, before: Instant) -> int:
        """Some finished tasks that ended by then, and their events; returns how many."""

        def plan() -> Plan[int]:
            rows = yield Step("outlived", (profile, before, CHUNK))
            yield from _forget([id for (id,) in rows])
            return len(rows)

        return await self.write(plan)

    async def close(self) -> None:
        self._writing.shutdown()
        self._reading.shutdown()
        self._reader.close()
        self._writer.close()

    async def write(
        self, plan: Callable[[], Plan[T]], *, intake: bool = False, locks: Sequence[str] = ()
    ) -> T:
        def work() -> T:
            with self._writer:
                # Kept in a name: type checkers take it that `with` may swallow an error.
                done = driven(plan(), lambda step: _execute(self._writer, step).fetchall())
            return done  # noqa: RET504

        return await self._run(self._writing, work)

    async def read(self, step: Step, take: Take = list, *, far: bool = True) -> list[Row]:
        def work() -> list[Row]:
            with closing(_execute(self._reader, step)) as rows:
                return take(rows)

        return await self._run(self._reading, work)

    async def _run(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        except apsw.Error as error:
            log.error("the archive does not answer", path=self.path, error=repr(error))
            raise LedgerUnavailable("the archive does not answer") from error


def _open(path: str) -> apsw.Connection:
    connection = apsw.Connection(path)
    connection.set_busy_timeout(BUSY_MS)
    for _ in range(BUSY_MS // 50):
        # Two servers may make a new file at once, and this one step does not wait its turn.
        try:
            connection.execute("PRAGMA journal_mode = wal")
            break
        except apsw.BusyError:
            time.sleep(0.05)
    # What the cursor has passed may leave the ledger: it must be on disk by then.
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _open_schema(connection: apsw.Connection, path: str) -> str:
    """Creates or migrates the tables; returns the random name that the file got with them."""
    open_schema(connection, _SCHEMA, path, "name another file in ONWARD_ARCHIVE")
    _execute(connection, Step("name_archive", (new_id(),)))
    ((name,),) = _execute(connection, Step("name")).fetchall()
    return str(name)


def _execute(connection: apsw.Connection, step: Step) -> apsw.Cursor:
    return connection.execute(_STATEMENTS.text(step, 0), step.args)


def _forget(ids: Sequence[TaskId]) -> Plan[None]:
    text = encode(ids)
    yield Step("forget_events", (text,))
    yield Step("forget_tasks", (text,))


class ArchivedStore:
    """The ledger, and behind it what has left it."""

    def __init__(self, ledger: RedisStore, archive: Archive) -> None:
        self._ledger = ledger
        self._archive = archive
        self.insert, self.claim, self.extend = ledger.insert, ledger.claim, ledger.extend
        self.apply, self.post, self.due = ledger.apply, ledger.post, ledger.due
        self.position, self.counts, self.purge = ledger.position, ledger.counts, ledger.purge
        self.oldest, self.open_approvals = ledger.oldest, ledger.open_approvals
        self.batches = ledger.batches
        self.start_at, self.usage = ledger.start_at, ledger.usage

    async def get(self, ids: Sequence[TaskId]) -> Sequence[Task | None]:
        found = list(await self._ledger.get(ids))
        missing = [id for id, task in zip(ids, found, strict=True) if task is None]
        if missing:
            archived = await self._archive.get(missing)
            found = [task or archived.get(id) for id, task in zip(ids, found, strict=True)]
        return found

    look = get  # only a sealed store tells them apart

    async def erase(self, ids: Sequence[TaskId], *, now: Instant) -> None:
        """Finished tasks, from both: what the ledger must still keep stays in both for now."""
        await self._ledger.purge(ids, now=now)
        kept = {task.id for task in await self._ledger.get(ids) if task is not None}
        await self._archive.erase([id for id in ids if id not in kept])

    async def events(
        self, *, after: str, limit: int, task: TaskId | None = None, most_bytes: int = LOG_BYTES
    ) -> Page[Event]:
        page = await self._ledger.events(after=after, limit=limit, task=task, most_bytes=most_bytes)
        if task is None or page.items:
            return page
        # Nothing more there: it has no more events, or it is gone. The archive is never ahead.
        return await self._archive.history(task, int(after or 0), limit, most_bytes)

    async def find(self, query: Query) -> Page[Task]:
        if query.states and not query.states & FINAL:
            return await self._ledger.find(query)
        here = await self._ledger.placed(query)
        # Below the last one that was read, it is not known yet what the ledger has.
        floor = -1 if here.next is None else int(here.next)
        gone, floor = await self._departed(query, floor)
        # One order for both, by place: a task that leaves the ledger between two pages is on one.
        both = {place: task for place, task in [*here.items, *gone] if place >= floor}
        newest = sorted(both.items(), reverse=True, key=lambda placed: placed[0])
        found, more = cut(newest, query.limit, query.most_bytes, _placed_bytes)
        last = found[-1][0] if more else floor
        return Page([task for _, task in found], str(last) if more or floor >= 0 else None)

    async def _departed(self, query: Query, floor: int) -> tuple[Sequence[Placed], int]:
        """Those that the archive alone has, as many as fill a page; and down to which place both
        have been read by now.
        """
        gone: list[Placed] = []
        spent = 0
        while True:
            page = await self._archive.find(query, floor=floor)
            places = await self._ledger.places([task.id for _, task in page.items])
            fresh = [row for row, place in zip(page.items, places, strict=True) if place is None]
            gone += fresh
            spent += sum(map(_placed_bytes, fresh))
            if page.next is None:
                return gone, floor
            if len(gone) >= query.limit or spent > query.most_bytes:
                return gone, int(page.next)
            query = msgspec.structs.replace(query, after=page.next)


def _placed_bytes(placed: Placed) -> int:
    return text_bytes(to_row(placed[1]))


class ArchivedSessions:
    """Sessions of both. What has finished is in both for a while, so the larger number counts."""

    def __init__(self, ledger: SessionIndex, archive: SessionIndex) -> None:
        self._ledger = ledger
        self._archive = archive

    async def find(self, *, after: str | None, limit: int) -> Page[SessionTally]:
        pages = [
            await sessions.find(after=after, limit=limit)
            for sessions in (self._ledger, self._archive)
        ]
        places: dict[str, int] = {}
        for tally in (tally for page in pages for tally in page.items):
            places[tally.session] = max(tally.place, places.get(tally.session, 0))
        names = sorted(places, key=lambda name: -places[name])
        shown = [await self.get(name) for name in names[:limit]]
        # One whose newest task is still in the ledger stood before the cursor, on an earlier page.
        found = [one for one in shown if one and (after is None or one.place < int(after))]
        more = len(names) > limit or any(page.next is not None for page in pages)
        return Page(found, str(places[names[limit - 1]]) if more and len(names) >= limit else None)

    async def get(self, session: str) -> SessionTally | None:
        here, there = await self._ledger.get(session), await self._archive.get(session)
        if here is None or there is None:
            return here or there
        live = {state: count for state, count in here.states.items() if state not in FINAL}
        over = {
            state: max(here.states.get(state, 0), there.states.get(state, 0))
            for state in FINAL
            if state in here.states or state in there.states
        }
        departed = sum(over.values()) - sum(here.states.get(state, 0) for state in FINAL)
        return SessionTally(
            session=session,
            tasks=max(here.tasks + departed, there.tasks + sum(live.values())),
            states=live | over,
            last_at=max(here.last_at, there.last_at),
            place=max(here.place, there.place),
        )


class ArchivedBackend:
    def __init__(self, ledger: RedisBackend, archive: Archive) -> None:
        self.ledger = ledger
        self.shared, self.redis, self.enqueued = ledger.shared, ledger.redis, ledger.enqueued
        self.archive = archive
        self.tasks = ArchivedStore(ledger.tasks, archive)
        self.documents, self.effects, self.bell = ledger.documents, ledger.effects, ledger.bell
        self.sessions = ArchivedSessions(ledger.sessions, archive.sessions)
        self.sealed_texts: Sequence[SealedTexts] = [*ledger.sealed_texts, archive.sealed_texts]
        self.gauges, self.maintain = ledger.gauges, ledger.maintain

    @property
    def ahead_ms(self) -> int:
        return self.ledger.ahead_ms

    @property
    def warnings(self) -> Sequence[str]:
        return self.ledger.warnings

    async def close(self) -> None:
        await self.ledger.close()
        await self.archive.close()


class Archiver:
    """Reads the log into the archive. Of the servers that share a file one does, others stand by.

    The lease only saves double work: a batch that two write is written once.
    """

    def __init__(
        self, backend: ArchivedBackend, clock: Clock, retention_ms: Mapping[str, int]
    ) -> None:
        self.name = f"archive:{backend.archive.name}"
        self._backend = backend
        self._archive = backend.archive
        self._clock = clock
        self._retention_ms = retention_ms
        duty = Duty(backend.documents, clock, self.name, new_id())
        self._tail = Tail(backend, self, clock, batch=BATCH, pace_s=PAUSE_S, duty=duty)
        self._tidy_at: Instant = 0

    async def prepare(self) -> None:
        """Before anything may be purged: from now on nothing leaves that has not been read."""
        now = self._clock.now()
        await self._backend.ledger.tasks.continue_after(await self._archive.last_place())
        await begin(self._backend.documents, self.name, "", now=now)

    async def project(self, events: Sequence[Event]) -> None:
        turned = list(dict.fromkeys(event.task for event in events if event.type in TURNS))
        tasks: list[Task] = []
        spent = 0
        for at in range(0, len(turned), READ):
            part = await self._backend.ledger.tasks.get(turned[at : at + READ])
            tasks += [task for task in part if task is not None]
            spent += sum(text_bytes(to_row(task)) for task in part if task is not None)
            if spent > KEEP_BYTES:
                await self._keep((), tasks)
                tasks, spent = [], 0
        await self._keep(events, tasks)

    async def _keep(self, events: Sequence[Event], tasks: Sequence[Task]) -> None:
        over = [task for task in tasks if task.state in FINAL]
        places = await self._backend.ledger.tasks.places([task.id for task in over])
        await self._archive.keep(
            events,
            # One without a place was purged this moment: another server had archived it before.
            [(place, task) for task, place in zip(over, places, strict=True) if place is not None],
            [task for task in tasks if task.state not in FINAL],
        )

    async def run(self, troubles: Troubles) -> None:
        await self._tail.run(troubles, self.step)

    async def step(self) -> bool:
        """Archive all there is; False: another server does."""
        ours = await self._tail.catch_up()
        if ours:
            await self._tidy()
        return ours

    async def _tidy(self) -> None:
        """Forget what has outlived its profile's retention."""
        now = self._clock.now()
        if now < self._tidy_at:
            return
        for profile, kept_ms in self._retention_ms.items():
            if await self._archive.forget(profile, now - kept_ms) == CHUNK:
                return  # there may be more: at the next step
        self._tidy_at = now + TIDY_MS
