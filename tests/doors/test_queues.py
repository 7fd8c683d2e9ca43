"""Queues: what waits where, and a pause that holds back work without refusing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.core.task import State
from tests.running_app import App, running_app


@pytest.mark.contract("N-5")
async def test_a_paused_queue_accepts_work_and_hands_out_none() -> None:
    async with running_app() as app:
        worker = await app.worker(services=["ocr"])
        body = {"by": "ada", "reason": "new model"}
        paused = (await app.post("/api/v2/queues/ocr/pause", body)).json()
        assert paused == {
            "name": "ocr",
            "paused": {"since": app.clock.now(), "by": "ada", "reason": "new model"},
            "breaker": None,
            "workers": 1,
            "slots": 1,
            "queued": 0,
            "retrying": 0,
            "oldest_ms": 0,
            "states": dict.fromkeys(State, 0),
            "limits": [],
        }
        task = await app.submit("ocr", payload=1)
        await app.settled()
        assert worker.pending() == 0
        why = (await app.get(f"/api/v2/tasks/{task}/explain")).json()
        assert (why["reason"], why["sentence"]) == (
            "queue_paused",
            "Queue 'ocr' was paused by ada: new model.",
        )
        listed = (await app.get("/api/v2/queues")).json()["items"]
        assert [(q["name"], q["queued"]) for q in listed] == [("group:default", 0), ("ocr", 1)]
        resumed = (await app.post("/api/v2/queues/ocr/resume", None)).json()
        assert resumed["paused"] is None
        assert (await worker.task())["taskId"] == task


@pytest.mark.contract("N-5")
async def test_a_server_that_starts_hands_out_nothing_of_a_paused_queue(tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path}/a.db"
    async with running_app(ledger=ledger) as app:
        await app.post("/api/v2/queues/echo/pause", None)
        task = await app.submit("echo")
    async with running_app(ledger=ledger, builtin_worker=True) as app:
        await app.settled()
        assert (await app.task(task))["state"] == "queued"
        assert [one["rule"] for one in (await app.get("/api/v2/attention")).json()["items"]] == [
            "queue_paused"
        ]


async def test_a_pause_outlives_the_server_and_reaches_others() -> None:
    async with running_app() as app:
        await app.post("/api/v2/queues/ocr/pause", None)
        other = type(app.onward.dispatcher)(
            app.onward.backend, app.onward.dispatcher.profiles, app.clock
        )
        await other.pressure.weigh()
        assert set(other.pressure.pauses.paused()) == {"ocr"}
        await app.post("/api/v2/queues/ocr/resume", None)
        await other.pressure.weigh()
        assert other.pressure.pauses.paused() == {}


async def test_an_unknown_queue_is_not_found() -> None:
    async with running_app() as app:
        response = await app.get("/api/v2/queues/nothing")
        assert (response.status_code, response.json()["code"]) == (404, "not_found")


async def test_a_second_pause_keeps_the_first_reason() -> None:
    async with running_app() as app:
        await app.post("/api/v2/queues/ocr/pause", {"reason": "first"})
        again = (await app.post("/api/v2/queues/ocr/pause", {"reason": "second"})).json()
        assert again["paused"]["reason"] == "first"


@pytest.mark.every_ledger
async def test_how_long_the_first_in_a_queue_has_waited(app: App) -> None:
    """A plain number, which an autoscaler reads: deploy/kubernetes/keda.yaml."""
    for _ in range(2):
        await app.submit("ocr", payload=1)
        app.clock.advance(4_000)
    found = (await app.get("/api/v2/queues/ocr")).json()
    assert found["oldest_ms"] == 8_000
    assert (await app.get("/api/v2/queues")).json()["items"] == [found]
