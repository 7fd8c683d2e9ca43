"""A server whose tasks go over Redis streams, and workers written from the protocol's text alone."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import redis.asyncio

from onward.app import build
from onward.settings import Settings
from tests.servers import fresh_url

TASKS, RESULTS, DEAD, GROUP = "stream:task", "stream:result", "stream:dlq", "cg:workers"


class Street:
    def __init__(self, http: httpx2.AsyncClient, line: redis.asyncio.Redis, app: Any) -> None:
        self.http = http
        self.redis = line
        self.onward = app.onward

    async def submit(self, **body: Any) -> str:
        response = await self.http.post("/api/v2/tasks", json={"type": "t", **body})
        assert response.status_code == 202, response.text
        task: str = response.json()["id"]
        return task

    async def read(self, task: str) -> dict[str, Any]:
        body: dict[str, Any] = (await self.http.get(f"/api/v2/tasks/{task}")).json()
        return body

    async def over(self, task: str, timeout: float = 15) -> dict[str, Any]:
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            found = await self.read(task)
            if found["state"] in ("succeeded", "failed", "dead", "canceled"):
                return found
            await asyncio.sleep(0.02)
        raise AssertionError(f"not over: {await self.read(task)}")

    async def history(self, task: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (
            await self.http.get(f"/api/v2/tasks/{task}/events")
        ).json()["items"]
        return items

    async def take(self, consumer: str = "raw-1", timeout: float = 10) -> tuple[str, dict[str, str]]:
        """XREADGROUP, as the protocol says: one entry."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            reply = await self.redis.xreadgroup(GROUP, consumer, {TASKS: ">"}, count=1, block=200)
            if reply:
                rows = reply[0][1] if isinstance(reply, list) else next(iter(reply.values()))[0]
                entry, fields = rows[0]
                return entry.decode(), {k.decode(): v.decode() for k, v in fields.items()}
        raise AssertionError("nothing was offered")

    async def answer(self, entry: str | None, task: str, **fields: Any) -> None:
        """Write the result, then acknowledge; only the protocol's own words."""
        body = {"task_id": task, "worker": "raw", "finished_at": str(int(time.time() * 1000))}
        await self.redis.xadd(RESULTS, {**body, **{k: str(v) for k, v in fields.items()}})
        if entry is not None:
            await self.redis.xack(TASKS, GROUP, entry)

    async def succeed(self, entry: str, fields: dict[str, str], result: Any = None) -> None:
        await self.answer(entry, fields["task_id"], status="succeeded", result=json.dumps(result))

    async def fail(self, entry: str, fields: dict[str, str], error: str, **more: Any) -> None:
        await self.answer(entry, fields["task_id"], status="failed", error=error, **more)

    async def pending(self) -> int:
        count: int = (await self.redis.xpending(TASKS, GROUP))["pending"]
        return count

    async def until(self, check: Any, timeout: float = 10) -> Any:
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            found = await check()
            if found:
                return found
            await asyncio.sleep(0.02)
        raise AssertionError("it never came to be")


@asynccontextmanager
async def open_street(ledger: str = "sqlite", **settings: Any) -> AsyncIterator[Street]:
    url = fresh_url("valkey")
    settings.setdefault("visibility_timeout_s", 1.0)
    settings.setdefault("retry_schedules", {"protocol": [0.05]})
    settings.setdefault("drain_ms", 0)
    settings.setdefault("archive", "")
    chosen = Settings(
        ledger="sqlite:///:memory:" if ledger == "sqlite" else url, redis=url, **settings
    )
    app = build(chosen)
    line = redis.asyncio.Redis.from_url(url)
    transport = httpx2.ASGITransport(app=app)
    async with (
        app.web.router.lifespan_context(app.web),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
        line,
    ):
        yield Street(http, line, app)
