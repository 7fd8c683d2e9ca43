"""What a handler logs is kept with its task, bounded, and read by API and SDK."""

from __future__ import annotations

import asyncio
import logging

import pytest

from onward import Client, Context, ProblemError, Refused, TaskFailed, Worker
from onward.client.task_log import TaskLog
from onward.settings import Settings
from onward.testing.sandbox import serving
from onward.wire.logs import LogRecord
from tests.client.conftest import Served, Start, served
from tests.support import wait_until

log = logging.getLogger("shop")


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture
async def worker(url: str, start: Start) -> Worker:
    worker = Worker(url)

    @worker.service(max_retries=0)
    async def awaited(ctx: Context, fail: bool = False) -> None:
        log.info("begun by %s", "ada")
        log.debug("left out")
        await asyncio.create_task(_deeper())
        if fail:
            raise ZeroDivisionError("by zero")

    @worker.service
    def plain(ctx: Context) -> None:
        log.warning("in a thread", extra={"attempt": "mine", "task_id": "mine"})

    @worker.service
    async def refused() -> None:
        raise Refused("no paper")

    await start(worker)
    return worker


async def _deeper() -> None:
    log.info("deeper")


async def lines_of(client: Client, task: str) -> list[LogRecord]:
    found: list[LogRecord] = []
    cursor: str | None = None
    while True:
        page = await client.task_logs(task, cursor)
        found += page.items
        if (cursor := page.next) is None:
            return found


@pytest.mark.contract("Y-5")
@pytest.mark.usefixtures("worker")
async def test_what_a_handler_logs_is_kept_with_its_task(client: Client) -> None:
    task = await client.submit("awaited", {"fail": True})
    with pytest.raises(TaskFailed):
        await client.result(task.id)

    lines = await lines_of(client, task.id)

    assert [(line.level, line.logger, line.message, line.attempt) for line in lines] == [
        ("INFO", "shop", "begun by ada", 1),
        ("INFO", "shop", "deeper", 1),
        ("ERROR", "onward.worker", "awaited failed (ZeroDivisionError)", 1),
    ]
    assert "ZeroDivisionError: by zero" in str(lines[-1].traceback)
    assert "test_task_logs.py" in str(lines[-1].traceback).splitlines()[1], "the SDK's own lines"


@pytest.mark.contract("Y-5")
@pytest.mark.usefixtures("worker")
async def test_threads_log_to_their_task_and_a_refusal_has_no_traceback(client: Client) -> None:
    plain = await client.submit("plain", {}, wait_ms=30_000)
    refused = await client.submit("refused", {}, wait_ms=30_000)

    assert [line.message for line in await lines_of(client, plain.id)] == ["in a thread"]
    (line,) = await lines_of(client, refused.id)
    assert line.message == "refused failed (Refused): no paper"
    assert not isinstance(line.traceback, str)


@pytest.mark.contract("Y-5")
@pytest.mark.usefixtures("worker")
async def test_every_record_names_task_and_attempt(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    task = await client.submit("awaited", {}, wait_ms=30_000)
    log.info("outside")

    marks = {record.message: (record.task_id, record.attempt) for record in caplog.records}  # type: ignore[attr-defined]
    assert marks["deeper"] == (task.id, 1)
    assert marks["outside"] == (None, None)


@pytest.mark.contract("Y-5")
async def test_lines_are_followed_until_the_task_is_over(
    url: str, client: Client, start: Start
) -> None:
    worker = Worker(url)
    go_on = asyncio.Event()

    @worker.service
    async def slow() -> None:
        log.info("first")
        await go_on.wait()
        log.info("last")

    await start(worker)
    task = await client.submit("slow", {})
    seen = []
    async for line in client.follow_task_logs(task.id):
        seen.append(line.message)
        go_on.set()

    assert seen == ["first", "last"]


@pytest.mark.contract("Y-5")
async def test_the_newest_mebibyte_is_kept(url: str, client: Client, start: Start) -> None:
    worker = Worker(url)

    @worker.service
    async def chatty() -> None:
        for n in range(300):
            log.info("%d %s", n, "x" * 8_000)
            if n % 20 == 0:
                await asyncio.sleep(0)

    await start(worker)
    task = await client.submit("chatty", {}, wait_ms=30_000)
    lines = await lines_of(client, task.id)

    assert sum(len(line.message) for line in lines) <= 1 << 20
    assert lines[-1].message.startswith("299 ")
    numbers = [int(line.message.split()[0]) for line in lines if line.logger == "shop"]
    assert numbers == sorted(numbers)
    assert len(numbers) > 50


@pytest.mark.contract("Y-5")
async def test_nothing_is_kept_where_it_is_off(start: Start) -> None:
    async with served(task_logs="off") as url, Client(url) as client:
        worker = Worker(url)

        @worker.service
        async def speak() -> None:
            log.info("unheard")

        await start(worker)
        task = await client.submit("speak", {}, wait_ms=30_000)
        assert await lines_of(client, task.id) == []


@pytest.mark.contract("Y-5")
async def test_an_unknown_task_and_a_broken_cursor_are_refused(client: Client) -> None:
    with pytest.raises(ProblemError) as missing:
        await client.task_logs("nothing")
    task = await client.submit("later")
    with pytest.raises(ProblemError) as broken:
        await client.task_logs(task.id, "x")

    assert (missing.value.status, broken.value.status) == (404, 422)
    assert (await client.task_logs(task.id)).items == ()


@pytest.mark.contract("Y-5")
async def test_lines_come_over_every_transport(site: Served) -> None:
    worker = Worker(site.url)

    @worker.service
    async def fail() -> None:
        log.info("before")
        raise ZeroDivisionError

    serving = await site.start(worker)
    try:
        # Not left to the declaration: a worker on the ledger may be heard of only after this.
        task = await site.client.submit("fail", {}, max_retries=0)
        await site.client.wait(task.id, timeout_ms=30_000)
        # A worker on the ledger writes them itself, beside the server that is asked here.
        lines = await wait_until(
            lambda: lines_of(site.client, task.id), holds=lambda found: len(found) == 2
        )
    finally:
        serving.cancel()
        await asyncio.wait([serving])
    assert [line.message for line in lines] == ["before", "fail failed (ZeroDivisionError)"]
    assert "test_task_logs.py" in str(lines[-1].traceback)


@pytest.mark.contract("Y-5")
async def test_lines_go_with_their_task() -> None:
    settings = Settings(ledger="sqlite://", port=0)
    async with serving(settings) as (app, url), Client(url) as client:
        logs = app.onward.task_logs
        task = await client.submit("later")
        line = LogRecord(at=1, level="INFO", logger="shop", message="secret", attempt=1)
        logs.add(task.id, [line], retention_ms=1000)
        assert (await client.task_logs(task.id)).items == (line,)

        await client.cancel(task.id)
        await app.onward.erase([task.id])

        assert await app.onward.backend.documents.list(f"task_log:{task.id}", now=0) == []


@pytest.mark.contract("Y-5")
async def test_lines_that_cannot_be_sent_give_way_to_newer_ones() -> None:
    sent: list[LogRecord] = []

    async def send(lines: object) -> None:
        sent.extend(lines)  # type: ignore[arg-type]

    task_log = TaskLog("t", 1, send)
    for n in range(200):
        line = LogRecord(at=n, level="INFO", logger="shop", message="x" * 10_000, attempt=1)
        task_log.add(line)
    await task_log.close()

    assert sent[0].message.endswith("they came faster than they could be sent")
    assert [line.at for line in sent[1:]] == list(range(200 - len(sent) + 1, 200))
