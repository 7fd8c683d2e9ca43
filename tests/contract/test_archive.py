"""What leaves a Redis ledger lives on in SQL: nothing lost, nothing twice, read as if there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from onward.core import machine
from onward.core.clock import ManualClock
from onward.core.contract import Query
from onward.core.errors import Invalid, LedgerUnavailable
from onward.core.outcome import Failed, Succeeded
from onward.core.task import Event, State, Task
from onward.faults import Fault
from onward.ledgers import open_backend
from onward.ledgers.archive import TURNS, Archive, ArchivedBackend, Archiver
from onward.ledgers.codec import FIELDS
from onward.settings import Settings
from tests.contract.driver import Driver
from tests.servers import fresh_url
from tests.support import NOW, PROFILES, ids, replay

BAD = Failed(Fault(kind="InvalidInput", message="no"))
HOUR, MONTH = 3_600_000, 30 * 24 * 3_600_000
FINISHED = frozenset({State.SUCCEEDED, State.FAILED})


class ArchivedDriver(Driver):
    """A driver with an archive behind it, and an archiver."""

    backend: ArchivedBackend

    def __init__(self, folder: Path, clock: ManualClock, *, url: str | None = None) -> None:
        self.file = folder / "archive.db"
        self.url = url or fresh_url("valkey")
        backend = open_backend(self.url, archive=f"sqlite:///{self.file}")
        assert isinstance(backend, ArchivedBackend)
        super().__init__(backend)
        self.clock = clock
        retention = {name: profile.retention_ms for name, profile in PROFILES.items()}
        self.archiver = Archiver(backend, clock, retention)

    async def file_all(self) -> None:
        assert await self.archiver.step()

    async def gone(self, **fields: Any) -> Task:
        """A finished task that has left the ledger."""
        task = await self.finished(**fields)
        await self.file_all()
        assert await self.store.purge([task.id], now=self.now) == 1
        assert await self.backend.ledger.tasks.get([task.id]) == [None]
        return task

    def select(self, statement: str) -> list[tuple[Any, ...]]:
        connection = apsw.Connection(str(self.file), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    async def pages(self, limit: int, **query: Any) -> list[str]:
        found: list[str] = []
        after: str | None = None
        for _ in range(100):
            page = await self.store.find(Query(limit=limit, after=after, **query))
            found += ids(page.items)
            after = page.next
            if after is None:
                return found
            assert after.isdigit()
            assert len(page.items) == limit
        raise AssertionError("the pages have no end")


@pytest.fixture
async def archived(tmp_path: Path, clock: ManualClock) -> AsyncIterator[ArchivedDriver]:
    archived = ArchivedDriver(tmp_path, clock)
    await archived.archiver.prepare()
    yield archived
    await archived.backend.close()


@pytest.mark.contract("S1-9")
async def test_every_event_is_in_the_event_log_once(archived: ArchivedDriver) -> None:
    await archived.finished(id="good")
    held = await archived.running(id="bad")
    await archived.settle(held, BAD)
    log = await archived.log()
    await archived.file_all()
    told = archived.select(
        "SELECT task_id, n, generation, type, at, data FROM event_log ORDER BY rowid"
    )
    assert [Event(*row) for row in told] == log
    assert [row[3] for row in told if row[0] == "bad"] == [
        "task.created",
        "task.claimed",
        "task.failed",
        "task.dlq",
    ]
    await archived.backend.documents.delete("cursor", archived.archiver.name)
    again = Archiver(archived.backend, archived.clock, {})
    archived.clock.advance(10_000)
    assert await again.step(), "the whole log a second time"
    assert archived.select("SELECT count(*), count(DISTINCT event_id) FROM event_log") == [
        (len(log), len(log))
    ]


async def test_what_the_archiver_missed_waits_for_it(
    archived: ArchivedDriver, tmp_path: Path, clock: ManualClock
) -> None:
    first = await archived.finished()
    await archived.file_all()
    second = await archived.finished()
    assert await archived.store.purge([first.id, second.id], now=NOW) == 1, (
        "its end is not archived yet"
    )
    clock.advance(10_000)
    later = ArchivedDriver(tmp_path, clock, url=archived.url)
    await later.archiver.prepare()
    await later.file_all()
    assert await later.store.purge([second.id], now=NOW) == 1
    assert await later.history(first.id) == await later.history(second.id)
    assert [task and task.state for task in await later.store.get([first.id, second.id])] == [
        State.SUCCEEDED,
        State.SUCCEEDED,
    ]
    assert later.select("SELECT count(*) FROM event_log") == [(6,)]
    await later.backend.close()


async def test_nothing_leaves_before_a_new_archive_has_read_it(archived: ArchivedDriver) -> None:
    task = await archived.finished()
    assert await archived.store.purge([task.id], now=NOW) == 0
    assert await archived.backend.ledger.tasks.get([task.id]) != [None]


@pytest.mark.contract("S2-5")
async def test_a_task_that_left_is_read_from_the_archive(archived: ArchivedDriver) -> None:
    task = await archived.gone(session="s", payload='["\\u0000 \U0001f600"]', priority=0)
    assert await archived.store.get(["nobody", task.id]) == [None, task]
    assert await archived.history(task.id) == ["task.created", "task.claimed", "task.succeeded"]
    page = await archived.store.events(after="1", limit=1, task=task.id)
    assert ([event.n for event in page.items], page.next) == ([2], "2")
    page = await archived.store.events(after="3", limit=1, task=task.id)
    assert (list(page.items), page.next) == ([], "3")
    assert await archived.pages(1, session="s") == [task.id]
    assert await archived.log() == [], "the stream keeps what the ledger keeps"


async def test_the_columns_are_the_fields_of_a_task(archived: ArchivedDriver) -> None:
    columns = archived.select("SELECT name FROM pragma_table_info('archived_task')")
    assert sorted(name for (name,) in columns) == sorted(["tid", *FIELDS])


async def test_an_archive_of_an_older_version_is_brought_up_to_date(
    tmp_path: Path, clock: ManualClock
) -> None:
    """A new field of Task is a new column, as in the ledger: what was kept stays readable."""
    archived = ArchivedDriver(tmp_path, clock)
    await archived.archiver.prepare()
    name = archived.backend.archive.name
    await archived.backend.close()
    older = apsw.Connection(str(archived.file))
    older.execute("ALTER TABLE archived_task DROP COLUMN bulk; PRAGMA user_version = 1")
    older.close()

    archived = ArchivedDriver(tmp_path, clock, url=archived.url)
    assert archived.select("PRAGMA user_version") == [(2,)]
    assert archived.select("SELECT count(bulk) FROM archived_task") == [(0,)]
    assert archived.backend.archive.name == name, "it is the same file to the ledger's cursor"
    await archived.backend.close()


async def test_every_event_that_touches_a_finished_task_is_known(archived: ArchivedDriver) -> None:
    over = {State.SUCCEEDED, State.FAILED, State.DEAD, State.CANCELED}
    telling = {
        frozenset(events)
        for (before, after), events in machine.TRANSITIONS.items()
        if before in over or after in over
    }
    assert all(events & TURNS for events in telling)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 50])
async def test_pages_run_from_the_ledger_into_the_archive(
    archived: ArchivedDriver, limit: int
) -> None:
    tasks = [
        await archived.gone(),
        await archived.finished(queue="b"),
        await archived.submit(queue="idle"),
        await archived.gone(),
        await archived.gone(),
        await archived.finished(queue="b"),
        await archived.submit(queue="idle"),
        await archived.gone(),
    ]
    await archived.file_all()
    newest = ids(tasks)[::-1]
    assert await archived.pages(limit) == newest
    over = [task.id for task in tasks if task.queue != "idle"][::-1]
    assert await archived.pages(limit, states=FINISHED) == over
    assert await archived.pages(limit, queue="b") == ids([tasks[5], tasks[1]])
    assert await archived.pages(limit, states=frozenset({State.QUEUED})) == ids(
        [tasks[6], tasks[2]]
    )


@pytest.mark.parametrize("most_bytes", [1, 200, 450, 1_000])
async def test_pages_of_few_bytes_run_from_the_ledger_into_the_archive(
    archived: ArchivedDriver, most_bytes: int
) -> None:
    payload = f'"{"x" * 100}"'
    tasks = [
        await (
            archived.finished(payload=payload)
            if at in (1, 4, 5, 8)
            else archived.gone(payload=payload)
        )
        for at in range(10)
    ]
    await archived.file_all()
    found: list[str] = []
    after: str | None = None
    while True:
        page = await archived.store.find(Query(after=after, most_bytes=most_bytes))
        assert sum(len(task.payload) for task in page.items[:-1]) <= most_bytes
        found += ids(page.items)
        after = page.next
        if after is None:
            break
    assert found == ids(tasks)[::-1]


async def test_a_task_that_leaves_between_two_pages_is_shown_once(archived: ArchivedDriver) -> None:
    tasks = [await archived.finished() for _ in range(4)]
    await archived.file_all()
    page = await archived.store.find(Query(limit=2))
    await archived.store.purge(ids(tasks), now=NOW)
    rest = await archived.store.find(Query(limit=2, after=page.next))
    assert ids([*page.items, *rest.items]) == ids(tasks)[::-1]


async def test_a_replayed_task_is_no_longer_shown_as_it_ended(archived: ArchivedDriver) -> None:
    held = await archived.running()
    await archived.settle(held, BAD)
    await archived.file_all()
    await archived.apply(replay(await archived.task(held.id), archived.now))
    assert await archived.pages(5, states=frozenset({State.DEAD})) == [], "before the archive knows"
    await archived.file_all()
    assert archived.select("SELECT count(*) FROM archived_task") == [(0,)]
    (again,) = await archived.claim()
    await archived.settle(again, Succeeded("2"))
    await archived.file_all()
    await archived.store.purge([held.id], now=NOW)
    found = await archived.task(held.id)
    assert (found.state, found.generation, found.result) == (State.SUCCEEDED, 2, "2")


async def test_a_late_word_on_a_finished_task_is_kept_too(archived: ArchivedDriver) -> None:
    task = await archived.finished()
    await archived.file_all()
    await archived.apply(machine.event_only(task, "task.late_result", None))
    newest = await archived.task(task.id)
    await archived.file_all()
    await archived.store.purge([task.id], now=NOW)
    assert await archived.task(task.id) == newest
    assert (await archived.history(task.id))[-1] == "task.late_result"


async def test_one_server_archives_and_the_others_stand_by(
    archived: ArchivedDriver, tmp_path: Path, clock: ManualClock
) -> None:
    other = ArchivedDriver(tmp_path, clock, url=archived.url)
    await other.archiver.prepare()
    assert other.archiver.name == archived.archiver.name
    assert await archived.archiver.step()
    assert not await other.archiver.step()
    clock.advance(4_000)
    assert await archived.archiver.step(), "renewed"
    clock.advance(4_000)
    assert not await other.archiver.step()
    task = await archived.finished()
    clock.advance(2_000)
    assert await other.archiver.step(), "the lease has lapsed"
    assert not await archived.archiver.step()
    assert await other.store.purge([task.id], now=NOW) == 1
    assert await archived.task(task.id) == task, "they share the file"
    await other.backend.close()


async def test_each_file_is_archived_in_full(
    archived: ArchivedDriver, tmp_path: Path, clock: ManualClock
) -> None:
    apart = ArchivedDriver(tmp_path / "apart", clock, url=archived.url)
    await apart.archiver.prepare()
    task = await archived.finished()
    await archived.file_all()
    assert await archived.store.purge([task.id], now=NOW) == 0, "the other file has not got it"
    await apart.file_all()
    assert await archived.store.purge([task.id], now=NOW) == 1
    assert (
        (await apart.task(task.id)).result == (await archived.task(task.id)).result == task.result
    )
    await apart.backend.close()


async def test_the_archive_forgets_by_the_profile_but_never_the_dead(
    archived: ArchivedDriver,
) -> None:
    brief = await archived.gone(profile="sync")
    long = await archived.gone()
    dead = await archived.running()
    await archived.settle(dead, BAD)
    await archived.file_all()
    archived.clock.advance(2 * HOUR)
    await archived.file_all()
    assert await archived.store.get([brief.id]) == [None]
    assert await archived.history(brief.id) == []
    assert await archived.store.get([long.id]) == [long]
    archived.clock.advance(MONTH)
    await archived.file_all()
    assert await archived.store.get([long.id]) == [None]
    assert archived.select("SELECT id FROM archived_task") == [(dead.id,)]


async def test_a_ledger_that_was_emptied_goes_on_counting_after_its_archive(
    archived: ArchivedDriver, tmp_path: Path, clock: ManualClock
) -> None:
    old = [await archived.gone() for _ in range(3)]
    fresh = ArchivedDriver(tmp_path, clock)  # empties it
    await fresh.archiver.prepare()
    new = [await fresh.finished(queue="n") for _ in range(3)]
    assert await fresh.pages(2) == ids([*old, *new])[::-1]
    await fresh.backend.close()


async def test_a_sqlite_ledger_has_the_same_event_log(
    tmp_path: Path, archived: ArchivedDriver
) -> None:
    file = tmp_path / "ledger.db"
    driver = Driver(open_backend(f"sqlite:///{file}"))
    await driver.finished(id="same")
    await driver.backend.close()
    await archived.finished(id="same")
    await archived.file_all()
    statement = "SELECT event_id, task_id, n, generation, type, at, data FROM event_log ORDER BY n"
    theirs = archived.select(statement)
    archived.file = file
    assert archived.select(statement) == theirs
    assert theirs[0][:5] == ("same:1", "same", 1, 1, "task.created")


async def test_servers_that_make_a_new_file_at_once_make_one(tmp_path: Path) -> None:
    for turn in range(10):
        url = f"sqlite:///{tmp_path}/{turn}.db"
        made = await asyncio.gather(*[asyncio.to_thread(Archive, url) for _ in range(6)])
        assert len({archive.name for archive in made}) == 1
        for archive in made:
            await archive.close()


def test_an_archive_that_cannot_be_is_refused(tmp_path: Path) -> None:
    for url in ("postgresql://h/db", "sqlite:///:memory:", "sqlite://", "file"):
        with pytest.raises(Invalid, match="no archive can be kept"):
            Archive(url)
    (tmp_path / "note").write_text("no database " * 200)
    with pytest.raises(LedgerUnavailable, match="cannot be opened"):
        Archive(f"sqlite:///{tmp_path}/note")
    newer = apsw.Connection(str(tmp_path / "newer.db"))
    newer.pragma("user_version", 99)
    newer.close()
    with pytest.raises(LedgerUnavailable, match="newer Onward"):
        Archive(f"sqlite:///{tmp_path}/newer.db")


async def test_two_ledgers_in_one_folder_have_an_archive_each(tmp_path: Path) -> None:
    files: set[Path] = set()

    async def named(url: str, prefix: str = "") -> bool:
        """Whether it was given a file of its own."""
        archive = f"sqlite:///{tmp_path}/{{ledger}}.db"
        await open_backend(url, prefix=prefix, archive=archive).close()
        known = len(files)
        files.update(_databases(tmp_path))
        return len(files) > known

    assert await named("redis://127.0.0.1:6379/0")
    assert not await named("redis://somebody:secret@127.0.0.1/0"), "the same place"
    assert await named("redis://127.0.0.1:6379/1")
    assert await named("redis://127.0.0.1:6380/0")
    assert await named("redis://127.0.0.1:6379/0", prefix="{b}:")
    assert await named("unix:///run/redis.sock?db=1")
    assert await named("unix:///run/redis.sock?db=2")


def _databases(folder: Path) -> list[Path]:
    return list(folder.glob("*.db"))


async def test_its_place_does_not_depend_on_where_a_server_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new file has a cursor of its own, and one that is never moved holds everything back."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    settings = Settings(ledger=fresh_url("valkey"))

    async def path() -> Path:
        url, archive, state = settings.ledger, settings.archive, settings.state_folder
        backend = open_backend(url, archive=archive, state=state)
        assert isinstance(backend, ArchivedBackend)
        await backend.close()
        return Path(backend.archive.path)

    found: list[Path] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.append(await path())
    assert found[0] == found[1]
    assert found[0].parent == tmp_path / "state" / "onward"
    assert found[0].name.startswith("onward-archive-")
    # One that an older version made where it was started goes on.
    (tmp_path / "two" / found[0].name).touch()
    assert await path() == tmp_path / "two" / found[0].name
