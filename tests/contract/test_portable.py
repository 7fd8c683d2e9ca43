"""A whole ledger in another: every pair of kinds, and by way of a file."""

from __future__ import annotations

import gzip
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from onward.core import readers
from onward.core.contract import Effect, Fate, Key, UniqueGuard, Verdict
from onward.core.errors import Invalid
from onward.core.limits import Bound, Rate
from onward.core.outcome import Failed, Parked, Succeeded
from onward.core.task import Claimed, State, Task
from onward.faults import Fault
from onward.ledgers import open_backend
from onward.ledgers.portable import open_portable
from onward.ledgers.portable.check import check
from onward.ledgers.portable.copying import contents, copy
from onward.ledgers.portable.records import AnyRecord, EventRecord, KeyRecord, TaskRecord
from tests.contract.driver import Driver, submission
from tests.contract.ledgers import KEYS
from tests.servers import fresh_postgres_url, fresh_url
from tests.support import NOW, a_task, ids, replay

LONG = f'"{"long " * 1_000}"'
PLACES: Mapping[str, Callable[[Path, str], str]] = {
    "sqlite": lambda folder, name: f"sqlite:///{folder}/{name}.db",
    "redis7": lambda _, __: fresh_url("redis7"),
    "postgres15": lambda _, __: fresh_postgres_url("postgres15"),
}
OTHERS: Mapping[str, Callable[[Path, str], str]] = {
    "sqlite": PLACES["sqlite"],
    "valkey": lambda _, __: fresh_url("valkey"),
    "postgres18": lambda _, __: fresh_postgres_url("postgres18"),
    "file": lambda folder, name: f"{folder}/{name}.gz",
}


def no_progress(what: str, more: int) -> None:
    pass


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return PLACES[request.param](tmp_path, "first")


