"""The event log to its readers: in order, at least once, from where each of them stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from onward.core import machine, tail
from onward.core.clock import ManualClock
from onward.core.contract import Backend, Submission
from onward.core.duty import LEASE_MS, Duty
from onward.core.tail import Tail
from onward.core.task import Event
from onward.core.troubles import Troubles
from tests.support import PROFILES, a_task, wait_until


class Reader:
    def __init__(self, name: str = "reader") -> None:
        self.name = name
        self.seen: list[str] = []
        self.batches: list[int] = []
        self.broken = False

    async def project(self, events: Sequence[Event]) -> None:
        if self.broken:
            raise RuntimeError("no connection")
        self.seen += [event.task for event in events]
        self.batches.append(len(events))


async def submit(backend: Backend, *names: str) -> None:
    items = [Submission(*machine.born(a_task(id=name), PROFILES["console"])) for name in names]
    await backend.tasks.insert(items, (), now=0)


async def test_a_reader_sees_everything_once_and_in_order(
    backend: Backend, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "BATCH", 2)
    reader = Reader()
    reading = Tail(backend, reader, clock)
    assert await reading.step() == 0
    await submit(backend, *"abcde")
    assert [await reading.step() for _ in range(4)] == [2, 2, 1, 0]
    assert reader.seen == list("abcde")


async def test_the_events_of_one_call_name_few_tasks(
    backend: Backend, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A projector may read all tasks that its events name."""
    monkeypatch.setattr(tail, "TASKS", 2)
    await submit(backend, *"abcde")
    reader = Reader()
    assert await Tail(backend, reader, clock).step() == 5
    assert (reader.seen, reader.batches) == (list("abcde"), [2, 2, 1])
    whole = Reader("reads in parts")
    await Tail(backend, whole, clock, batch=10).step()
    assert whole.batches == [5]


async def test_a_reader_goes_on_where_it_stopped(backend: Backend, clock: ManualClock) -> None:
    await submit(backend, "a")
    await Tail(backend, Reader(), clock).step()
    await submit(backend, "b")
    again = Reader()
    await Tail(backend, again, clock).step()
    assert again.seen == ["b"]
    other = Reader("other")
    await Tail(backend, other, clock).step()
    assert other.seen == ["a", "b"], "each reader has a cursor of its own"


async def test_a_reader_that_fails_is_given_the_same_events_again(
    backend: Backend, clock: ManualClock
) -> None:
    reader = Reader()
    reading = Tail(backend, reader, clock)
    await submit(backend, "a")
    reader.broken = True
    with pytest.raises(RuntimeError):
        await reading.step()
    await submit(backend, "b")
    reader.broken = False
    assert await reading.step() == 2
    assert reader.seen == ["a", "b"]


async def test_a_bell_is_enough_to_be_read(backend: Backend, clock: ManualClock) -> None:
    reader = Reader()
    running = asyncio.create_task(Tail(backend, reader, clock).run(Troubles()))
    await submit(backend, "a")
    backend.bell.ring("log")
    await wait_until(lambda: reader.seen == ["a"])
    await submit(backend, "b")
    backend.bell.ring("log")
    await wait_until(lambda: reader.seen == ["a", "b"])
    running.cancel()
    await asyncio.wait([running])


async def test_a_lost_bell_costs_a_second_and_nothing_else(
    backend: Backend, clock: ManualClock
) -> None:
    reader = Reader()
    running = asyncio.create_task(Tail(backend, reader, clock).run(Troubles()))
    await submit(backend, "a")
    await wait_until(lambda: reader.seen == ["a"])
    await submit(backend, "b")
    await wait_until(lambda: reader.seen == ["a", "b"])
    running.cancel()
    await asyncio.wait([running])


async def test_one_server_reads_and_another_goes_on_from_its_cursor(
    backend: Backend, clock: ManualClock
) -> None:
    turns: list[tuple[str, bool]] = []

    def server(name: str) -> tuple[Reader, Tail]:
        async def turn(ours: bool) -> None:
            turns.append((name, ours))

        reader, duty = Reader(), Duty(backend.documents, clock, "reader", name)
        return reader, Tail(backend, reader, clock, duty=duty, on_duty=turn)

    (first, one), (second, two) = server("one"), server("two")
    await submit(backend, "a")
    assert await one.catch_up()
    assert not await two.catch_up()
    clock.advance(LEASE_MS)
    await submit(backend, "b")
    assert await two.catch_up()
    assert not await one.catch_up()
    clock.advance(LEASE_MS)
    await submit(backend, "c")
    assert await one.catch_up()
    assert (first.seen, second.seen) == (["a", "c"], ["b"])
    assert turns == [("one", True), ("two", True), ("one", False), ("one", True)]


async def test_a_reader_that_is_stopped_leaves_its_duty_to_others(
    backend: Backend, clock: ManualClock
) -> None:
    duty = Duty(backend.documents, clock, "reader", "one")
    reader = Reader()
    running = asyncio.create_task(Tail(backend, reader, clock, duty=duty).run(Troubles()))
    await submit(backend, "a")
    await wait_until(lambda: reader.seen == ["a"])
    assert not await Duty(backend.documents, clock, "reader", "two").mine()
    running.cancel()
    await asyncio.wait([running])
    assert await Duty(backend.documents, clock, "reader", "two").mine()
