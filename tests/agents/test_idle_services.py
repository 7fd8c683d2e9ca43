"""Declared services that no worker serves any more, and what agents are offered of them."""

from __future__ import annotations

import pytest

from onward.native.tools.offers import DAY_MS
from tests.running_app import App, running_app

HOUR_MS = 3_600_000


async def offered(app: App) -> set[str]:
    items = (await app.get("/api/v2/tools")).json()["items"]
    return {tool["service"] for tool in items if tool["service"] is not None}


async def later(app: App, ms: int) -> None:
    app.clock.advance(ms)
    await app.onward.offers.look()


@pytest.mark.contract("S2-1")
async def test_what_no_worker_has_served_for_a_day_is_not_offered(app: App) -> None:
    await app.post("/api/v2/services", {"name": "report", "task_types": ["report"]})
    await later(app, 0)
    await later(app, DAY_MS - 1)
    assert await offered(app) == {"report"}, "a worker may yet come"
    await later(app, 1)
    assert await offered(app) == set()
    refused = await app.post("/api/v2/tools/report_task_tool", {})
    assert refused.status_code == 404
    assert refused.json()["detail"].startswith("no worker has served 'report' for a day")
    unknown = await app.post("/api/v2/tools/mail_task_tool", {})
    assert unknown.json()["detail"] == "no tool is called 'mail_task_tool'"
    services = (await app.get("/api/v2/services")).json()["items"]
    assert [service["name"] for service in services] == ["report"], "declared it still is"

    worker = await app.worker(services=["report"])
    assert await offered(app) == {"report"}, "at once, for as long as it is served"
    await later(app, 0)
    await worker.close()
    assert await offered(app) == {"report"}
    await later(app, DAY_MS)
    assert await offered(app) == set()


@pytest.mark.contract("S2-1")
async def test_a_day_counts_from_when_it_was_last_served(app: App) -> None:
    await app.post("/api/v2/services", {"name": "report", "task_types": ["a", "b"]})
    await later(app, 0)
    worker = await app.worker(services=["b"])
    for _ in range(30):
        await later(app, HOUR_MS)
    await worker.close()
    await later(app, DAY_MS - HOUR_MS)
    assert await offered(app) == {"report"}


@pytest.mark.contract("S2-3")
async def test_of_services_that_read_a_stream_nothing_is_known(app: App) -> None:
    body = {"name": "report", "task_types": ["report"], "via": "agent-stream"}
    await app.post("/api/v2/services", body)
    await later(app, 0)
    await later(app, 10 * DAY_MS)
    assert await offered(app) == {"report"}


async def test_a_restart_does_not_bring_an_idle_service_back(tmp_path: object) -> None:
    ledger = f"sqlite:///{tmp_path}/onward.db"
    async with running_app(ledger=ledger) as app:
        await app.post("/api/v2/services", {"name": "report", "task_types": ["report"]})
        await later(app, 0)
        now = app.clock.now()
    async with running_app(ledger=ledger) as app:
        app.clock.advance(now - app.clock.now() + DAY_MS)
        await later(app, 0)
        assert await offered(app) == set()


async def test_one_that_is_declared_anew_begins_anew(app: App) -> None:
    body = {"name": "report", "task_types": ["report"]}
    await app.post("/api/v2/services", body)
    await later(app, 0)
    await later(app, DAY_MS)
    await app.http.delete("/api/v2/services/report")
    await later(app, 0)
    await app.post("/api/v2/services", body)
    assert await offered(app) == {"report"}
