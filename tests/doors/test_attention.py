"""What needs a person now: one list, by rules that are written once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.running_app import App, running_app
from tests.support import wait_until

MINUTE = 60_000


async def listed(app: App) -> list[dict[str, Any]]:
    page = (await app.get("/api/v2/attention")).json()
    assert page["next"] is None
    found: list[dict[str, Any]] = page["items"]
    return found


async def rules(app: App) -> list[tuple[str, str]]:
    return [(one["rule"], one["target"]) for one in await listed(app)]


@pytest.mark.every_ledger
@pytest.mark.contract("K-4", "N-9")
async def test_a_queue_with_work_and_no_worker_needs_attention(app: App) -> None:
    assert await listed(app) == []
    since = app.clock.now()
    await app.submit("a b")
    app.clock.advance(1_000)
    await app.submit("a b")
    assert await listed(app) == [
        {
            "rule": "no_worker",
            "target": "a b",
            "since": since,
            "message": "a b: 2 tasks wait and no worker serves the queue",
            "link": "/ui/tasks?q=state%3Aqueued+queue%3A%22a+b%22",
        }
    ]
    await app.post("/api/v2/queues/a b/pause", {"by": "ann", "reason": "new codec"})
    (paused,) = await listed(app)
    assert paused["rule"] == "queue_paused", "one reason is enough"
    assert paused["message"] == "a b: paused by ann: new codec (2 tasks queued)"
    await app.post("/api/v2/queues/a b/resume", None)
    await app.worker(services=["a b"], concurrency=2)

    async def calm() -> bool:
        return await listed(app) == []

    await wait_until(calm)


@pytest.mark.every_ledger
@pytest.mark.contract("N-9")
async def test_work_that_waits_too_long_needs_attention(app: App) -> None:
    worker = await app.worker(services=["slow"])
    await app.submit("slow")
    await worker.task()
    since = app.clock.now()
    await app.submit("slow", priority="low")
    app.clock.advance(10 * MINUTE)
    assert await listed(app) == []
    app.clock.advance(MINUTE)
    await app.submit("slow", priority="high")
    (waiting,) = await listed(app)
    assert (waiting["rule"], waiting["target"]) == ("oldest_waiting", "slow")
    assert waiting["since"] == since, "a newer one that comes first does not hide it"
    assert waiting["message"] == "slow: the oldest of 2 tasks waits for 11 min"


@pytest.mark.every_ledger
@pytest.mark.contract("N-5")
async def test_an_approval_that_is_open_too_long_needs_attention(app: App) -> None:
    id = await app.submit("deploy", requires_approval=True)
    asked_at = app.clock.now()
    app.clock.advance(61 * MINUTE)
    await app.submit("deploy", requires_approval=True)
    assert await listed(app) == [
        {
            "rule": "approval_open",
            "target": f"{id}.1",
            "since": asked_at,
            "message": "deploy: an approval is open for 61 min",
            "link": "/ui/approvals",
        }
    ]
    await app.post(f"/api/v2/approvals/{id}.1/reject", {"by": "ann"})
    assert await listed(app) == []
    await app.post(f"/api/v2/tasks/{id}/retry", None)
    app.clock.advance(61 * MINUTE)
    assert ("approval_open", f"{id}.2") in await rules(app), "asked again"


@pytest.mark.every_ledger
@pytest.mark.contract("N-5")
async def test_dead_letters_need_attention_until_they_are_dealt_with(app: App) -> None:
    worker = await app.worker(services=["pay"])
    id = await app.submit("pay")
    await worker.answer((await worker.task())["taskId"], error="no", errorType="InvalidInput")

    async def dead() -> bool:
        return await rules(app) == [("dead", "pay")]

    await wait_until(dead)
    await app.post("/api/v2/dead-letters/abandon", {"ids": [id]})
    assert await listed(app) == []


@pytest.mark.contract("S3-11")
async def test_an_open_breaker_needs_attention_before_all_else() -> None:
    async with running_app() as app:
        worker = await app.worker(services=["ocr"])
        for _ in range(10):
            await app.submit("ocr", max_retries=0)
        for _ in range(10):
            await worker.answer((await worker.task())["taskId"], error="overrun", status=503)
        await app.settled()
        await app.submit("ocr")
        first, *rest = await listed(app)
        assert (first["rule"], first["since"]) == ("breaker_open", app.clock.now())
        assert "10 of 10 calls failed; is tried again in 60 s" in first["message"]
        assert [one["rule"] for one in rest] == ["dead"]


@pytest.mark.every_ledger
@pytest.mark.contract("N-5")
async def test_a_schedule_whose_run_was_refused_needs_attention(app: App) -> None:
    body = {"type": "report", "payload": {"secret": "hunter2"}, "every_ms": MINUTE}
    assert (await app.http.put("/api/v2/schedules/nightly", json=body)).status_code == 201
    schema = {"type": "object", "required": ["month"]}
    declared = {"name": "report", "task_types": ["report"], "schema": {"report": schema}}
    assert (await app.post("/api/v2/services", declared)).status_code == 201
    app.clock.advance(MINUTE + 1)

    async def refused() -> Any:
        return await listed(app)

    (item,) = await wait_until(refused)
    assert (item["rule"], item["target"]) == ("schedule_refused", "nightly")
    assert "hunter2" not in item["message"]
    await app.http.delete("/api/v2/services/report")
    app.clock.advance(MINUTE)

    async def accepted() -> bool:
        return await rules(app) == [("no_worker", "report")]

    await wait_until(accepted)


async def test_a_rule_is_turned_off_by_a_threshold_of_zero() -> None:
    off: dict[str, Any] = dict.fromkeys(("attention_approval_ms", "attention_waiting_ms"), 0)
    async with running_app(attention_dead=0, **off) as app:
        worker = await app.worker(services=["pay"])
        await app.submit("pay")
        await worker.answer((await worker.task())["taskId"], error="no", errorType="InvalidInput")
        await app.submit("pay")
        await worker.task()
        await app.submit("pay")
        await app.submit("deploy", requires_approval=True)
        app.clock.advance(365 * 24 * 60 * MINUTE)
        assert await listed(app) == []


async def test_the_list_stays_short_however_many_queues_there_are() -> None:
    async with running_app() as app:
        for at in range(120):
            await app.submit(f"q{at:03}")
        await app.submit("q119")
        found = await rules(app)
        assert len(found) == 100
        assert ("no_worker", "q119") in found, "the fullest are listed"
