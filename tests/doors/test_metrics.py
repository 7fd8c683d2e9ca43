"""/metrics: a bounded number of series, whatever callers name."""

from __future__ import annotations

import re

from onward.native.live import QUEUES
from tests.running_app import App


async def scrape(app: App) -> list[str]:
    return (await app.get("/metrics")).text.splitlines()


async def test_queues_beyond_the_first_hundred_are_one_series(app: App) -> None:
    for n in range(QUEUES + 50):
        for _ in range(1 + (n == 149)):
            await app.post("/api/v2/tasks", {"type": "job", "queue": f"customer-{n:03}"})
    lines = [line for line in await scrape(app) if line.startswith("onward_tasks{")]
    queues = {found[1] for line in lines if (found := re.search('queue="(.*?)"', line))}
    assert len(queues) == QUEUES + 1
    assert {"customer-149", "customer-000", "_other"} <= queues, "the fullest, then by name"
    assert sum(float(line.rpartition(" ")[2]) for line in lines) == QUEUES + 51, "none is lost"


async def test_services_with_a_breaker_beyond_the_first_hundred_are_one_series(app: App) -> None:
    opened = app.onward.dispatcher.pressure.breakers.opened
    opened.update({f"service-{n:03}": 1 for n in range(QUEUES + 20)})
    opened["service-119"] = 7
    lines = [line for line in await scrape(app) if "breaker_opened_total{" in line]
    assert len(lines) == QUEUES + 1
    assert 'onward_breaker_opened_total{service="_other"} 20.0' in lines
    assert 'onward_breaker_opened_total{service="service-119"} 7.0' in lines


async def test_requests_are_counted_by_status(app: App) -> None:
    await app.get("/ready")
    await app.get("/api/v2/tasks/unknown")
    await app.post("/api/v2/tasks", {"type": "job"}, headers={"origin": "http://evil.example"})
    lines = await scrape(app)
    for status in (200, 404, 403):
        assert f'onward_http_requests_total{{status="{status}"}} 1.0' in lines


async def test_the_process_is_measured(app: App) -> None:
    names = {line.split(" ")[0] for line in await scrape(app)}
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total"} <= names
