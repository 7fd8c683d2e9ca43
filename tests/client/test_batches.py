"""Many at once from Python: `submit_many`, `Batch`, and single submissions that share a request."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from onward import (
    Batch,
    Client,
    Context,
    ProblemError,
    StillRunning,
    SyncClient,
    TaskFailed,
    Worker,
)
from onward.client import batch as batches
from tests.client.conftest import Line, Start

SCHEMA = {"type": "integer"}
worker = Worker(concurrency=20)


@worker.service(name="double")
async def double(n: int) -> int:
    return 2 * n


@worker.service(name="picky", max_retries=0)
async def picky(ctx: Context, n: int) -> int:
    if n == 3:
        raise ValueError("not three")
    return n


@pytest.fixture
async def served(url: str, start: Start) -> None:
    worker.url = url
    await start(worker)


@pytest.fixture
def sent(client: Client) -> list[str]:
    """The paths of what it posts."""
    paths: list[str] = []

    async def note(request: httpx2.Request) -> None:
        if request.method == "POST":
            paths.append(request.url.path)

    client._api._http.event_hooks["request"].append(note)
    return paths


@pytest.fixture
def asked(client: Client) -> list[httpx2.URL]:
    """What it gets."""
    urls: list[httpx2.URL] = []

    async def note(request: httpx2.Request) -> None:
        if request.method == "GET":
            urls.append(request.url)

    client._api._http.event_hooks["request"].append(note)
    return urls


@pytest.mark.contract("B-5")
@pytest.mark.usefixtures("served")
async def test_many_are_submitted_and_their_results_come_in_order(client: Client) -> None:
    batch = await client.submit_many(double, range(150), name="doubles", tags=["x"])
    assert isinstance(batch, Batch)
    assert await batch.results() == [2 * n for n in range(150)]
    view = await batch.wait()
    assert (view.name, view.total, view.done, view.states) == (
        "doubles",
        150,
        150,
        {"succeeded": 150},
    )
    assert [task.result async for task in batch] == [2 * n for n in range(150)]
    by_name = await client.submit_many("double", [{"n": 1}, {"n": 2}])
    assert await by_name.results() == [2, 4]
    assert (await client.get(str(batch.ids[0]))).tags == ("x",)
    elsewhere = await client.batches.wait(by_name.id)  # by another process, which has the id alone
    assert (elsewhere.total, elsewhere.over) == (2, True)


@pytest.mark.contract("B-5")
@pytest.mark.usefixtures("served")
async def test_more_than_one_request_takes_are_one_batch(
    client: Client, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MOST_TASKS", 40)
    told: list[int] = []
    batch = await client.submit_many(
        "double", [{"n": n} for n in range(100)], on_submitted=told.append
    )
    assert told == [40, 40, 20]
    assert sent == ["/api/v2/tasks/batch"] * 3
    assert await batch.results() == [2 * n for n in range(100)]
    assert (await batch.wait()).total == 100


@pytest.mark.contract("B-5")
@pytest.mark.usefixtures("served")
async def test_the_first_failure_is_raised(client: Client) -> None:
    batch = await client.submit_many(picky, [{"n": n} for n in range(5)])
    with pytest.raises(TaskFailed, match="not three"):
        await batch.results()
    states = [task.state async for task in batch]
    assert states == ["succeeded"] * 3 + ["dead", "succeeded"]


@pytest.mark.contract("B-5")
@pytest.mark.usefixtures("served")
async def test_what_was_refused_keeps_its_place(client: Client) -> None:
    batch = await client.submit_many("double", [{"n": 1}, {"n": "x"}, {"n": 3}])
    assert [id is None for id in batch.ids] == [False, True, False]
    assert list(batch.refused) == [1]
    with pytest.raises(ProblemError, match="does not fit"):
        await batch.results()
    assert [task.result async for task in batch] == [2, 6]


@pytest.mark.contract("B-5")
@pytest.mark.usefixtures("served")
async def test_results_are_read_by_the_page(
    client: Client, asked: list[httpx2.URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await client.submit_many(double, range(150))
    await batch.wait()
    asked.clear()
    assert await batch.results() == [2 * n for n in range(150)]
    assert len([url for url in asked if url.path == "/api/v2/tasks"]) == 1
    monkeypatch.setattr(batches, "PAGE", 40)
    assert await batch.results() == [2 * n for n in range(150)]


@pytest.mark.contract("B-5")
@pytest.mark.usefixtures("served")
async def test_results_of_tasks_that_another_batch_has_are_read_too(
    client: Client, asked: list[httpx2.URL]
) -> None:
    """The key of one had come before; and most of a batch that is open to all is others'."""
    before = await client.submit("double", {"n": 1}, idempotency_key="one")
    one = await client.submit_many("double", [{"n": 1}], idempotency_key="one")
    assert one.ids == [before.id]
    assert await one.results() == [2]
    others = await client.submit_many("double", [{"n": n} for n in range(20)])
    first = [str(id) for id in others.ids[:2]]
    mine = Batch(client._api, client.wait, others.id, first, lambda value: value)
    await mine.wait()
    asked.clear()
    assert await mine.results() == [0, 2]
    assert [url.params.get("batch") for url in asked if url.path == "/api/v2/tasks"] == [None]


