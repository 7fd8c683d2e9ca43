"""A worker on a socket that writes faster than the ledger, or does not read what it is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.workers.socket.sessions import MAX_NOTE_BYTES, MAX_NOTES
from tests.running_app import App, SocketWorker, running_app
from tests.support import wait_until


class SlowLedger:
    """Lets nothing be noted before it is opened; counts what waits meanwhile."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = asyncio.Event()
        self.notes = self.bytes = 0
        extend = app.onward.dispatcher.extend

        async def slowly(hold: Any) -> Any:
            self.notes += 1
            self.bytes += len(hold.notes[0][1])
            await self.open.wait()
            return await extend(hold)

        monkeypatch.setattr(app.onward.dispatcher, "extend", slowly)


@pytest.mark.parametrize(
    ("size", "chunks"), [(100_000, 40), (10, 2 * MAX_NOTES + 10)], ids=["bytes", "count"]
)
async def test_chunks_wait_in_the_socket_while_the_ledger_is_slow(
    monkeypatch: pytest.MonkeyPatch, size: int, chunks: int
) -> None:
    async with running_app() as app:
        worker = await app.worker(services=["write"], group=None)
        task = await app.submit("write")
        frame = await worker.task()
        ledger = SlowLedger(app, monkeypatch)
        for n in range(chunks):
            data = f"{n:06}".ljust(size, "x")
            await worker.send({"type": "chunk", "taskId": frame["taskId"], "data": data})
        await worker.answer(frame["taskId"], "done")
        await app.settled()
        assert 0 < ledger.notes <= MAX_NOTES
        assert ledger.bytes <= MAX_NOTE_BYTES + size + 2
        ledger.open.set()
        ended = (await app.get(f"/api/v2/tasks/{task}", params={"wait_ms": 30_000})).json()
        assert ended["state"] == "succeeded"
        events = await app.events(task)
        written = [event["data"][:6] for event in events if event["type"] == "task.chunk"]
        assert written == [f"{n:06}" for n in range(chunks)], "all of them, in order"


async def test_one_frame_at_a_time_waits_for_a_worker_that_does_not_read() -> None:
    async with running_app() as app:
        reads, waiting, most = asyncio.Event(), 0, 0

        async def endpoint(scope: Any, receive: Any, send: Any) -> None:
            async def slowly(message: Any) -> None:
                nonlocal waiting, most
                if '"type":"task"' in message.get("text", ""):
                    waiting += 1
                    most = max(most, waiting)
                    await reads.wait()
                    waiting -= 1
                await send(message)

            await app.asgi(scope, receive, slowly)

        worker = SocketWorker(endpoint)
        await worker.send({"type": "register", "services": ["write"], "concurrency": 20})
        assert (await worker.receive())["type"] == "registered"
        for _ in range(20):
            await app.post("/api/v2/tasks", {"type": "write"})
        await wait_until(lambda: app.onward.dispatcher.slots.busy() == 20)
        await app.settled()
        assert most == 1
        reads.set()
        for _ in range(20):
            await worker.answer((await worker.task())["taskId"])
        await worker.close()
