"""What only a ledger in one file must promise: it outlives its process, and has one owner."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import apsw
import pytest

from onward.backends import open_backend
from onward.backends.sqlite import database
from onward.core import machine
from onward.core.contract import Backend, Effect, Fate, Key, Query
from onward.core.errors import Invalid, LedgerUnavailable
from onward.core.outcome import Released, Succeeded
from onward.core.task import Lane, State
from tests.contract.desk import Desk, submission
from tests.support import NOW, a_task, ids


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/folder/onward.db"


async def reopened(desk: Desk, url: str) -> Desk:
    await desk.backend.close()
    return Desk(open_backend(url))


async def test_everything_survives_a_restart(url: str) -> None:
    desk = Desk(open_backend(url))
    key = Key("s", "k", "body")
    await desk.insert(submission(a_task(id="first"), key=key))
    await desk.submit(id="second")
    waiting = await desk.submit(waiting_for="event")
    running = await desk.running(queue="r")
    over = await desk.finished(queue="o")
    await desk.post("second", '"letter"')
    await desk.backend.documents.put("service", "a", "{}", now=NOW)
    await desk.backend.effects.begin(running, "charge", now=NOW)
    tasks, log, counts = await desk.all(), await desk.log(), await desk.store.counts()
    end = (await desk.store.events(after="$", limit=1)).next

    desk = await reopened(desk, url)
    assert (await desk.all(), await desk.log()) == (tasks, log)
    assert await desk.store.counts() == counts == await desk.recount()
    assert (await desk.store.events(after="$", limit=1)).next == end
    assert await desk.settle(running, Succeeded("1")) == "applied"
    again = await desk.insert(submission(a_task(), key=key))
    assert again.receipts[0].fate is Fate.KNOWN
    assert (await desk.post(waiting.id, "1")).awake == {"q"}
    claimed = await desk.claim(limit=5)
    assert ids(claimed) == ["first", "second", waiting.id]
    assert [letter.body for letter in claimed[1].letters] == ['"letter"']
    assert (await desk.task(over.id)).state is State.SUCCEEDED
    assert await desk.backend.documents.get("service", "a", now=NOW) is not None
    begun = await desk.backend.effects.begin(running, "charge", now=NOW)
    assert begun == Effect(running.id, 1, None)
    await desk.backend.close()


async def test_numbers_are_never_used_twice(url: str) -> None:
    """A cursor saved before a purge and a restart must not skip what is written after them."""
    desk = Desk(open_backend(url))
    over = await desk.finished()
    cursor = (await desk.store.events(after="$", limit=1)).next or ""
    page = (await desk.store.find(Query(limit=1))).next
    assert page is None
    await desk.store.purge([over.id], now=NOW)
    desk = await reopened(desk, url)
    task = await desk.submit()
    assert [event.task for event in await desk.log(cursor)] == [task.id]
    await desk.backend.close()


async def test_places_in_the_queue_survive_a_restart(url: str) -> None:
    desk = Desk(open_backend(url))
    tasks = await desk.submit_some(3)
    (first,) = await desk.claim()
    desk = await reopened(desk, url)
    tasks += await desk.submit_some(1)
    await desk.settle(first, Released())
    assert ids(await desk.claim(limit=5)) == ids(tasks)
    await desk.backend.close()


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
    desk = Desk(backend)
    await desk.submit(id="taken")
    key = Key("s", "k", "body")
    before, broken, after = await asyncio.gather(
        desk.insert(submission(a_task(id="before"))),
        desk.insert(submission(a_task(id="undone"), key=key), submission(a_task(id="taken"))),
        desk.insert(submission(a_task(id="after"))),
        return_exceptions=True,
    )
    assert isinstance(broken, apsw.ConstraintError)
    assert not isinstance(before, BaseException)
    assert not isinstance(after, BaseException)
    assert ids(await desk.all()) == ["taken", "before", "after"]
    assert await desk.store.counts() == {("q", Lane.PRIMARY, State.QUEUED): 3}
    assert [event.task for event in await desk.log()] == ["taken", "before", "after"]
    fresh = await desk.insert(submission(a_task(id="undone"), key=key))
    assert fresh.receipts[0].fate is Fate.FRESH, "its key was undone with it"
    assert ids(await desk.claim(limit=9)) == ["taken", "before", "after", "undone"]
    await backend.close()


async def test_a_caller_who_hangs_up_does_not_undo_the_turn(url: str) -> None:
    desk = Desk(open_backend(url))
    leaving = asyncio.create_task(desk.insert(submission(a_task(id="left"))))
    staying = asyncio.create_task(desk.insert(submission(a_task(id="stayed"))))
    await asyncio.wait([leaving, staying], timeout=0)
    leaving.cancel()
    await staying
    assert leaving.cancelled()
    assert ids(await desk.all()) == ["left", "stayed"]
    await desk.backend.close()


async def test_closing_waits_for_what_is_under_way(url: str) -> None:
    desk = Desk(open_backend(url))
    calls = [asyncio.create_task(desk.insert(submission(a_task(id=f"t{n}")))) for n in range(5)]
    await asyncio.wait(calls, timeout=0)
    desk = await reopened(desk, url)
    await asyncio.gather(*calls)
    assert len(await desk.all()) == 5
    await desk.backend.close()


async def test_a_large_log_is_moved_into_the_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CHECKPOINT_PAGES", 1)
    desk = Desk(open_backend(url))
    await desk.submit_some(20)
    path = tmp_path / "folder" / "onward.db"
    before = path.stat().st_size
    await desk.backend.maintain()
    assert path.stat().st_size > before
    assert len(await desk.all()) == 20
    await desk.backend.close()


async def test_one_final_event_a_generation_is_the_ledgers_own_law(url: str) -> None:
    desk = Desk(open_backend(url))
    over = await desk.finished()
    second = machine.remark(over, "task.succeeded", None)
    with pytest.raises(apsw.ConstraintError):
        await desk.apply(second)
    assert (await desk.history(over.id)).count("task.succeeded") == 1
    await desk.backend.close()


def test_an_unknown_ledger_is_refused_with_a_hint() -> None:
    with pytest.raises(Invalid, match="no ledger is known") as refused:
        open_backend("mongodb://localhost")
    assert refused.value.hint is not None
