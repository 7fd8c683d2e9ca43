"""Texts that are long, and the part of a task's memory that is written only when it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from onward.core import machine
from onward.core.contract import Query, Verdict
from onward.core.outcome import Failed, Parked, Succeeded
from onward.core.task import State
from onward.faults import Fault
from onward.ledgers import open_backend
from tests.contract.driver import Driver
from tests.support import NOW, PROFILES, ids, replay

LONG = f'"{"é" * 3_000} needle"'
OTHER = f'"{"y" * 5_000}"'
WRONG = Fault(kind="Wrong", message="no", retryable=False)


def parked(journal: str, **more: Any) -> Parked:
    return Parked(seen=0, journal=journal, waiting_for="event", **more)


async def test_a_part_that_is_not_named_stays_as_it_was(driver: Driver) -> None:
    held = await driver.running()
    assert held.bulk is None
    for journal, bulk, told in (
        ("1", LONG, {"bulk": LONG}),
        ("2", LONG, {}),
        (OTHER, "[]", {"bulk": "[]"}),
        ("4", OTHER, {"bulk": OTHER}),
        ("5", None, {"bulk": None}),
    ):
        assert await driver.settle(held, parked(journal, **told)) is Verdict.APPLIED
        task = await driver.task(held.id)
        assert (task.journal, task.bulk) == (journal, bulk)
        await driver.post(held.id, "on")
        (held,) = await driver.claim()
        assert (held.journal, held.bulk) == (journal, bulk)


@pytest.mark.parametrize("outcome", [Succeeded("1", OTHER), Failed(WRONG, OTHER)], ids=type)
async def test_a_task_that_is_over_has_its_memory_in_one_part(
    driver: Driver, outcome: Succeeded | Failed
) -> None:
    held = await driver.running()
    await driver.settle(held, parked("1", bulk=LONG))
    await driver.post(held.id, "on")
    (held,) = await driver.claim()
    await driver.settle(held, outcome)
    task = await driver.task(held.id)
    assert (task.journal, task.bulk) == (OTHER, None)


async def test_an_answer_and_a_replay_have_the_same_parts(driver: Driver) -> None:
    held = await driver.running()
    await driver.settle(held, parked("1", bulk=LONG))
    task = await driver.task(held.id)
    await driver.apply(machine.answer(task, parked("2"), NOW, PROFILES[task.profile]))
    assert (await driver.task(held.id)).bulk == LONG
    task = await driver.task(held.id)
    await driver.apply(machine.cancel(task, NOW, PROFILES[task.profile]))
    task = await driver.task(held.id)
    assert (task.state, task.bulk) == (State.CANCELED, LONG)
    await driver.apply(replay(task, NOW))
    task = await driver.task(held.id)
    assert (task.journal, task.bulk) == (None, None)


async def test_long_texts_are_read_wherever_they_lie(driver: Driver) -> None:
    task = await driver.submit(payload=LONG)
    assert task.payload == LONG
    assert ids((await driver.store.find(Query(text="needle"))).items) == [task.id]
    (held,) = await driver.claim()
    assert held.payload == LONG
    await driver.settle(held, Succeeded(OTHER))
    (found,) = (await driver.store.find(Query())).items
    assert (found.payload, found.result) == (LONG, OTHER)
    (due,) = await driver.store.due(now=found.due_at or 0, limit=5)
    assert (due.payload, due.result) == (LONG, OTHER)
    assert await driver.store.purge([task.id], now=NOW) == 1
    assert await driver.all() == []


async def test_a_file_keeps_no_long_text_that_nothing_refers_to(tmp_path: Path) -> None:
    driver = Driver(open_backend(f"sqlite:///{tmp_path}/onward.db"))
    held = await driver.running(payload=LONG)
    await driver.settle(held, parked(OTHER, bulk=LONG))
    assert texts(tmp_path) == [("bulk",), ("journal",), ("payload",)]
    await driver.post(held.id, "on")
    (held,) = await driver.claim()
    await driver.settle(held, Succeeded("1", "2"))
    assert texts(tmp_path) == [("payload",)]
    await driver.store.purge([held.id], now=NOW)
    assert texts(tmp_path) == []
    await driver.backend.close()


async def test_a_row_of_an_earlier_version_keeps_its_long_text(tmp_path: Path) -> None:
    path = tmp_path / "onward.db"
    driver = Driver(open_backend(f"sqlite:///{path}"))
    task = await driver.submit()
    await driver.backend.close()
    earlier = apsw.Connection(str(path))
    earlier.execute("UPDATE task SET payload = ?", (LONG,))  # as they lay before
    earlier.close()
    driver = Driver(open_backend(f"sqlite:///{path}"))
    assert (await driver.task(task.id)).payload == LONG
    (held,) = await driver.claim()
    assert held.payload == LONG
    await driver.settle(held, Succeeded("1"))
    assert (await driver.task(task.id)).payload == LONG
    await driver.backend.close()


def texts(folder: Path) -> list[tuple[str]]:
    reader = apsw.Connection(str(folder / "onward.db"))
    try:
        return list(reader.execute("SELECT field FROM long_text ORDER BY field"))
    finally:
        reader.close()