@pytest.mark.contract("B-5")
@pytest.mark.usefixtures("served")
async def test_a_task_that_is_not_kept_any_more_is_named(client: Client) -> None:
    batch = await client.submit_many(double, range(3))
    await batch.wait()
    gone = str(batch.ids[1])
    deleted = await client.operations.delete(ids=[gone])
    await client.operations.wait(str(deleted.id))
    with pytest.raises(ProblemError, match=f"task {gone} of this batch is not kept") as refused:
        await batch.results()
    assert (refused.value.status, refused.value.code) == (404, "not_found")
    with pytest.raises(ProblemError, match=gone):
        [task async for task in batch]


@pytest.mark.contract("B-5")
async def test_a_batch_that_is_not_over_in_time_goes_on(client: Client) -> None:
    batch = await client.submit_many("nobody", [1])
    with pytest.raises(StillRunning):
        await batch.wait(timedelta(milliseconds=1))
    assert (await batch.get()).states == {"queued": 1}


@pytest.mark.contract("B-5")
async def test_a_cut_does_not_hand_them_in_twice(client: Client, line: Line) -> None:
    async with Client(line.url) as far:
        line.swallow_answers = 1
        batch = await far.submit_many("nobody", range(30), name="once")
    assert (await client._api.call(dict[str, Any], "GET", "batches", batch.id))["total"] == 30
    listed = await client.list(type="nobody", limit=100)
    assert len(listed.items) == 30


@pytest.mark.contract("B-5")
async def test_submissions_at_once_share_a_request_each_with_its_own_answer(
    client: Client, sent: list[str]
) -> None:
    await client._api.tell(
        "POST", "services",
        body={"name": "strict", "task_types": ["strict"], "schema": {"strict": SCHEMA}},
    )  # fmt: skip
    sent.clear()
    answers = await asyncio.gather(
        client.submit("strict", "text"),
        *[client.submit("strict", n, tags=["many"]) for n in range(300)],
        client.submit("strict", 1, idempotency_key="same"),
        client.submit("strict", 2, idempotency_key="same"),
        return_exceptions=True,
    )
    assert sent == ["/api/v2/tasks", "/api/v2/tasks/batch"] or len(sent) < 5
    wrong = [each for each in answers if isinstance(each, BaseException)]
    assert [type(each) for each in wrong] == [ProblemError, ProblemError]
    assert {each.code for each in wrong if isinstance(each, ProblemError)} == {
        "invalid_request", "idempotency_key_reused",
    }  # fmt: skip
    views = [each for each in answers if not isinstance(each, BaseException)]
    assert [view.payload for view in views] == [*range(300), 1]
    assert len({view.id for view in views}) == 301


@pytest.mark.contract("B-5")
async def test_one_alone_is_sent_by_itself(client: Client, sent: list[str]) -> None:
    await client.submit("nobody")
    await client.submit("nobody", wait_ms=1)
    assert sent == ["/api/v2/tasks"] * 2


@pytest.mark.contract("B-5")
async def test_a_caller_that_gives_up_costs_the_others_nothing(client: Client) -> None:
    calls = [asyncio.create_task(client.submit("nobody", n)) for n in range(50)]
    await asyncio.sleep(0)
    calls[7].cancel()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(each, asyncio.CancelledError) for each in found) == 1
    assert sum(not isinstance(each, BaseException) for each in found) == 49


@pytest.mark.contract("B-5", "Y-1")
@pytest.mark.usefixtures("served")
async def test_the_same_without_await(url: str) -> None:
    def work() -> Any:
        with SyncClient(url) as client:
            batch = client.submit_many("double", [{"n": n} for n in range(30)])
            views: list[str] = []
            threads = [
                threading.Thread(target=lambda: views.append(client.submit("nobody").id))
                for _ in range(10)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            results = batch.results(), [task.result for task in batch]
            return results, batch.wait().done, len(set(views))

    results, done, submitted = await asyncio.to_thread(work)
    expected = [2 * n for n in range(30)]
    assert (results, done, submitted) == ((expected, expected), 30, 10)


@pytest.mark.contract("B-3")
async def test_operations_from_python(client: Client) -> None:
    await client.submit_many("nobody", range(20), tags=["old"])
    dry = await client.operations.cancel(tag="old", dry_run=True)
    assert (dry.matched, isinstance(dry.id, str)) == (20, False)
    begun = await client.operations.cancel(tag="old", state=["queued"])
    ended = await client.operations.wait(str(begun.id))
    assert (ended.done, ended.failed, ended.state) == (20, 0, "succeeded")
    assert [each.id for each in (await client.operations.list()).items] == [begun.id]
    with pytest.raises(ProblemError):
        await client.operations.stop(str(begun.id))
