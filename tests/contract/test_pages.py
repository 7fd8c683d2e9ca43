"""Pages hold so many bytes as well as so many rows: megabytes never come all at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

from onward.core.contract import LOG_BYTES, PAGE_BYTES, Backend, Page, Query
from onward.core.task import Event, Task
from onward.ledgers import open_backend
from onward.ledgers.sealed import unwrap
from onward.ledgers.sealed.texts import Resealable
from tests.contract.driver import Driver, submission
from tests.contract.ledgers import LEDGERS
from tests.servers import fresh_url
from tests.support import NOW, a_task, ids

LARGE = f'"{"x" * 1_000_000}"'


@pytest.fixture(params=[*LEDGERS, "archived"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    if request.param == "archived":
        backend = open_backend(fresh_url("redis7"), archive=f"sqlite:///{tmp_path}/archive.db")
    else:
        backend = LEDGERS[request.param](tmp_path)
    yield backend
    await backend.close()


async def large_tasks(driver: Driver, count: int) -> list[str]:
    tasks = [a_task(payload=LARGE) for _ in range(count)]
    for task in tasks:
        await driver.insert(submission(task))
    return ids(tasks)


async def pages(driver: Driver, query: Query) -> list[Page[Task]]:
    found = [await driver.store.find(query)]
    while found[-1].next is not None:
        query = msgspec.structs.replace(query, after=found[-1].next)
        found.append(await driver.store.find(query))
    return found


def text(task: Task) -> int:
    return len(task.payload)


@pytest.mark.parametrize("word", [None, "xxx"])
async def test_a_page_of_large_tasks_ends_early_and_all_are_seen(
    driver: Driver, word: str | None
) -> None:
    submitted = await large_tasks(driver, 50)
    found = await pages(driver, Query(limit=1_000, text=word))
    assert [task.id for page in found for task in page.items] == submitted[::-1]
    for page in found:
        assert sum(map(text, page.items[:-1])) <= PAGE_BYTES, "only the last one may go beyond"
    assert len(found) > 5
    assert found[-1].items, "the last page is not an empty one"


async def test_texts_at_rest_are_gone_through_a_few_megabytes_at_a_time(driver: Driver) -> None:
    """A step of a rotation rewrites in one transaction what it has read."""
    ledger = cast("Resealable", unwrap(driver.backend))
    await large_tasks(driver, 20)
    after: str | None = ""
    sizes: list[int] = []
    while after is not None:
        sealed_texts, after = await ledger.sealed_texts[0].read(after, 500)
        sizes.append(sum(len(cell.text) for cell in sealed_texts))
    assert sum(sizes) >= 20 * 1_000_000
    assert max(sizes) <= PAGE_BYTES + 2 * len(LARGE)


async def test_a_task_larger_than_a_page_is_a_page(driver: Driver) -> None:
    submitted = await large_tasks(driver, 3)
    page = await driver.store.find(Query(most_bytes=10))
    assert ids(page.items) == [submitted[-1]]
    page = await driver.store.find(Query(most_bytes=10, after=page.next, limit=7))
    assert ids(page.items) == [submitted[-2]]


async def test_what_is_due_is_bounded_in_bytes_and_all_of_it_comes(driver: Driver) -> None:
    tasks = [a_task(payload=LARGE, run_at=NOW + n) for n in range(1, 21)]
    for task in tasks:
        await driver.insert(submission(task))
    seen: list[str] = []
    sizes: list[int] = []
    while due := await driver.store.due(now=NOW + 100, limit=256, without=seen):
        seen += ids(due)
        sizes.append(sum(len(task.payload) for task in due[:-1]))
    assert seen == ids(tasks), "in their order, past those that were seen"
    assert max(sizes) <= PAGE_BYTES
    assert len(sizes) > 2
    first = await driver.store.due(now=NOW + 100, limit=256, most_bytes=1)
    assert ids(first) == seen[:1], "one that is larger than an answer is an answer"


async def test_small_tasks_fill_a_page(driver: Driver) -> None:
    await driver.submit_some(12)
    page = await driver.store.find(Query(limit=10))
    assert len(page.items) == 10
    last = await driver.store.find(Query(limit=10, after=page.next))
    assert (len(last.items), last.next) == (2, None)


@pytest.mark.parametrize("whole", [True, False], ids=["log", "history"])
async def test_a_page_of_large_events_ends_early_and_all_are_seen(
    driver: Driver, whole: bool
) -> None:
    held = await driver.running()
    for _ in range(20):
        await driver.hold(held, ("task.chunk", LARGE))
    task = None if whole else held.id
    found: list[Event] = []
    after, more, read = "", True, 0
    while more:
        page = await driver.store.events(after=after, limit=1_000, task=task)
        size = sum(len(event.data or "") for event in page.items[:-1])
        assert size <= LOG_BYTES, "only the last one may go beyond"
        found += page.items
        after, more, read = page.next or after, page.more, read + 1
    assert [event.n for event in found] == list(range(1, 23))
    assert read > 3
    page = await driver.store.events(after=after, limit=1_000, task=task)
    assert (page.items, page.next, page.more) == ([], after, False)


async def test_events_that_fill_a_page_by_number_say_that_there_may_be_more(driver: Driver) -> None:
    held = await driver.running()
    await driver.hold(held, *[("task.chunk", "1")] * 10)
    for task in (None, held.id):
        page = await driver.store.events(after="", limit=5, task=task)
        assert (len(page.items), page.more) == (5, True)
        page = await driver.store.events(after=page.next or "", limit=100, task=task)
        assert (len(page.items), page.more) == (7, False)
