"""Queues: what waits where, and a pause that holds back work without refusing it."""

from __future__ import annotations

import pytest

from onward.core.task import State
from tests.running_app import running_app


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
            "states": dict.fromkeys(State, 0),
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
