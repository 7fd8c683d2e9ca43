"""GET /api/v2/live and the history behind it: told once a second at most, and only what is new."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from onward.native import live as live_module
from onward.native.caller import OPERATOR
from onward.native.history import KEPT, STEP_MS, History
from onward.native.live import CHANGED, Live
from tests.running_app import App


@pytest.fixture
def live(app: App, monkeypatch: pytest.MonkeyPatch) -> Live:
    # The second between two looks is ours to end.
    monkeypatch.setattr(live_module, "PACE_S", 3600)
    onward = app.onward
    return Live(onward.dispatcher, onward.roster, onward.history, lambda: onward.ready)


class Page:
    """A page that listens."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._events: Any = None

    async def hear(self) -> tuple[str, Any]:
        async with asyncio.timeout(30):
            if self._events is None:
                self._events = (await self._live.listen(OPERATOR)).events
            event = await anext(self._events)
            return event.event, json.loads(msgspec.json.encode(event.data))

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._events.aclose()


async def test_a_page_gets_a_snapshot_and_then_what_changes(app: App, live: Live) -> None:
    page = Page(live)
    async with page.closing():
        kind, snapshot = await page.hear()
        assert kind == "snapshot"
        assert snapshot["states"] == {}
        assert await page.hear() != (kind, snapshot)  # the first look of the pump

        task = (await app.post("/api/v2/tasks", {"type": "report"})).json()
        await live._look()
        kind, change = await page.hear()
        assert kind == "change"
        assert change["changed"] == [task["id"]]
        assert change["states"] == {"queued": 1}
        assert change["lanes"] == {"primary": 1, "retry": 0}
        assert change["queues"] == {"report": {"queued": 1}}


async def test_operations_under_way_are_counted(app: App, live: Live) -> None:
    await app.post("/api/v2/tasks", {"type": "nobody-does-this"})
    filter = {"type": "nobody-does-this"}
    await app.post("/api/v2/tasks/cancel", {"filter": filter, "rate": 0.01})
    page = Page(live)
    async with page.closing():
        _, snapshot = await page.hear()
    assert snapshot["operations"] == 1


async def test_nothing_new_is_not_told(app: App, live: Live) -> None:
    page = Page(live)
    async with page.closing():
        await page.hear()
        await page.hear()
        for _ in range(3):
            await live._look()
        await app.post("/api/v2/tasks", {"type": "report"})
        await live._look()
        _, change = await page.hear()
        assert change["states"] == {"queued": 1}


async def test_a_task_whose_count_stays_the_same_is_still_named(app: App, live: Live) -> None:
    """One begins and another ends: the numbers stand still, the rows on screen do not."""
    first = await app.submit("report")
    page = Page(live)
    async with page.closing():
        await page.hear()
        await page.hear()
        await app.post(f"/api/v2/tasks/{first}/cancel", {})
        await app.post(f"/api/v2/tasks/{first}/retry", {})
        await live._look()
        assert (await page.hear())[1]["changed"] == [first]


async def test_too_many_to_name_are_told_as_many(app: App, live: Live) -> None:
    page = Page(live)
    async with page.closing():
        await page.hear()
        await page.hear()
        for _ in range(CHANGED + 1):
            await app.post("/api/v2/tasks", {"type": "report"})
        await live._look()
        assert (await page.hear())[1]["changed"] is None
        last = await app.submit("report")
        await live._look()
        assert (await page.hear())[1]["changed"] == [last]


async def test_nothing_is_read_while_no_page_listens(
    app: App, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "PACE_S", 0)
    page = Page(live)
    async with page.closing():
        await page.hear()
    reads = 0
    counts = app.onward.backend.tasks.counts

    async def counted() -> Any:
        nonlocal reads
        reads += 1
        return await counts()

    monkeypatch.setattr(live, "_state", counted)
    await app.settled()
    assert reads == 0


async def test_a_page_that_does_not_read_is_let_go_and_the_others_are_not(
    app: App, live: Live
) -> None:
    slow, quick = Page(live), Page(live)
    async with slow.closing(), quick.closing():
        for page in (slow, quick):
            await page.hear()
        await quick.hear()
        for _ in range(live_module.BEHIND + 2):
            await app.post("/api/v2/tasks", {"type": "report"})
            await live._look()
            await quick.hear()
        heard = 0
        with contextlib.suppress(StopAsyncIteration):
            while heard < live_module.BEHIND + 2:
                await slow.hear()
                heard += 1
        assert heard < live_module.BEHIND + 2


async def test_a_server_that_stops_does_not_wait_for_its_pages(app: App, live: Live) -> None:
    page = Page(live)
    async with page.closing():
        await page.hear()
        await page.hear()
        app.onward.ready = False
        await live._look()
        with pytest.raises(StopAsyncIteration):
            await page.hear()


async def test_history_knows_rates_depths_and_durations(app: App) -> None:
    history = History(app.onward.dispatcher)
    await history.sample()
    worker = await app.worker(services=["report"], group=None)
    for _ in range(2):
        await app.post("/api/v2/tasks", {"type": "report"})
    frame = await worker.task()
    await app.advance(400)
    await worker.answer(frame["taskId"], {"done": True})
    await worker.task()  # the other one begins
    await app.advance(STEP_MS - 400)
    await history.sample()

    point = history.last
    assert point is not None
    assert (point.created, point.succeeded) == (0.4, 0.2)
    assert (point.primary, point.running) == (0, 1)
    assert (point.run_p50, point.run_p95) == (400, 400)
    assert history.columns()["created"] == (0, 0.4)


@pytest.mark.contract("N-4", "S2-1")
async def test_past_runs_tell_when_a_task_ends_or_begins(app: App) -> None:
    history = app.onward.history
    await history.sample()
    worker = await app.worker(services=["report"], group=None)
    await app.submit("report")
    frame = await worker.task()
    await app.advance(4_000)
    await worker.answer(frame["taskId"])
    await app.settled()
    await history.sample()
    ids = [await app.submit("report", session_id="s") for _ in range(3)]
    await worker.task()
    await app.advance(1_000)
    etas = [(await app.get(f"/api/v2/tasks/{id}/explain")).json()["eta"] for id in ids]
    now = app.clock.now()
    assert etas == [now + 3_000, now + 4_000, now + 8_000]
    body = {"task_id": ids[0], "session_id": "s"}
    report = (await app.post("/api/v2/tools/get_task_result_tool", body)).json()
    assert report["eta_seconds"] == 3
    await app.advance(3_000)
    late = (await app.get(f"/api/v2/tasks/{ids[0]}/explain")).json()
    assert late["eta"] is None, "it takes longer than usual: nobody knows"


async def test_history_is_bounded(app: App) -> None:
    history = History(app.onward.dispatcher)
    for _ in range(KEPT + 5):
        app.clock.advance(STEP_MS)
        await history.sample()
    assert len(history.columns()["at"]) == KEPT


async def test_tasks_are_found_by_name_and_briefly(app: App) -> None:
    ids = [await app.submit("report", payload={"n": n}) for n in range(3)]
    named = await app.get("/api/v2/tasks", params={"id": [ids[2], ids[0], "no-such"]})
    assert [task["id"] for task in named.json()["items"]] == [ids[2], ids[0]]
    assert named.json()["items"][0]["payload"] == {"n": 2}
    brief = await app.get("/api/v2/tasks", params={"brief": True, "limit": 1})
    assert brief.json()["items"][0]["payload"] is None
    too_many = await app.get("/api/v2/tasks", params={"id": ["x"] * 101})
    assert too_many.status_code == 422
