"""/metrics: a bounded number of series, whatever callers name."""

from __future__ import annotations

import re

from onward.native.live import QUEUES
from tests.house import House


async def scrape(house: House) -> list[str]:
    return (await house.get("/metrics")).text.splitlines()


async def test_queues_beyond_the_first_hundred_are_one_series(house: House) -> None:
    for n in range(QUEUES + 50):
        for _ in range(1 + (n == 149)):
            await house.post("/api/v2/tasks", {"type": "job", "queue": f"customer-{n:03}"})
    lines = [line for line in await scrape(house) if line.startswith("onward_tasks{")]
    queues = {found[1] for line in lines if (found := re.search('queue="(.*?)"', line))}
    assert len(queues) == QUEUES + 1
    assert {"customer-149", "customer-000", "_other"} <= queues, "the fullest, then by name"
    assert sum(float(line.rpartition(" ")[2]) for line in lines) == QUEUES + 51, "none is lost"


async def test_services_with_a_breaker_beyond_the_first_hundred_are_one_series(
    house: House,
) -> None:
    opened = house.onward.dispatcher.pressure.breakers.opened
    opened.update({f"service-{n:03}": 1 for n in range(QUEUES + 20)})
    opened["service-119"] = 7
    lines = [line for line in await scrape(house) if "breaker_opened_total{" in line]
    assert len(lines) == QUEUES + 1
    assert 'onward_breaker_opened_total{service="_other"} 20.0' in lines
    assert 'onward_breaker_opened_total{service="service-119"} 7.0' in lines


async def test_requests_are_counted_by_status(house: House) -> None:
    await house.get("/ready")
    await house.get("/api/v2/tasks/unknown")
    await house.post("/api/v2/tasks", {"type": "job"}, headers={"origin": "http://evil.example"})
    lines = await scrape(house)
    for status in (200, 404, 403):
        assert f'onward_http_requests_total{{status="{status}"}} 1.0' in lines


async def test_the_process_is_measured(house: House) -> None:
    names = {line.split(" ")[0] for line in await scrape(house)}
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total"} <= names
