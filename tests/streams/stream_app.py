"""A server whose tasks go over Redis streams; workers written from the text of the protocol."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import httpx2
import redis.asyncio

from onward.app import build
from onward.core.clock import Clock
from onward.settings import Settings
from tests import openapi
from tests.servers import fresh_url
from tests.support import wait_until

TASKS, RESULTS, DEAD, GROUP = "stream:task", "stream:result", "stream:dlq", "cg:workers"
OVER = ("succeeded", "failed", "dead", "canceled")

T = TypeVar("T")


class StreamApp:
    builtin_worker = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # Replies have too many types for their stubs to be of use here.
        self.redis: Any = redis.asyncio.Redis.from_url(settings.redis or "", protocol=2)
        self.http: httpx2.AsyncClient
        self.app: Any
        self._open = AsyncExitStack()

    async def open(self, *, on_duty: bool = True, clock: Clock | None = None) -> None:
        self.app = build(self.settings, builtin_worker=self.builtin_worker, clock=clock)
        transport = httpx2.ASGITransport(app=self.app)
        await self._open.enter_async_context(self.app.web.router.lifespan_context(self.app.web))
        self.http = await self._open.enter_async_context(
            httpx2.AsyncClient(
                transport=transport,
                base_url="http://127.0.0.1",
                event_hooks={"response": [openapi.check]},
            )
        )
        if on_duty:
            await self.until(self.on_duty)

    async def on_duty(self) -> bool:
        return self.app.onward._feed._offers.worker_slots is not None

    async def shut(self) -> None:
        await self._open.aclose()

    async def submit(self, **body: Any) -> str:
        response = await self.http.post("/api/v2/tasks", json={"type": "t", **body})
        assert response.status_code == 202, response.text
        task: str = response.json()["id"]
        return task

    async def cancel(self, task: str) -> None:
        response = await self.http.post(f"/api/v2/tasks/{task}/cancel")
        assert response.status_code == 200, response.text

    async def read(self, task: str) -> dict[str, Any]:
        body: dict[str, Any] = (await self.http.get(f"/api/v2/tasks/{task}")).json()
        return body

    async def listed(self, state: str) -> list[str]:
        items = (await self.http.get("/api/v2/tasks", params={"state": state})).json()["items"]
        assert {item["state"] for item in items} <= {state}
        return [item["id"] for item in items]

    async def counted(self, queue: str) -> dict[str, int]:
        """How many by state, as the queues are shown."""
        items = (await self.http.get("/api/v2/queues")).json()["items"]
        states: dict[str, int] = next(item["states"] for item in items if item["name"] == queue)
        return {state: count for state, count in states.items() if count}

    async def over(self, task: str, timeout: float = 60) -> dict[str, Any]:
        async def ended() -> dict[str, Any] | None:
            found = await self.read(task)
            return found if found.get("state") in OVER else None

        return await self.until(ended, timeout)

    async def phase(self, task: str, phase: str, timeout: float = 60) -> None:
        async def reached() -> bool:
            return bool((await self.read(task)).get("phase") == phase)

        await self.until(reached, timeout)

    async def history(self, task: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await self.http.get(f"/api/v2/tasks/{task}/events")).json()[
            "items"
        ]
        return items

    async def events(self, task: str, type: str) -> list[Any]:
        return [event["data"] for event in await self.history(task) if event["type"] == type]

    async def types(self, task: str) -> list[str]:
        return [event["type"] for event in await self.history(task)]

    async def take(
        self, consumer: str = "raw-1", timeout: float = 60
    ) -> tuple[str, dict[str, str]]:
        """XREADGROUP, as the protocol says: one entry."""
        rows = await self.take_all(consumer, 1, timeout)
        assert rows, "nothing was offered"
        return rows[0]

    async def take_all(
        self, consumer: str = "raw-1", count: int = 1000, timeout: float = 60
    ) -> list[tuple[str, dict[str, str]]]:
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            reply = await self.redis.xreadgroup(
                GROUP, consumer, {TASKS: ">"}, count=count, block=200
            )
            if reply:
                return [(entry.decode(), text(fields)) for entry, fields in reply[0][1]]
        return []

    async def silent(self, consumer: str, entry: str) -> None:
        """As if its consumer had sent no heartbeat for the whole visibility timeout."""
        idle = int(self.settings.visibility_timeout_s * 1000)
        await self.redis.xclaim(TASKS, GROUP, consumer, 0, [entry], idle=idle, justid=True)

    async def answer(self, entry: str | None, task: str, **fields: Any) -> None:
        """Write the result, then acknowledge; only the protocol's own words."""
        body = {"task_id": task, "worker": "raw", "finished_at": str(int(time.time() * 1000))}
        await self.redis.xadd(RESULTS, {**body, **{k: str(v) for k, v in fields.items()}})
        if entry is not None:
            await self.redis.xack(TASKS, GROUP, entry)

    async def succeed(
        self, entry: str, fields: dict[str, str], result: Any = None, **more: Any
    ) -> None:
        text = json.dumps(result)
        await self.answer(entry, fields["task_id"], status="succeeded", result=text, **more)

    async def fail(self, entry: str, fields: dict[str, str], error: str, **more: Any) -> None:
        await self.answer(entry, fields["task_id"], status="failed", error=error, **more)

    async def add_foreign(self, task: str, **fields: str) -> str:
        """An entry of a program that knows only the protocol."""
        body = {
            "task_id": task, "tool_name": "t", "payload": '{"n": 1}', "idempotency_key": task,
            "retry_count": "0", "created_at": "1700000000", **fields,
        }  # fmt: skip
        entry: bytes = await self.redis.xadd(TASKS, body)
        return entry.decode()

    async def pending(self) -> int:
        count: int = (await self.redis.xpending(TASKS, GROUP))["pending"]
        return count

    async def letters(self) -> list[dict[str, str]]:
        return [text(fields) for _, fields in await self.redis.xrange(DEAD)]

    async def length(self, stream: str = TASKS) -> int:
        count: int = await self.redis.xlen(stream)
        return count

    async def empty(self) -> None:
        """Until nothing is on the stream, nothing pending, and every result taken away."""

        async def gone() -> bool:
            left = [await self.length(), await self.pending(), await self.length(RESULTS)]
            return not any(left)

        await self.until(gone)

    async def holds(self, check: Callable[[], Awaitable[Any]], seconds: float) -> None:
        """All that time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert await check()
            await asyncio.sleep(0.05)

    async def until(self, check: Callable[[], Awaitable[T | None]], timeout: float = 60) -> T:
        try:
            return await wait_until(check, timeout)
        except TimeoutError:
            raise AssertionError(f"it never came to be: {await self._state()}") from None

    async def _state(self) -> Any:
        tasks = (await self.http.get("/api/v2/tasks", params={"limit": 5})).json()["items"]
        return [(task["id"], task["phase"], task["error"]) for task in tasks]


def text(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}


@asynccontextmanager
async def open_stream_app(
    ledger: str = "sqlite", *, redis_url: str | None = None, on_duty: bool = True, **settings: Any
) -> AsyncIterator[StreamApp]:
    """The ledger: "sqlite" in memory, a SQLite URL, or "redis" for the one of the streams."""
    url = redis_url or fresh_url("valkey")
    # Longer than any stall of a busy machine; a test that needs silence makes it.
    settings.setdefault("visibility_timeout_s", 30.0)
    settings.setdefault("retry_schedules", {"protocol": [0.05]})
    settings.setdefault("drain_ms", 0)
    settings.setdefault("archive", "")
    named = {"sqlite": "sqlite:///:memory:", "redis": url}
    streams = StreamApp(Settings(ledger=named.get(ledger, ledger), redis=url, **settings))
    await streams.open(on_duty=on_duty)
    try:
        yield streams
    finally:
        await streams.shut()
        await streams.redis.aclose()
