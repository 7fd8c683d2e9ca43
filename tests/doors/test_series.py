"""What was done in the last day is known after a restart too, by minute and service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onward.core.measures import TIMES_MS
from onward.native.minutes import CHUNK_MS, KIND, MINUTE_MS
from onward.native.series import percentile
from onward.wire.series import DAY_MS
from tests.running_app import App, running_app
from tests.servers import fresh_url, postgres_ledger_url

pytestmark = pytest.mark.contract("N-8")


async def series(app: App, **query: Any) -> dict[str, Any]:
    response = await app.get("/api/v2/series", params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def run(app: App, type: str, *, ms: int = 400, error: str | None = None) -> None:
    """One task of this type is done by a worker, in so long."""
    worker = await app.worker(group=None, services=[type])
    await app.submit(type, max_retries=0)
    task = (await worker.task())["taskId"]
    app.clock.advance(ms)
    await worker.answer(task, **({} if error is None else {"error": error}))
    await app.settled()
    await worker.close()


def by_minute(found: dict[str, Any], name: str) -> list[Any]:
    return [point[name] for point in found["points"] if point[name]]


def a_ledger(kind: str, folder: Path) -> dict[str, Any]:
    if kind == "sqlite":
        return {"ledger": f"sqlite:///{folder}/ledger.db"}
    if kind == "postgres18":
        return {"ledger": postgres_ledger_url(kind)}
    return {"ledger": fresh_url("valkey"), "archive": ""}


@pytest.mark.parametrize("kind", ["sqlite", "valkey", "postgres18"])
async def test_what_was_done_outlives_the_server(tmp_path: Path, kind: str) -> None:
    ledger = a_ledger(kind, tmp_path)
    async with running_app(**ledger) as app:
        await run(app, "report")
        await run(app, "report", error="no")
        app.clock.advance(MINUTE_MS)
        await app.onward.minutes.sample()
        await run(app, "mail")
        before = await series(app)
    async with running_app(**ledger) as app:
        app.clock.advance(before["until"] - app.clock.now())
        found = await series(app)
    assert found["totals"] == before["totals"]
    assert found["totals"] | {"submitted": 3, "succeeded": 2} == found["totals"]
    assert found["totals"]["failed"] + found["totals"]["dead"] == 1
    report, mail = found["services"]
    assert (report["name"], report["succeeded"], report["failed"]) == ("report", 1, 1)
    assert report["failure_share"] == 0.5
    assert (mail["name"], mail["failure_share"]) == ("mail", 0)
    assert sum(report["ended"]) == 2
    assert by_minute(found, "succeeded") == [1, 1]
    assert sum(found["run"]["counts"]) == 3


async def test_the_minute_that_has_not_ended_counts_too(app: App) -> None:
    await run(app, "report", ms=700)
    found = await series(app)
    assert found["totals"]["succeeded"] == 1
    last = found["points"][-1]
    assert 500 < last["run_p95"] <= 1_000  # by the bounds of its bucket


async def test_what_was_done_in_a_minute_is_shown_in_that_minute(app: App) -> None:
    app.clock.advance(-app.clock.now() % MINUTE_MS + 50_000)
    await app.onward.minutes.sample()
    minute = app.clock.now() // MINUTE_MS * MINUTE_MS
    await run(app, "report")
    for _ in range(3):
        before = await series(app)
        app.clock.advance(20_000)
        await app.onward.minutes.sample()
        for found in (before, await series(app)):
            assert [one["at"] for one in found["points"] if one["succeeded"]] == [minute]


async def test_one_service_and_one_queue(app: App) -> None:
    await run(app, "report")
    await app.submit("report", queue="slow")
    await app.submit("mail")
    found = await series(app, service="report", queue="slow")
    assert found["totals"] == {
        "succeeded": 1,
        "failed": 0,
        "dead": 0,
        "canceled": 0,
        "retried": 0,
    }
    assert found["points"][-1]["queued"] == 1
    assert found["points"][-1]["submitted"] is None
    assert (await series(app))["points"][-1]["queued"] == 2


async def test_a_day_is_cut_into_few_steps_and_what_is_older_is_gone(app: App) -> None:
    await run(app, "report")
    app.clock.advance(CHUNK_MS)
    await app.onward.minutes.sample()
    found = await series(app, range_ms=DAY_MS)
    assert len(found["points"]) <= 73
    assert found["step_ms"] == 20 * MINUTE_MS
    assert found["totals"]["succeeded"] == 1
    assert found["points"][0]["succeeded"] is None  # no server counted then
    app.clock.advance(DAY_MS + 2 * CHUNK_MS)
    documents = app.onward.backend.documents
    assert await documents.list(KIND, now=app.clock.now()) == []
    assert (await series(app, range_ms=DAY_MS))["totals"]["succeeded"] == 0


async def test_ten_minutes_share_a_document(app: App) -> None:
    app.clock.advance(-app.clock.now() % CHUNK_MS)
    await app.onward.minutes.sample()
    begun = app.clock.now()
    for _ in range(20):
        app.clock.advance(MINUTE_MS)
        await app.onward.minutes.sample()
    found = await app.onward.backend.documents.list(KIND, now=app.clock.now())
    assert len([one for one in found if int(one.key.split(".")[0]) >= begun]) == 2


async def test_two_servers_are_added_up(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    async with running_app(ledger=url) as one:
        await run(one, "report")
        one.clock.advance(5_000)
        until = one.clock.now()
    async with running_app(ledger=url) as other:
        other.clock.advance(until - other.clock.now())
        await run(other, "report")
        found = await series(other)
    assert found["totals"]["succeeded"] == 2


def test_a_percentile_is_estimated_inside_its_bucket() -> None:
    assert percentile({}, 0.5) is None
    place = TIMES_MS.index(1_000)
    assert percentile({place: 100}, 0.5) == 750  # half way from 500 to 1,000
    assert percentile({0: 99, len(TIMES_MS): 1}, 0.95) == 10
    assert percentile({0: 1, len(TIMES_MS): 99}, 0.95) == TIMES_MS[-1]
