"""A worker is told to drain: it gets nothing new, finishes what it has, and goes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from onward.client.address import http_options
from onward.client.http import Client
from onward.client.worker import Worker
from onward.workers.roster import Roster
from tests.client.conftest import served
from tests.running_app import App, running_app
from tests.support import wait_until


async def worker(app: App, id: str) -> dict[str, Any] | None:
    items = (await app.get("/api/v2/workers")).json()["items"]
    return next((one for one in items if one["id"] == id), None)


async def drain(app: App, id: str) -> httpx2.Response:
    return await app.post(f"/api/v2/workers/{id}/drain", None)


async def undo(app: App, id: str) -> httpx2.Response:
    return await app.http.delete(f"/api/v2/workers/{id}/drain")


async def submit(app: App, type_: str = "echo", **more: Any) -> str:
    id: str = await app.submit(type_, **more)
    await app.settled()
    return id


async def state(app: App, task: str) -> str:
    found: str = (await app.task(task))["state"]
    return found


async def test_a_drained_socket_worker_finishes_and_gets_nothing_new(app: App) -> None:
    w = await app.worker(workerId="w", group=None, services=["echo"], concurrency=2)
    first = await submit(app)
    assert (await w.task())["taskId"] == first
    told = await drain(app, "w")
    assert told.status_code == 200
    assert (told.json()["draining"], told.json()["busy"]) == (True, 1)
    assert await w.receive() == {"type": "drain"}
    second = await submit(app)
    await w.answer(first, "done")
    await app.settled()
    assert await state(app, first) == "succeeded"
    assert await state(app, second) == "queued"
    assert w.pending() == 0
    shown = await worker(app, "w")
    assert shown is not None
    assert (shown["draining"], shown["busy"]) == (True, 0)
    await w.close()
    assert await worker(app, "w") is None


async def test_a_queue_that_only_draining_workers_serve_has_no_worker(app: App) -> None:
    await app.worker(workerId="w", group="default", services=["echo"])
    await drain(app, "w")
    refused = await app.post("/api/openai", {"data": "hi"})
    assert (refused.status_code, refused.json()) == (503, {"error": "No worker available"})
    task = await submit(app)
    assert (await app.get(f"/api/v2/tasks/{task}/explain")).json()["reason"] == "no_worker"
    assert (await app.get("/api/v2/queues/echo")).json()["workers"] == 0


async def test_a_worker_may_be_told_to_take_work_again(app: App) -> None:
    w = await app.worker(workerId="w", group=None, services=["echo"])
    await drain(app, "w")
    assert await w.receive() == {"type": "drain"}
    task = await submit(app)
    again = await undo(app, "w")
    assert (again.status_code, again.json()["draining"]) == (200, False)
    assert (await w.task())["taskId"] == task
    assert (await drain(app, "w")).json()["draining"] is True
    assert (await undo(app, "w")).json()["draining"] is False


async def test_a_worker_that_leaves_by_itself_is_shown_and_not_called_back(app: App) -> None:
    w = await app.worker(workerId="w", group=None, services=["echo"])
    await w.send({"type": "drain"})
    await w.send({"type": "ping"})
    assert await w.receive() == {"type": "pong"}  # and no "drain": it knows
    shown = await worker(app, "w")
    assert shown is not None
    assert shown["draining"] is True
    refused = await undo(app, "w")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert (await worker(app, "w") or {})["draining"] is True


async def test_a_new_connection_under_a_drained_name_takes_work(app: App) -> None:
    await app.worker(workerId="w", group=None, services=["echo"])
    await drain(app, "w")
    app.clock.advance(5)
    fresh = await app.worker(workerId="w", group=None, services=["echo"])
    await app.onward.roster.refresh()
    task = await submit(app)
    assert (await fresh.task())["taskId"] == task


async def test_a_worker_at_another_server_hears_of_it(app: App) -> None:
    w = await app.worker(workerId="w", group=None, services=["echo"])
    other = Roster(app.onward.backend, app.clock)
    await other.beat()
    await other.refresh()
    (member,) = other.members()
    assert (await other.drain(member)).draining is True
    await app.onward.roster.refresh()
    assert await w.receive() == {"type": "drain"}
    await other.refresh()
    assert [one.draining for one in other.members()] == [True]
    task = await submit(app)
    await other.drain(member, draining=False)
    await app.onward.roster.refresh()
    assert (await w.task())["taskId"] == task


async def test_a_row_that_is_older_than_our_own_word_changes_nothing(app: App) -> None:
    await app.worker(workerId="w", group=None, services=["echo"])
    roster = app.onward.roster
    read = roster._rows

    async def slowly() -> Any:
        found = await read()
        await drain(app, "w")  # while the rows are on their way
        return found

    roster._rows = slowly  # type: ignore[method-assign]
    await roster.refresh()
    assert (await worker(app, "w") or {})["draining"] is True


async def test_the_builtin_worker_drains_and_comes_back() -> None:
    async with running_app(builtin_worker=True) as app:
        (name,) = [one["id"] for one in (await app.get("/api/v2/workers")).json()["items"]]
        assert (await drain(app, name)).status_code == 200
        task = await submit(app, payload={"value": 1})
        assert await state(app, task) == "queued"
        assert (await undo(app, name)).status_code == 200

        await wait_until(lambda: state(app, task), holds="succeeded".__eq__)


async def test_a_worker_that_is_called_is_called_no_more(app: App) -> None:
    body = {"id": "h", "url": "http://127.0.0.1:9", "services": ["sum"]}
    await app.post("/workers/register", body)
    beat = {"id": "h", "load": 0}
    assert (await app.post("/workers/heartbeat", beat)).json() == {"id": "h"}
    told = await drain(app, "h")
    assert (told.status_code, told.json()["draining"], told.json()["busy"]) == (200, True, None)
    assert (await app.get("/workers/allocate?service=sum")).status_code == 404
    task = await submit(app, "sum")
    assert await state(app, task) == "queued"
    assert (await app.post("/workers/heartbeat", beat)).json() == {"id": "h", "draining": True}
    assert (await undo(app, "h")).json()["draining"] is False
    assert (await app.post("/workers/heartbeat", beat)).json() == {"id": "h"}
    assert (await app.get("/workers/allocate?service=sum")).json()["id"] == "h"


async def test_a_worker_that_registers_anew_is_called_again(app: App) -> None:
    body = {"id": "h", "url": "http://127.0.0.1:9", "services": ["sum"]}
    await app.post("/workers/register", body)
    await drain(app, "h")
    await app.post("/workers/register", body)
    assert (await app.get("/workers/allocate?service=sum")).status_code == 200


async def test_a_celery_worker_is_out_of_reach_and_the_answer_says_how(app: App) -> None:
    crew = Roster(app.onward.backend, app.clock)
    await crew.beat()
    await crew.join(crew.member("celery@host", "celery", ["summarize"], 4))
    refused = await drain(app, "celery@host")
    assert refused.status_code == 409
    assert "SIGTERM" in refused.json()["hint"]


async def test_an_unknown_worker_is_not_drained(app: App) -> None:
    for answer in (await drain(app, "nobody"), await undo(app, "nobody")):
        assert answer.status_code == 404
        assert "nobody" in answer.json()["detail"]


@pytest.mark.parametrize("listen", [None, "http://127.0.0.1:0"])
async def test_an_sdk_worker_that_is_told_to_drain_finishes_and_ends(
    listen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_TTL_MS", "600")  # heartbeats every 0.2 s
    begun, may_end = asyncio.Event(), asyncio.Event()
    async with (
        served(worker_ttl_ms=60_000) as url,
        Client(url) as client,
        httpx2.AsyncClient(**http_options(url)) as http,
    ):
        sdk = Worker(url, id="sdk", grace_ms=1)  # which is for signals: the server is patient

        @sdk.service
        async def slow() -> str:
            begun.set()
            await may_end.wait()
            return "done"

        serving = asyncio.create_task(sdk.serve(listen=listen))
        task = await client.submit("slow", {})
        async with asyncio.timeout(60):
            await begun.wait()
            assert (await http.post("/api/v2/workers/sdk/drain")).status_code == 200
            await wait_until(sdk._drain_requested.is_set)
            for _ in range(20):
                assert (await http.get("/api/v2/workers")).status_code == 200
            assert not serving.done()
            may_end.set()
            await serving
            ended = await client.wait(task.id)
        assert ended.result == "done"
        assert (await http.get("/api/v2/workers")).json()["items"] == []
