"""The whole application in this process: every door, a ledger in memory, a clock that we move.

HTTP goes through ASGI; socket workers speak frames over queues, exactly as a connection would.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from onward.app import Application, build
from onward.core.alarm import Alarm
from onward.core.clock import ManualClock
from onward.settings import Settings
from tests import openapi


class App:
    """The application as it runs, with what a caller and a test need of it."""

    def __init__(self, asgi: Application, http: httpx2.AsyncClient, clock: ManualClock) -> None:
        self.asgi = asgi
        self.http = http
        self.clock = clock
        self.onward = asgi.onward
        self._alarm = Alarm(self.onward.dispatcher)
        self._workers: list[SocketWorker] = []

    async def post(self, path: str, body: Any, **more: Any) -> httpx2.Response:
        return await self.http.post(path, json=body, **more)

    async def get(self, path: str, **more: Any) -> httpx2.Response:
        return await self.http.get(path, **more)

    async def submit(self, type: Any, **more: Any) -> str:
        """The id of a task that was accepted."""
        response = await self.post("/api/v2/tasks", {"type": type, **more})
        assert response.status_code in (200, 202), response.text
        return str(response.json()["id"])

    async def task(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.get(f"/api/v2/tasks/{id}")).json()
        return found

    async def events(self, id: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await self.get(f"/api/v2/tasks/{id}/events")).json()["items"]
        return items

    async def worker(self, **register: Any) -> SocketWorker:
        """A registered worker; without concurrency it takes one task at a time."""
        worker = SocketWorker(self.asgi)
        self._workers.append(worker)
        await worker.send({"type": "register", **register})
        registered = await worker.receive()
        assert registered["type"] == "registered", registered
        worker.id = registered["workerId"]
        await self.settled()  # it looks for work first; only then is it idle
        return worker

    async def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        await self._alarm.sweep()

    async def settled(self) -> None:
        """Let everything that is under way come to rest: nothing here takes so many turns."""
        for _ in range(100):
            await asyncio.sleep(0)

    async def close_workers(self) -> None:
        for worker in self._workers:
            await worker.close()
        self._workers.clear()


class SocketWorker:
    """The far end of a worker connection."""

    id = ""

    def __init__(
        self,
        asgi: Any,
        path: str = "/ws/worker",
        subprotocols: Sequence[str] = (),
        **headers: str,
    ) -> None:
        self._to: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._to.put_nowait({"type": "websocket.connect"})
        sent = {"host": "127.0.0.1", **headers}
        scope = {
            "type": "websocket",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "ws",
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "subprotocols": list(subprotocols),
            "asgi": {"version": "3.0"},
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8070),
            "state": {},
        }
        self._connection = asyncio.ensure_future(asgi(scope, self._to.get, self._from.put))
        self.accepted: dict[str, Any] = {}
        self.closed: dict[str, Any] | None = None

    async def send(self, frame: Any) -> None:
        await self.send_text(frame if isinstance(frame, str) else json.dumps(frame))

    async def send_text(self, text: str) -> None:
        self._to.put_nowait({"type": "websocket.receive", "text": text})

    async def receive(self, timeout: float = 60) -> dict[str, Any]:
        async with asyncio.timeout(timeout):
            while True:
                message = await self._from.get()
                if message["type"] == "websocket.send":
                    frame: dict[str, Any] = json.loads(message["text"])
                    return frame
                if message["type"] == "websocket.accept":
                    self.accepted = message
                if message["type"] == "websocket.close":
                    self.closed = message
                    raise ConnectionError(message.get("reason"))

    def pending(self) -> int:
        return self._from.qsize()

    async def task(self) -> dict[str, Any]:
        frame = await self.receive()
        assert frame["type"] == "task", frame
        return frame

    async def answer(self, task: str, result: Any = None, **more: Any) -> None:
        body = more if "error" in more else {"result": result, **more}
        await self.send({"type": "taskResult", "taskId": task, **body})

    async def close(self) -> None:
        if not self._connection.done():
            self._to.put_nowait({"type": "websocket.disconnect", "code": 1006})
            await self._connection


@asynccontextmanager
async def running_app(*, builtin_worker: bool = False, **settings: Any) -> AsyncIterator[App]:
    clock = ManualClock()
    settings.setdefault("lease_ms", 10**12)  # we move the clock by hours, between two heartbeats
    settings.setdefault("drain_ms", 0)
    settings.setdefault("ledger", "sqlite:///:memory:")
    chosen = Settings(**settings)
    asgi = build(chosen, builtin_worker=builtin_worker, clock=clock)
    async with (
        asgi.web.router.lifespan_context(asgi.web),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=asgi),
            base_url="http://127.0.0.1",
            timeout=30,
            event_hooks={"response": [openapi.check]},
        ) as http,
    ):
        app = App(asgi, http, clock)
        yield app
        await app.close_workers()
