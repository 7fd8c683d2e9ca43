"""/metrics of all work: waits, runs, endings, queues, and the ledger, after real work."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from onward.core.errors import LedgerUnavailable
from onward.core.measures import MOST_SERVICES
from tests.running_app import App, running_app
from tests.servers import fresh_postgres_url, fresh_url
from tests.support import wait_until


class Scrape:
    """The samples of one answer of /metrics."""

    def __init__(self, text: str) -> None:
        self.lines = [line for line in text.splitlines() if not line.startswith("#")]

    def value(self, name: str, **labels: str) -> float | None:
        """None: there is no such sample."""
        for line in self.lines:
            sample, _, value = line.rpartition(" ")
            found = dict(re.findall(r'(\w+)="(.*?)"', sample))
            if sample.partition("{")[0] == name and found == labels:
                return float(value)
        return None


async def scrape(app: App) -> Scrape:
    answer = await app.get("/metrics")
    assert answer.status_code == 200
    return Scrape(answer.text)


async def ended(app: App, service: str) -> dict[str, float | None]:
    found = await scrape(app)
    outcomes = ("succeeded", "failed", "dead", "canceled")
    return {
        one: count
        for one in outcomes
        if (count := found.value("onward_tasks_total", service=service, outcome=one))
    }


async def test_a_task_is_measured_from_its_queue_to_its_end(app: App) -> None:
    await app.submit("job")
    await app.advance(3_000)
    worker = await app.worker(services=["job"])
    task = await worker.task()
    await app.advance(1_500)
    await worker.answer(task["taskId"], 1)
    await app.settled()
    found = await scrape(app)
    for name, seconds, below, above in (
        ("onward_task_wait_seconds", 3.0, "2.5", "5.0"),
        ("onward_task_run_seconds", 1.5, "1.0", "2.5"),
    ):
        assert found.value(f"{name}_sum", service="job") == seconds
        assert found.value(f"{name}_count", service="job") == 1
        assert found.value(f"{name}_bucket", service="job", le=below) == 0
        assert found.value(f"{name}_bucket", service="job", le=above) == 1
        assert found.value(f"{name}_bucket", service="job", le="+Inf") == 1
    assert await ended(app, "job") == {"succeeded": 1}


async def test_each_way_to_end_is_an_outcome_and_a_retry_is_none(app: App) -> None:
    worker = await app.worker(services=["job"], concurrency=2)
    again = await app.submit("job")
    await worker.task()
    await worker.answer(again, error="busy", retryable=True)
    await app.settled()
    found = await scrape(app)
    assert found.value("onward_task_retries_total", service="job") == 1
    assert found.value("onward_task_run_seconds_count", service="job") == 1, "an attempt is a run"
    assert await ended(app, "job") == {}
    await app.post(f"/api/v2/tasks/{again}/cancel", {})  # it waits for its next try
    assert await ended(app, "job") == {"canceled": 1}
    dead = await app.submit("job")
    await worker.task()
    await worker.answer(dead, error="no", retryable=False)
    await app.settled()
    assert await ended(app, "job") == {"canceled": 1, "dead": 1}
    await app.post("/api/v2/dead-letters/abandon", {"ids": [dead]})
    assert (await app.task(dead))["state"] == "failed"
    assert await ended(app, "job") == {"canceled": 1, "dead": 1}, "it had ended before"


async def test_what_the_clock_ends_is_an_outcome(app: App) -> None:
    worker = await app.worker(services=["job"])
    await app.submit("job", timeout_ms=1_000, max_retries=0)
    await worker.task()
    await app.advance(2_000)
    assert await ended(app, "job") == {"dead": 1}
    assert (await scrape(app)).value("onward_task_run_seconds_sum", service="job") == 2


async def over(app: App, task: str) -> bool:
    return (await app.task(task))["state"] in ("succeeded", "failed", "dead", "canceled")


async def test_a_service_with_a_worker_has_its_series_before_its_first_task(app: App) -> None:
    await app.worker(services=["job"], group="g")
    found = await scrape(app)
    assert found.value("onward_tasks_total", service="job", outcome="dead") == 0
    assert found.value("onward_task_run_seconds_count", service="job") == 0
    assert found.value("onward_task_run_seconds_count", service="group:g") is None


async def test_what_a_worker_hands_back_is_no_run(app: App) -> None:
    worker = await app.worker(services=["job"])
    await app.submit("job")
    await worker.task()
    await worker.close()
    await app.settled()
    found = await scrape(app)
    assert found.value("onward_task_run_seconds_count", service="job") == 0
    assert found.value("onward_task_wait_seconds_count", service="job") == 1


async def test_services_beyond_the_first_hundred_are_one_series(app: App) -> None:
    for n in range(MOST_SERVICES + 20):
        id = await app.submit(f"service-{n:03}")
        await app.post(f"/api/v2/tasks/{id}/cancel", {})
    lines = [
        line
        for line in (await scrape(app)).lines
        if line.startswith("onward_tasks_total{") and 'outcome="canceled"' in line
    ]
    assert len(lines) == MOST_SERVICES + 1
    assert 'onward_tasks_total{outcome="canceled",service="_other"} 20.0' in lines
    assert sum(float(line.rpartition(" ")[2]) for line in lines) == MOST_SERVICES + 20


async def test_the_age_and_the_workers_of_each_queue(app: App) -> None:
    await app.submit("job", queue="slow")
    await app.advance(90_000)
    await app.submit("job", queue="slow")
    await app.worker(services=["idle"])
    found = await scrape(app)
    assert found.value("onward_queue_oldest_seconds", queue="slow") == 90
    assert found.value("onward_queue_workers", queue="slow") == 0
    assert found.value("onward_queue_oldest_seconds", queue="idle") is None
    worker = await app.worker(services=["slow"])
    await worker.task()
    found = await scrape(app)
    assert found.value("onward_queue_workers", queue="slow") == 1
    assert found.value("onward_queue_oldest_seconds", queue="slow") == 0


async def test_the_age_of_the_approval_that_is_open_longest(app: App) -> None:
    assert (await scrape(app)).value("onward_approval_oldest_seconds") == 0
    for _ in range(2):
        await app.submit("job", requires_approval=True)
        await app.advance(45_000)
    assert (await scrape(app)).value("onward_approval_oldest_seconds") == 90


async def test_calls_of_the_ledger_are_measured_and_those_it_did_not_answer_counted(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await scrape(app)
    await app.submit("job")
    found = await scrape(app)
    count = "onward_ledger_seconds_count"
    assert found.value(count, operation="insert") == 1
    assert (found.value(count, operation="counts") or 0) > (
        before.value(count, operation="counts") or 0
    )
    assert found.value("onward_ledger_errors_total", operation="insert") == 0

    async def away(*_: Any, **__: Any) -> Any:
        raise LedgerUnavailable("the ledger does not answer")

    monkeypatch.setattr(app.onward.backend.tasks, "insert", away)
    assert (await app.post("/api/v2/tasks", {"type": "job"})).status_code == 503
    found = await scrape(app)
    assert found.value("onward_ledger_errors_total", operation="insert") == 1


async def test_a_ledger_that_is_away_costs_its_own_figures_alone(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.submit("job")
    assert (await scrape(app)).value("onward_ledger_up") == 1

    async def away() -> Any:
        raise LedgerUnavailable("the ledger does not answer")

    monkeypatch.setattr(app.onward.backend.tasks, "counts", away)
    found = await scrape(app)
    assert found.value("onward_ledger_up") == 0
    assert not any(line.startswith("onward_tasks{") for line in found.lines)
    assert found.value("onward_http_requests_total", status="200") == 1

    async def hangs() -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr("onward.native.metrics.LEDGER_S", 0.01)
    monkeypatch.setattr(app.onward.backend.tasks, "counts", hangs)
    assert (await scrape(app)).value("onward_ledger_up") == 0


@pytest.mark.parametrize("ledger", ["valkey", "postgres18"])
async def test_each_of_two_servers_counts_what_it_settled(ledger: str) -> None:
    url = fresh_postgres_url(ledger) if ledger.startswith("postgres") else fresh_url(ledger)
    settings: dict[str, Any] = {"ledger": url, "archive": ""}
    async with running_app(**settings) as one, running_app(**settings) as two:
        for app, count in ((one, 1), (two, 2)):
            worker = await app.worker(services=["job"])
            for _ in range(count):
                id = await app.submit("job")
                task = await worker.task()
                assert task["taskId"] == id
                await worker.answer(id, 1)
                await wait_until(lambda app=app, id=id: over(app, id))  # type: ignore[misc]
            await worker.close()
            await app.settled()
        assert [await ended(app, "job") for app in (one, two)] == [
            {"succeeded": 1},
            {"succeeded": 2},
        ]
