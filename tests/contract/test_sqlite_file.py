"""What only a ledger in one file must promise: it outlives its process, and has one owner."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from onward.core.contract import Backend, Effect, Fate, Key, Query
from onward.core.errors import Invalid, LedgerUnavailable
from onward.core.outcome import Released, Succeeded
from onward.core.task import Lane, State
from onward.ledgers import open_backend
from onward.ledgers.archive import Archive
from tests.contract.driver import Driver, submission
from tests.support import NOW, a_task, ids


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/folder/onward.db"


async def reopened(driver: Driver, url: str) -> Driver:
    await driver.backend.close()
    return Driver(open_backend(url))


async def test_everything_survives_a_restart(url: str) -> None:
    driver = Driver(open_backend(url))
    key = Key("s", "k", "body")
    await driver.insert(submission(a_task(id="first"), key=key))
    await driver.submit(id="second")
    waiting = await driver.submit(waiting_for="event")
    running = await driver.running(queue="r")
    over = await driver.finished(queue="o")
    await driver.post("second", '"letter"')
    await driver.backend.documents.put("service", "a", "{}", now=NOW)
    await driver.backend.effects.begin(running, "charge", now=NOW)
    tasks, log, counts = await driver.all(), await driver.log(), await driver.store.counts()
    end = (await driver.store.events(after="$", limit=1)).next

    driver = await reopened(driver, url)
    assert (await driver.all(), await driver.log()) == (tasks, log)
    assert await driver.store.counts() == counts == await driver.recount()
    assert (await driver.store.events(after="$", limit=1)).next == end
    assert await driver.settle(running, Succeeded("1")) == "applied"
    again = await driver.insert(submission(a_task(), key=key))
    assert again.receipts[0].fate is Fate.KNOWN
    assert (await driver.post(waiting.id, "1")).awake == {"q"}
    claimed = await driver.claim(limit=5)
    assert ids(claimed) == ["first", "second", waiting.id]
    assert [letter.body for letter in claimed[1].letters] == ['"letter"']
    assert (await driver.task(over.id)).state is State.SUCCEEDED
    assert await driver.backend.documents.get("service", "a", now=NOW) is not None
    begun = await driver.backend.effects.begin(running, "charge", now=NOW)
    assert begun == Effect(running.id, 1, None)
    await driver.backend.close()


async def test_numbers_are_never_used_twice(url: str) -> None:
    """A cursor saved before a purge and a restart must not skip what is written after them."""
    driver = Driver(open_backend(url))
    over = await driver.finished()
    cursor = (await driver.store.events(after="$", limit=1)).next or ""
    page = (await driver.store.find(Query(limit=1))).next
    assert page is None
    await driver.store.purge([over.id], now=NOW)
    driver = await reopened(driver, url)
    task = await driver.submit()
    assert [event.task for event in await driver.log(cursor)] == [task.id]
    await driver.backend.close()


async def test_places_in_the_queue_survive_a_restart(url: str) -> None:
    driver = Driver(open_backend(url))
    tasks = await driver.submit_some(3)
    (first,) = await driver.claim()
    driver = await reopened(driver, url)
    tasks += await driver.submit_some(1)
    await driver.settle(first, Released())
    assert ids(await driver.claim(limit=5)) == ids(tasks)
    await driver.backend.close()


async def test_a_file_in_use_is_refused_and_its_owner_named(url: str) -> None:
    backend = open_backend(url)
    with pytest.raises(LedgerUnavailable, match=f"in use by process {os.getpid()}"):
        open_backend(url)
    with pytest.raises(LedgerUnavailable, match=f"in use by process {os.getpid()}"):
        open_backend(url)
    await backend.close()
    await open_backend(url).close()


async def test_a_file_of_a_newer_version_is_refused_and_left_alone(
    url: str, tmp_path: Path
) -> None:
    await open_backend(url).close()
    path = tmp_path / "folder" / "onward.db"
    connection = apsw.Connection(str(path))
    ours = connection.pragma("user_version")
    connection.pragma("user_version", 99)
    connection.close()
    with pytest.raises(LedgerUnavailable, match="newer Onward"):
        open_backend(url)
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == 99
    connection.pragma("user_version", ours)
    connection.close()
    # Refused means let go as well: whoever mends the file can open it without a restart.
    await open_backend(url).close()


async def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, not a database\n" * 100)
    with pytest.raises(LedgerUnavailable, match="not an Onward ledger"):
        open_backend(f"sqlite:///{path}")
    assert path.read_text().startswith("these are my notes")


@pytest.mark.parametrize("place", ["memory", "file"])
async def test_work_that_fails_undoes_only_itself(url: str, place: str) -> None:
    """Three callers share the turn's transaction; the second one's work cannot be done."""
    backend: Backend = open_backend("sqlite:///:memory:" if place == "memory" else url)
    driver = Driver(backend)
    await driver.submit(id="taken")
    key = Key("s", "k", "body")
    before, broken, after = await asyncio.gather(
        driver.insert(submission(a_task(id="before"))),
        driver.insert(submission(a_task(id="undone"), key=key), submission(a_task(id="taken"))),
        driver.insert(submission(a_task(id="after"))),
        return_exceptions=True,
    )
    assert isinstance(broken, apsw.ConstraintError)
    assert not isinstance(before, BaseException)
    assert not isinstance(after, BaseException)
    assert ids(await driver.all()) == ["taken", "before", "after"]
    assert await driver.store.counts() == {("q", Lane.PRIMARY, State.QUEUED): 3}
    assert [event.task for event in await driver.log()] == ["taken", "before", "after"]
    fresh = await driver.insert(submission(a_task(id="undone"), key=key))
    assert fresh.receipts[0].fate is Fate.FRESH, "its key was undone with it"
    assert ids(await driver.claim(limit=9)) == ["taken", "before", "after", "undone"]
    await backend.close()


async def test_a_caller_who_hangs_up_does_not_undo_the_turn(url: str) -> None:
    driver = Driver(open_backend(url))
    leaving = asyncio.create_task(driver.insert(submission(a_task(id="left"))))
    staying = asyncio.create_task(driver.insert(submission(a_task(id="stayed"))))
    await asyncio.wait([leaving, staying], timeout=0)
    leaving.cancel()
    await staying
    assert leaving.cancelled()
    assert ids(await driver.all()) == ["left", "stayed"]
    await driver.backend.close()


async def test_closing_waits_for_what_is_under_way(url: str) -> None:
    driver = Driver(open_backend(url))
    calls = [asyncio.create_task(driver.insert(submission(a_task(id=f"t{n}")))) for n in range(5)]
    await asyncio.wait(calls, timeout=0)
    driver = await reopened(driver, url)
    await asyncio.gather(*calls)
    assert len(await driver.all()) == 5
    await driver.backend.close()


def test_an_unknown_ledger_is_refused_with_a_hint() -> None:
    with pytest.raises(Invalid, match="no ledger is known") as refused:
        open_backend("mongodb://localhost")
    assert refused.value.hint is not None


# Who may open it, and under which name.


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("open_umask")
async def test_its_files_are_for_its_own_user_alone(url: str, tmp_path: Path) -> None:
    driver = Driver(open_backend(url))
    await driver.submit()
    folder = tmp_path / "folder"
    modes = {path.name: mode(path) for path in folder.iterdir()}
    assert set(modes) == {"onward.db", "onward.db-wal", "onward.db-shm", "onward.db.lock"}
    assert set(modes.values()) == {0o600}, modes
    await driver.backend.close()


@pytest.mark.usefixtures("open_umask")
async def test_an_archive_is_for_its_own_user_alone(tmp_path: Path) -> None:
    archive = Archive(f"sqlite:///{tmp_path}/archive.db")
    await archive.last_place()
    for name in ("archive.db", "archive.db-wal", "archive.db-shm"):
        assert mode(tmp_path / name) == 0o600, name
    await archive.close()


async def test_the_mode_of_a_file_that_is_there_stays_but_is_spoken_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/onward.db"
    await open_backend(url).close()
    path = tmp_path / "onward.db"
    path.chmod(0o640)
    await open_backend(url).close()
    assert "chmod" not in capsys.readouterr().out, "to a group it may be open on purpose"
    path.chmod(0o644)
    await open_backend(url).close()
    assert capsys.readouterr().out.count("chmod o-rwx") == 1
    assert mode(path) == 0o644


async def test_a_link_does_not_open_it_a_second_time(tmp_path: Path) -> None:
    backend = open_backend(f"sqlite:///{tmp_path}/onward.db")
    (tmp_path / "alias.db").symlink_to(tmp_path / "onward.db")
    with pytest.raises(LedgerUnavailable, match="in use by"):
        open_backend(f"sqlite:///{tmp_path}/alias.db")
    await backend.close()
    driver = Driver(open_backend(f"sqlite:///{tmp_path}/alias.db"))
    await driver.submit()
    assert not (tmp_path / "alias.db-wal").exists(), "its log is the file's own"
    await driver.backend.close()


async def test_a_second_name_of_the_file_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "onward.db", tmp_path / "other.db"
    backend = open_backend(f"sqlite:///{path}")
    other.hardlink_to(path)
    with pytest.raises(LedgerUnavailable, match="second name") as refused:
        open_backend(f"sqlite:///{other}")
    assert "remove the other name" in (refused.value.hint or "")
    await backend.close()
    other.unlink()
    await open_backend(f"sqlite:///{path}").close()


@pytest.mark.parametrize("name", ["folder", "note/onward.db"])
def test_a_file_that_cannot_be_opened_is_refused_with_a_hint(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "note").write_text("no folder")
    with pytest.raises(LedgerUnavailable, match="cannot be opened") as refused:
        open_backend(f"sqlite:///{tmp_path}/{name}")
    assert "doctor" in (refused.value.hint or "")
