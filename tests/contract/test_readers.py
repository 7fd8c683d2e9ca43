"""Readers of the log: seen, counted and, when they are gone for good, waited for no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from onward.core.clock import ManualClock
from onward.core.contract import POSTPONE_MS, Backend
from onward.core.duty import LEASE_MS as DUTY_MS
from onward.core.duty import Duty
from onward.core.readers import CURSORS, DAY_MS, RENEW_MS, RETIRED, Readers, record_activity
from onward.core.tail import Tail
from onward.core.task import Event
from tests.contract.driver import Driver
from tests.support import NOW


class Listing:
    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[str] = []

    async def project(self, events: Sequence[Event]) -> None:
        self.seen += [event.task for event in events]


async def run_for(readers: Readers, clock: ManualClock, ms: int, *alive: Tail) -> None:
    """A server runs for so long, with these readers on it."""
    until = clock.now() + ms
    while clock.now() < until:
        clock.advance(4 * RENEW_MS)
        for tail in alive:
            await tail.catch_up()
        await readers.retire_silent()


async def test_a_reader_that_is_gone_for_days_no_longer_holds_finished_tasks(
    driver: Driver,
) -> None:
    clock = ManualClock()
    readers = Readers(driver.backend, clock, 2 * DAY_MS)
    gone, there = Listing("gone"), Listing("there")
    await Tail(driver.backend, gone, clock).catch_up()
    alive = Tail(driver.backend, there, clock)
    over = await driver.finished()
    await run_for(readers, clock, 2 * DAY_MS - 3_600_000, alive)
    assert await driver.store.purge([over.id], now=clock.now()) == 0, "it may still come back"
    with capture_logs() as logs:
        await run_for(readers, clock, 2 * 3_600_000, alive)
    assert [(line["log_level"], line["reader"], line["silent_days"]) for line in logs] == [
        ("error", "gone", 2)
    ]
    assert await driver.store.purge([over.id], now=clock.now()) == 1
    assert [(one.name, one.retired) for one in await readers.list()] == [
        ("there", False),
        ("gone", True),
    ]


async def test_days_on_which_no_server_ran_count_for_nobody(driver: Driver) -> None:
    clock = ManualClock()
    readers = Readers(driver.backend, clock, 2 * DAY_MS)
    await Tail(driver.backend, Listing("reader"), clock).catch_up()
    await readers.retire_silent()
    clock.advance(30 * DAY_MS)
    await readers.retire_silent()
    assert not (await readers.list())[0].retired, "it had no chance to look"


async def test_silence_is_counted_once_however_many_servers_look(driver: Driver) -> None:
    clock = ManualClock()
    servers = [Readers(driver.backend, clock, DAY_MS) for _ in range(3)]
    await Tail(driver.backend, Listing("reader"), clock).catch_up()
    for _ in range(10):
        clock.advance(3 * RENEW_MS)
        for readers in servers:
            await readers.retire_silent()
    (found,) = await servers[0].list()
    assert found.silent_ms == 30 * RENEW_MS
    assert found.seen_at == NOW


async def test_a_reader_that_looked_a_moment_ago_is_not_silent(driver: Driver) -> None:
    clock = ManualClock()
    readers = Readers(driver.backend, clock, DAY_MS)
    await Tail(driver.backend, Listing("reader"), clock).catch_up()
    clock.advance(RENEW_MS)
    await readers.retire_silent()
    assert [one.silent_ms for one in await readers.list()] == [0]


async def test_a_reader_that_looks_while_it_is_counted_is_not_silent(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, documents = ManualClock(), driver.backend.documents
    readers = Readers(driver.backend, clock, DAY_MS)
    await Tail(driver.backend, Listing("reader"), clock).catch_up()
    clock.advance(3 * RENEW_MS)
    put = documents.put

    async def after_a_look(*document: str, **more: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(documents, "put", put)
            await record_activity(documents, "reader", now=clock.now())
        return await put(*document, **more)

    monkeypatch.setattr(documents, "put", after_a_look)
    await readers.retire_silent()
    (found,) = await readers.list()
    assert (found.silent_ms, found.seen_at) == (0, clock.now())


async def test_a_reader_that_reads_on_while_it_is_retired_is_not_retired(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, documents = ManualClock(), driver.backend.documents
    readers = Readers(driver.backend, clock, RENEW_MS)
    tail = Tail(driver.backend, Listing("reader"), clock)
    await tail.catch_up()
    await driver.submit()
    clock.advance(3 * RENEW_MS)
    put = documents.put

    async def after_reading(kind: str, *document: str, **more: Any) -> Any:
        if kind == RETIRED:
            with monkeypatch.context() as patch:
                patch.setattr(documents, "put", put)
                await tail.catch_up()
        return await put(kind, *document, **more)

    monkeypatch.setattr(documents, "put", after_reading)
    await readers.retire_silent()
    assert [(one.name, one.retired) for one in await readers.list()] == [("reader", False)]


async def test_the_cursor_of_an_older_version_begins_to_be_silent_now(driver: Driver) -> None:
    clock = ManualClock()
    readers = Readers(driver.backend, clock, DAY_MS)
    start = (await driver.store.events(after="$", limit=1)).next or ""
    await driver.backend.documents.put(CURSORS, "old", f'"{start}"', now=NOW)
    over = await driver.finished()
    await readers.retire_silent()
    assert await driver.store.purge([over.id], now=NOW) == 0
    await run_for(readers, clock, DAY_MS + 3_600_000)
    assert await driver.store.purge([over.id], now=clock.now()) == 1


async def test_a_retired_reader_that_comes_back_goes_on_where_it_was(driver: Driver) -> None:
    clock = ManualClock()
    readers = Readers(driver.backend, clock, DAY_MS)
    first = await driver.submit()
    await Tail(driver.backend, Listing("reader"), clock).catch_up()
    await run_for(readers, clock, DAY_MS + 3_600_000)
    assert (await readers.list())[0].retired
    second = await driver.submit()
    back = Listing("reader")
    with capture_logs() as logs:
        await Tail(driver.backend, back, clock).catch_up()
    assert first.id not in back.seen
    assert set(back.seen) == {second.id}
    assert [line["reader"] for line in logs] == ["reader"]
    assert [(one.name, one.retired, one.silent_ms) for one in await readers.list()] == [
        ("reader", False, 0)
    ]


async def test_how_far_a_reader_is_behind_is_known(driver: Driver) -> None:
    clock = ManualClock()
    readers = Readers(driver.backend, clock)
    tail = Tail(driver.backend, Listing("reader"), clock)
    await tail.catch_up()
    assert (await readers.list())[0].behind_ms == 0
    await driver.submit()
    clock.advance(5_000)
    assert (await readers.list())[0].behind_ms == 5_000
    await tail.catch_up()
    assert (await readers.list())[0].behind_ms == 0


async def test_a_reader_can_be_forgotten(driver: Driver) -> None:
    clock = ManualClock()
    readers = Readers(driver.backend, clock)
    await Tail(driver.backend, Listing("reader"), clock).catch_up()
    over = await driver.finished()
    assert await driver.store.purge([over.id], now=NOW) == 0
    assert await readers.forget("reader")
    assert not await readers.forget("reader")
    assert await readers.list() == []
    assert await driver.store.purge([over.id], now=NOW) == 1


async def test_a_retired_reader_can_be_forgotten(driver: Driver) -> None:
    clock = ManualClock()
    readers = Readers(driver.backend, clock, RENEW_MS)
    await Tail(driver.backend, Listing("reader"), clock).catch_up()
    await run_for(readers, clock, 4 * RENEW_MS)
    assert [one.retired for one in await readers.list()] == [True]
    assert await readers.forget("reader")
    assert await readers.list() == []


@pytest.mark.parametrize("postpone_ms", [POSTPONE_MS, 10 * POSTPONE_MS])
async def test_what_is_not_read_yet_is_due_again_when_the_caller_says(
    driver: Driver, postpone_ms: int
) -> None:
    await Tail(driver.backend, Listing("reader"), ManualClock()).catch_up()
    over = await driver.finished()
    assert await driver.store.purge([over.id], now=NOW, postpone_ms=postpone_ms) == 0
    assert (await driver.task(over.id)).due_at == NOW + postpone_ms


async def test_a_document_is_deleted_only_as_it_was_read(backend: Backend) -> None:
    documents = backend.documents
    first = await documents.put("kind", "key", "1", now=NOW)
    second = await documents.put("kind", "key", "2", now=NOW)
    assert first is not None
    assert second is not None
    assert not await documents.delete("kind", "key", expect=first.version)
    assert await documents.get("kind", "key", now=NOW) == second
    assert await documents.delete("kind", "key", expect=second.version)
    assert await documents.get("kind", "key", now=NOW) is None
    assert await documents.list("kind", now=NOW) == []
    assert not await documents.delete("kind", "key", expect=second.version)
    again = await documents.put("kind", "key", "3", now=NOW, expect=0)
    assert again is not None


async def test_a_duty_is_given_up_by_its_present_holder(backend: Backend) -> None:
    clock = ManualClock()
    paused, successor = (Duty(backend.documents, clock, "work", name) for name in ("a", "b"))
    assert await paused.mine()
    clock.advance(DUTY_MS + 1)
    assert await successor.mine()
    await paused.give_up()
    assert not await Duty(backend.documents, clock, "work", "c").mine()
    assert await successor.mine()
    await successor.give_up()
    assert await Duty(backend.documents, clock, "work", "c").mine()
