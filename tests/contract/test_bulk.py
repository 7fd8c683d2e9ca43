"""Texts that are long, and the part of a task's memory that is written only when it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from onward.core import machine
from onward.core.contract import Query, Verdict
from onward.core.outcome import Failed, Parked, Succeeded
from onward.core.task import Fault, State
from onward.ledgers import open_backend
from tests.contract.desk import Desk
from tests.support import NOW, PROFILES, ids, replay

LONG = f'"{"é" * 3_000} needle"'
OTHER = f'"{"y" * 5_000}"'
WRONG = Fault(kind="Wrong", message="no", retryable=False)


def parked(journal: str, **more: Any) -> Parked:
    return Parked(seen=0, journal=journal, waiting_for="event", **more)


async def test_a_part_that_is_not_named_stays_as_it_was(desk: Desk) -> None:
    held = await desk.running()
    assert held.bulk is None
    for journal, bulk, told in (
        ("1", LONG, {"bulk": LONG}),
        ("2", LONG, {}),
        (OTHER, "[]", {"bulk": "[]"}),
        ("4", OTHER, {"bulk": OTHER}),
        ("5", None, {"bulk": None}),
    ):
        assert await desk.settle(held, parked(journal, **told)) is Verdict.APPLIED
        task = await desk.task(held.id)
        assert (task.journal, task.bulk) == (journal, bulk)
        await desk.post(held.id, "on")
        (held,) = await desk.claim()
        assert (held.journal, held.bulk) == (journal, bulk)


@pytest.mark.parametrize("outcome", [Succeeded("1", OTHER), Failed(WRONG, OTHER)], ids=type)
async def test_a_task_that_is_over_has_its_memory_in_one_part(
    desk: Desk, outcome: Succeeded | Failed
) -> None:
    held = await desk.running()
    await desk.settle(held, parked("1", bulk=LONG))
    await desk.post(held.id, "on")
    (held,) = await desk.claim()
    await desk.settle(held, outcome)
    task = await desk.task(held.id)
    assert (task.journal, task.bulk) == (OTHER, None)


async def test_an_answer_and_a_replay_have_the_same_parts(desk: Desk) -> None:
    held = await desk.running()
    await desk.settle(held, parked("1", bulk=LONG))
    task = await desk.task(held.id)
    await desk.apply(machine.answer(task, parked("2"), NOW, PROFILES[task.profile]))
    assert (await desk.task(held.id)).bulk == LONG
    task = await desk.task(held.id)
    await desk.apply(machine.cancel(task, NOW, PROFILES[task.profile]))
    task = await desk.task(held.id)
    assert (task.state, task.bulk) == (State.CANCELED, LONG)
    await desk.apply(replay(task, NOW))
    task = await desk.task(held.id)
    assert (task.journal, task.bulk) == (None, None)


async def test_long_texts_are_read_wherever_they_lie(desk: Desk) -> None:
    task = await desk.submit(payload=LONG)
    assert task.payload == LONG
    assert ids((await desk.store.find(Query(text="needle"))).items) == [task.id]
    (held,) = await desk.claim()
    assert held.payload == LONG
    await desk.settle(held, Succeeded(OTHER))
    (found,) = (await desk.store.find(Query())).items
    assert (found.payload, found.result) == (LONG, OTHER)
    (due,) = await desk.store.due(now=found.due_at or 0, limit=5)
    assert (due.payload, due.result) == (LONG, OTHER)
    assert await desk.store.purge([task.id], now=NOW) == 1
    assert await desk.all() == []


async def test_a_file_keeps_no_long_text_that_nothing_refers_to(tmp_path: Path) -> None:
    desk = Desk(open_backend(f"sqlite:///{tmp_path}/onward.db"))
    held = await desk.running(payload=LONG)
    await desk.settle(held, parked(OTHER, bulk=LONG))
    assert texts(tmp_path) == [("bulk",), ("journal",), ("payload",)]
    await desk.post(held.id, "on")
    (held,) = await desk.claim()
    await desk.settle(held, Succeeded("1", "2"))
    assert texts(tmp_path) == [("payload",)]
    await desk.store.purge([held.id], now=NOW)
    assert texts(tmp_path) == []
    await desk.backend.close()


async def test_a_row_of_an_earlier_version_keeps_its_long_text(tmp_path: Path) -> None:
    path = tmp_path / "onward.db"
    desk = Desk(open_backend(f"sqlite:///{path}"))
    task = await desk.submit()
    await desk.backend.close()
    earlier = apsw.Connection(str(path))
    earlier.execute("UPDATE task SET payload = ?", (LONG,))  # as they lay before
    earlier.close()
    desk = Desk(open_backend(f"sqlite:///{path}"))
    assert (await desk.task(task.id)).payload == LONG
    (held,) = await desk.claim()
    assert held.payload == LONG
    await desk.settle(held, Succeeded("1"))
    assert (await desk.task(task.id)).payload == LONG
    await desk.backend.close()


def texts(folder: Path) -> list[tuple[str]]:
    reader = apsw.Connection(str(folder / "onward.db"))
    try:
        return list(reader.execute("SELECT field FROM long_text ORDER BY field"))
    finally:
        reader.close()
