"""A service that is down, as its callers and operators see it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.running_app import App, SocketWorker, running_app

PAUSE_MS = 60_000


async def fail_ten(app: App, worker: SocketWorker) -> None:
    for _ in range(10):
        await submit(app, max_retries=0)
    for _ in range(10):
        frame = await worker.task()
        await worker.answer(frame["taskId"], error="overrun", status=503)
    await app.settled()


async def submit(app: App, path: str = "/api/v2/tasks", **more: Any) -> dict[str, Any]:
    response = await app.post(path, {"type": "ocr", "payload": {}, **more})
    assert response.status_code == 202, response.text
    found: dict[str, Any] = response.json()
    return found


async def circuit(app: App) -> dict[str, Any]:
    found: dict[str, Any] = (await app.get("/health")).json()["details"]["circuit_breaker"]
    return found


@pytest.mark.contract("S3-11", "S3-7")
async def test_an_open_breaker_parks_the_work_and_says_so_everywhere() -> None:
    async with running_app() as app:
        worker = await app.worker(services=["ocr"])
        assert await circuit(app) == {"status": "closed", "services": {}}
        await fail_ten(app, worker)
        shown = await circuit(app)
        assert shown["status"] == "open"
        assert shown["services"]["ocr"]["state"] == "open"
        assert shown["services"]["ocr"]["failures"] == 10
        health = await app.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert health.json()["components"]["circuit_breaker"] == {"state": "open", "open": ["ocr"]}

        parked = await submit(app)
        await app.settled()
        task = await app.task(parked["id"])
        assert (task["state"], task["attempt"]) == ("queued", 0)
        assert worker.pending() == 0, "nobody is sent there"
        why = (await app.get(f"/api/v2/tasks/{parked['id']}/explain")).json()
        assert why["reason"] == "breaker_open"
        assert "10 of its last 10 calls failed" in why["sentence"]
        assert why["eta"] == app.clock.now() + PAUSE_MS
        metrics = (await app.get("/metrics")).text
        assert 'onward_breaker_state{service="ocr"} 2.0' in metrics
        assert 'onward_breaker_opened_total{service="ocr"} 1.0' in metrics


@pytest.mark.contract("S3-11")
async def test_a_caller_who_would_wait_is_told_when_to_ask_again() -> None:
    async with running_app() as app:
        await fail_ten(app, await app.worker(services=["ocr"]))
        path = "/api/v2/tasks?wait_ms=600000"
        response = await app.post(path, {"type": "ocr", "payload": {}})
        assert (response.status_code, response.headers["retry-after"]) == (202, "60")
        again = await app.get(f"/api/v2/tasks/{response.json()['id']}?wait_ms=600000")
        assert again.json()["state"] == "queued"


@pytest.mark.contract("S3-11")
async def test_one_probe_goes_out_after_the_pause_and_closes_it() -> None:
    async with running_app() as app:
        worker = await app.worker(services=["ocr"], concurrency=5)
        await fail_ten(app, worker)
        tasks = [await submit(app) for _ in range(5)]
        app.clock.advance(PAUSE_MS)
        await app.onward.dispatcher.pressure.weigh()
        probe = await worker.task()
        assert probe["taskId"] == tasks[0]["id"]
        await app.settled()
        assert worker.pending() == 0, "one, and no more until it is back"
        assert (await circuit(app))["status"] == "half_open"
        await worker.answer(probe["taskId"], "read")
        await app.settled()
        assert (await circuit(app))["services"]["ocr"]["state"] == "closed"
        assert worker.pending() == 2, "the first wave"
        task = await app.task(tasks[0]["id"])
        assert (task["state"], task["attempt"]) == ("succeeded", 1)


async def test_a_handlers_own_errors_do_not_open_it() -> None:
    async with running_app() as app:
        worker = await app.worker(services=["ocr"])
        for _ in range(12):
            await submit(app, max_retries=0)
            frame = await worker.task()
            await worker.answer(frame["taskId"], error="no such page", errorType="ValueError")
        await app.settled()
        assert (await circuit(app))["status"] == "closed"


async def test_the_dispatcher_door_never_opens_one() -> None:
    async with running_app() as app:
        worker = await app.worker(group="default")
        for _ in range(12):
            body = {"data": 1, "async": True}
            await app.post("/api/openai", body)
            frame = await worker.task()
            await worker.answer(frame["taskId"], error="down", status=503)
        await app.settled()
        assert await circuit(app) == {"status": "closed", "services": {}}