@pytest.fixture(params=OTHERS)
def other(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return OTHERS[request.param](tmp_path, "second")


@asynccontextmanager
async def opened(url: str, **more: Any) -> AsyncIterator[Driver]:
    backend = open_backend(url, **more)
    try:
        yield Driver(backend)
    finally:
        await backend.close()


class Life:
    """One of everything that a ledger can hold."""

    queued: list[Task]
    held: Claimed
    waiting: Task
    again: Task
    keyed: Task
    unread: str  # the first event that the reader has not read


async def lived(driver: Driver) -> Life:
    life = Life()
    life.queued = await driver.submit_some(3, session="s", payload=LONG)
    await driver.submit_some(2, queue="other", priority=2)
    await driver.submit(run_at=NOW + 60_000, queue="later")
    await driver.submit(queue="asks", waiting_for="approval")
    life.waiting = await driver.submit(queue="w", waiting_for="event")
    await driver.finished(queue="done", session="s")
    life.held = await driver.running(queue="held", key="order-1")
    await driver.post(life.held.id, "1", "2")
    await driver.backend.effects.begin(life.held, "charge", now=NOW)
    await driver.backend.effects.finish(life.held, "charge", '"receipt"', fence=life.held.fence)
    dead = await driver.running(queue="dead")
    await driver.settle(dead, Failed(Fault(kind="InvalidInput", message="no")))
    assert (await driver.apply(replay(await driver.task(dead.id), NOW))).verdicts == ["applied"]
    life.again = await driver.task(dead.id)
    life.keyed = a_task(queue="keyed", key="order-2")
    await driver.insert(submission(life.keyed, key=Key("console", "order-2", "body")))
    forgotten = a_task(queue="gone", key="order-3")
    await driver.insert(submission(forgotten, key=Key("console", "order-3", "body")))
    (claimed,) = await driver.claim("gone")
    await driver.settle(claimed, Succeeded("1"))
    assert await driver.store.purge([forgotten.id], now=driver.now) == 1
    parked = await driver.running(queue="parked", session="t")
    journal = Parked(seen=0, journal=LONG, waiting_for="children")
    await driver.settle(parked, journal, a_task(queue="child", parent=parked.id))
    documents = driver.backend.documents
    await documents.put("flow", "f", '{"a":1}', now=NOW)
    await documents.put("flow", "f", '{"a":2}', now=NOW)
    await documents.put("worker", "w", "{}", now=NOW, expires_at=NOW + 1_000_000)
    page = await driver.store.events(after="", limit=7)
    await documents.put(
        readers.CURSORS, "archive", msgspec.json.encode(page.next).decode(), now=NOW
    )
    await documents.put(readers.RETIRED, "new", '""', now=NOW)
    unread = (await driver.store.events(after=page.next or "", limit=1)).items[0]
    life.unread = f"{unread.task}:{unread.n}"
    return life


async def copied(source: str, target: str) -> str:
    """Into a ledger, by way of a file if the target is one; returns which."""
    await copy(open_portable(source), open_portable(target), no_progress)
    if "://" in target:
        return target
    return await copied(target, f"sqlite:///{target}.db")


async def check_same_life(driver: Driver, life: Life) -> None:
    """Nobody who goes on with the copy can tell."""
    assert ids(await driver.claim(limit=9)) == ids(life.queued)
    driver.now += 1
    assert (await driver.post(life.waiting.id, "1")).verdicts == [Verdict.APPLIED]
    assert await driver.settle(life.held, Succeeded("1")) is Verdict.APPLIED
    assert await driver.history(life.held.id) == ["task.created", "task.claimed", "task.succeeded"]
    assert await driver.backend.effects.begin(life.held, "charge", now=NOW) == Effect(
        life.held.id, 1, '"receipt"'
    )
    (again,) = await driver.claim(life.again.queue)
    assert again.id == life.again.id
    assert again.generation == 2
    assert await driver.settle(again, Succeeded("1")) is Verdict.APPLIED
    for key in ("order-2", "order-3"):
        inserted = await driver.insert(submission(a_task(key=key), key=Key("console", key, "body")))
        assert inserted.receipts[0].fate is Fate.KNOWN
    document = await driver.backend.documents.get("flow", "f", now=NOW)
    assert document is not None
    assert (document.body, document.version) == ('{"a":2}', 2)
    cursor = await driver.backend.documents.get(readers.CURSORS, "archive", now=NOW)
    assert cursor is not None
    after = msgspec.json.decode(cursor.body, type=str)
    (unread,) = (await driver.store.events(after=after, limit=1)).items
    assert f"{unread.task}:{unread.n}" == life.unread
    new = await driver.submit(queue="fresh")
    assert (await driver.all())[-1].id == new.id
    assert await driver.recount() == await driver.store.counts()


async def test_a_copy_goes_on_where_the_ledger_stopped(place: str, other: str) -> None:
    async with opened(place) as driver:
        life = await lived(driver)
    other = await copied(place, other)
    assert not (await check(open_portable(other), no_progress, quiet=True)).faults
    async with opened(other) as driver:
        await check_same_life(driver, life)


@pytest.mark.contract("L-2", "L-3", "L-4")
async def test_a_copy_has_the_ring_and_what_is_used(place: str, other: str) -> None:
    bounds = (
        Bound("each", True, 2, None, ("q",)),
        Bound("rate", False, None, Rate(2, 600_000), ("q",)),
        Bound("own", True, None, Rate(1, 600_000, 5), ("q",)),
    )
    now = time.time_ns() // 1_000_000
    async with opened(place) as driver:
        driver.now = now
        for partition in ("a", "b", "a", "b", "a", "b", "", "c"):
            await driver.submit(partition=partition)
        held = await driver.claim_all(limit=1, bounds=bounds)
        assert [task.partition for task in held] == ["a", "b"]
    other = await copied(place, other)
    async with opened(other) as driver:
        driver.now = now + 299_999
        assert await driver.claim(limit=9, bounds=bounds) == []
        usage = await driver.store.usage(bounds, "a", now=driver.now)
        assert [one.used for one in usage] == [1, 2, 1]
        driver.now += 1
        assert len(await driver.claim(limit=9, bounds=bounds)) == 1
        rest = await driver.claim_all(limit=3, bounds=bounds[:1])
        taken = [task.partition for task in rest]
        assert len(taken) == 3
        assert taken.count("a") <= 1 >= taken.count("b")


@pytest.mark.contract("B-2", "L-7", "L-8")
async def test_a_copy_knows_batches_and_who_has_which_key(place: str, other: str) -> None:
    rule = UniqueGuard(frozenset({State.QUEUED}), returns=True)
    async with opened(place) as driver:
        over = await driver.finished(batch="b", unique_key="old")
        first = submission(a_task(batch="b", unique_key="u"))
        waits = submission(a_task(batch="b", debounce_key="d", run_at=NOW + 100))
        await driver.insert(first, waits)
    other = await copied(place, other)
    async with opened(other) as driver:
        (states,) = await driver.store.batches(["b"])
        assert states == {State.SUCCEEDED: 1, State.QUEUED: 1, State.SCHEDULED: 1}
        receipts = await driver.insert(
            submission(a_task(unique_key="u"), unique=rule),
            submission(a_task(debounce_key="d", run_at=NOW + 100)),
            submission(a_task(unique_key="old"), unique=rule),
        )
        fates = [receipt.fate for receipt in receipts.receipts]
        assert fates == [Fate.HELD, Fate.WAITS, Fate.FRESH]
        assert over.id in ids(await driver.all())


async def test_what_is_sealed_stays_sealed(other: str, tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/first.db"
    async with opened(place, keys=KEYS) as driver:
        task = await driver.submit(payload='"secret"')
    other = await copied(place, other)
    async with opened(other, keys=KEYS) as driver:
        assert (await driver.task(task.id)).payload == '"secret"'
    async with opened(other) as driver:
        assert "secret" not in (await driver.task(task.id)).payload


async def test_a_ledger_is_not_written_over(place: str, tmp_path: Path) -> None:
    async with opened(place) as driver:
        task = await driver.submit()
    await copied(place, file := f"{tmp_path}/backup.gz")
    for target in (place, file):
        with pytest.raises(Invalid, match="already"):
            await copied(file, target)
    async with opened(place) as driver:
        assert ids(await driver.all()) == [task.id]


async def test_a_copy_leaves_no_enqueued_submission_behind(other: str) -> None:
    place = fresh_postgres_url("postgres18")
    async with opened(place) as driver:
        await driver.submit()
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute("INSERT INTO onward.enqueued VALUES ('a', '{}'), ('b', '{}')")
        with pytest.raises(Invalid, match="2 submissions have not been taken over yet") as refused:
            await copied(place, other)
        assert "start a server on it once" in (refused.value.hint or "")
        assert not (await check(open_portable(place), no_progress, quiet=True)).faults
        connection.execute("DELETE FROM onward.enqueued")
    await copied(place, other)


async def test_a_copy_that_fails_leaves_no_ledger(other: str, tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/first.db"
    async with opened(place) as driver:
        await driver.submit_some(3)
    target = open_portable(other)
    with suppress(ZeroDivisionError):
        async with target.writing() as writer:
            async for records in open_portable(place).read():
                await writer.write(records)
            raise ZeroDivisionError
    await copied(place, other)
    assert (await contents(target, "", no_progress)).counts["task"] == 3


async def test_a_damaged_backup_is_noticed(tmp_path: Path) -> None:
    place, file = f"sqlite:///{tmp_path}/a.db", tmp_path / "b.gz"
    async with opened(place) as driver:
        await lived(driver)
    await copied(place, str(file))
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    for damaged in (lines[:-1], [*lines[:5], *lines[6:]], [*lines[:-1], b"{}\n"], lines[1:], []):
        file.write_bytes(gzip.compress(b"".join(damaged)))
        with pytest.raises(Invalid, match="damaged"):
            await contents(open_portable(str(file)), "", no_progress)
    file.write_bytes(b"something else")
    with pytest.raises(Invalid, match="damaged"):
        await contents(open_portable(str(file)), "", no_progress)


async def records_of(place: str) -> list[AnyRecord]:
    return [record async for part in open_portable(place).read() for record in part]


def changed(records: list[AnyRecord], kind: type, **fields: Any) -> list[AnyRecord]:
    """With the last record of this kind changed."""
    at = max(at for at, record in enumerate(records) if isinstance(record, kind))
    return [*records[:at], msgspec.structs.replace(records[at], **fields), *records[at + 1 :]]


@pytest.mark.parametrize(
    ("kind", "fields", "fault"),
    [
        (EventRecord, {"n": 7}, "comes as number"),
        (EventRecord, {"task": "nobody"}, "no such task"),
        (EventRecord, {"type": "task.failed"}, "say otherwise"),
        (KeyRecord, {"task": "nobody", "forget_at": None}, "not there"),
        (TaskRecord, {"fields": {"id": "x", "queue": "q", "state": "running"}}, "without an alarm"),
    ],
)
async def test_what_does_not_fit_together_is_reported(
    tmp_path: Path, kind: type, fields: dict[str, Any], fault: str
) -> None:
    place, file = f"sqlite:///{tmp_path}/a.db", f"{tmp_path}/b.gz"
    async with opened(place) as driver:
        await lived(driver)
    async with open_portable(file).writing() as writer:
        await writer.write(changed(await records_of(place), kind, **fields))
    found = await check(open_portable(file), no_progress, quiet=True)
    assert any(fault in said for said in found.faults), found.faults


async def test_a_count_that_is_wrong_is_reported(tmp_path: Path) -> None:
    import apsw

    place = f"sqlite:///{tmp_path}/a.db"
    async with opened(place) as driver:
        await driver.submit_some(3)
    with apsw.Connection(f"{tmp_path}/a.db") as connection:
        connection.execute("UPDATE tally SET count = 5")
    found = await check(open_portable(place), no_progress, quiet=True)
    assert found.faults == ["3 of q are queued, and 5 are counted"]
