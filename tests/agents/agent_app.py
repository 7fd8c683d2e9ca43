"""A server beside Redis; a service and an agent that know the agents' text and nothing else."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from onward.settings import Settings
from tests.servers import fresh_url
from tests.streams.stream_app import StreamApp, text

CREATE, COMPLETED, FAILED, TIMEOUT, DEAD = (
    f"agent:stream:task.{word}" for word in ("create", "completed", "failed", "timeout", "dlq")
)
SERVICE = "report-service"


class AgentApp(StreamApp):
    async def on_duty(self) -> bool:
        return (
            await super().on_duty() and self.app.onward._agent_feed._offers.worker_slots is not None
        )

    async def submit(self, **body: Any) -> str:
        """200: a builtin worker finished it before the answer was written."""
        response = await self.http.post("/api/v2/tasks", json=body)
        assert response.status_code in (200, 202), response.text
        task: str = response.json()["id"]
        return task

    # The agent.

    async def ask(self, **data: Any) -> str:
        """Publish task.create, as an agent without our tools does."""
        task = str(uuid.uuid4())
        body = {
            "task_id": task, "task_type": "report.generate", "params": {"quarter": "Q4"},
            "session_id": "user-123", "timeout": 300, "priority": "normal",
            "created_by": "agent", **data,
        }  # fmt: skip
        await self.publish(CREATE, body)
        return str(body["task_id"])

    async def declare(self, name: str, *types: str, **more: Any) -> None:
        body = {"name": name, "task_types": types, "via": "agent-stream", **more}
        response = await self.http.post("/api/v2/services", json=body)
        assert response.is_success, response.text

    async def publish(self, stream: str, data: Any) -> str:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event = {
            "event_id": str(uuid.uuid4()), "event_type": stream.removeprefix("agent:stream:"),
            "timestamp": now, "data": data if isinstance(data, str) else json.dumps(data),
        }  # fmt: skip
        entry: bytes = await self.redis.xadd(stream, event)
        return entry.decode()

    async def hear(self, stream: str, count: int = 1, timeout: float = 60) -> list[dict[str, Any]]:
        """XREADGROUP in agent-group, batch 10, until there are so many."""
        heard: list[dict[str, Any]] = []
        until = time.monotonic() + timeout
        while len(heard) < count and time.monotonic() < until:
            reply = await self.redis.xreadgroup(
                "agent-group", "agent-1", {stream: ">"}, count=10, block=200
            )
            for entry, fields in reply[0][1] if reply else ():
                heard.append(_event(fields))
                await self.redis.xack(stream, "agent-group", entry)
        return heard

    # The service.

    async def join(self, service: str = SERVICE, start: str = "0", stream: str = CREATE) -> None:
        await self.redis.xgroup_create(stream, f"{service}-group", id=start, mkstream=True)

    async def get(
        self,
        service: str = SERVICE,
        worker: str = "1",
        types: tuple[str, ...] = ("report.generate",),
        timeout: float = 60,
        stream: str = CREATE,
    ) -> tuple[str, dict[str, Any]]:
        """The next entry that is for this service; others are acknowledged and forgotten."""
        group = f"{service}-group"
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            reply = await self.redis.xreadgroup(
                group, f"{service}-worker-{worker}", {stream: ">"}, count=1, block=200
            )
            for entry, fields in reply[0][1] if reply else ():
                event = _event(fields)
                if event["data"]["task_type"] in types:
                    return entry.decode(), event
                await self.redis.xack(stream, group, entry)
        raise AssertionError(f"nothing for {service}: {await self._state()}")

    async def fall_silent(
        self, entry: str, worker: str = "1", service: str = SERVICE, stream: str = CREATE
    ) -> None:
        """As if nothing had been heard of who has it for the whole timeout."""
        idle = int(self.settings.visibility_timeout_s * 1000)
        group, name = f"{service}-group", f"{service}-worker-{worker}"
        await self.redis.xclaim(stream, group, name, 0, [entry], idle=idle, justid=True)

    async def finish(
        self,
        entry: str | None,
        task: str,
        result: Any = None,
        service: str = SERVICE,
        stream: str = CREATE,
    ) -> None:
        done = {
            "task_id": task, "status": "success", "result": result, "duration_ms": 5,
            "completed_by": service,
        }  # fmt: skip
        await self.publish(COMPLETED, done)
        await self._ack(entry, service, stream)

    async def fail_with(
        self, entry: str | None, task: str, code: str, service: str = SERVICE, **error: Any
    ) -> None:
        said = {
            "task_id": task, "status": "failed", "duration_ms": 5, "failed_by": service,
            "error": {"code": code, "message": "it went wrong", "details": {"at": 3}, **error},
        }  # fmt: skip
        await self.publish(FAILED, said)
        await self._ack(entry, service)

    async def _ack(self, entry: str | None, service: str, stream: str = CREATE) -> None:
        if entry is not None:
            await self.redis.xack(stream, f"{service}-group", entry)

    # What is there.

    async def on(self, stream: str) -> list[dict[str, Any]]:
        return [_event(fields) for _, fields in await self.redis.xrange(stream)]

    async def told(self, stream: str, count: int = 1) -> list[dict[str, Any]]:
        """Until so many events are on the stream."""

        async def enough() -> list[dict[str, Any]]:
            found = await self.on(stream)
            return found if len(found) >= count else []

        return await self.until(enough)

    async def notices(self, session: str = "user-123", count: int = 1) -> list[dict[str, Any]]:
        return await self.told(f"user:stream:notifications:{session}", count)

    async def swept(self, service: str = SERVICE) -> None:
        """Until nothing is on the stream of tasks, and nothing pending."""

        async def gone() -> bool:
            pending = await self.redis.xpending(CREATE, f"{service}-group")
            return await self.length(CREATE) == 0 and pending["pending"] == 0

        await self.until(gone)

    async def known(self, task: str) -> dict[str, Any]:
        async def there() -> dict[str, Any] | None:
            found = await self.read(task)
            return found if "state" in found else None

        return await self.until(there)


def _event(fields: dict[bytes, bytes]) -> dict[str, Any]:
    plain: dict[str, Any] = dict(text(fields))
    assert set(plain) == {"event_id", "event_type", "timestamp", "data"}
    return {**plain, "data": json.loads(plain["data"])}


@asynccontextmanager
async def open_agent_app(
    ledger: str = "sqlite",
    *,
    redis_url: str | None = None,
    builtin_worker: bool = False,
    **settings: Any,
) -> AsyncIterator[AgentApp]:
    """The ledger: "sqlite" in memory, a SQLite URL, or "redis" for the one of the streams."""
    url = redis_url or fresh_url("valkey")
    settings.setdefault("visibility_timeout_s", 30.0)  # as on the streams: longer than any stall
    settings.setdefault("retry_schedules", {"agents": [0.05]})
    settings.setdefault("drain_ms", 0)
    settings.setdefault("archive", "")
    named = {"sqlite": "sqlite:///:memory:", "redis": url}
    agents = AgentApp(Settings(ledger=named.get(ledger, ledger), redis=url, **settings))
    agents.builtin_worker = builtin_worker
    await agents.open()
    try:
        yield agents
    finally:
        await agents.shut()
        await agents.redis.aclose()
