"""Agents that hand off long jobs: sessions, their tasks, and how soon each is told."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime
from typing import Any

import httpx2
import websockets

from bench.report import percentile
from onward import Worker


def hand_off(
    url: str, tasks: int, within_s: float, seconds: float, sessions: int
) -> dict[str, Any]:
    """So many tasks, handed in evenly; half of the sessions listen, the others ask at the end."""

    async def measure() -> dict[str, Any]:
        worker = Worker(url, concurrency=tasks)

        @worker.service
        async def report(quarter: int) -> int:
            await asyncio.sleep(seconds)
            return quarter

        serving = asyncio.create_task(worker.serve())
        listening = [f"s{at}" for at in range(0, sessions, 2)]
        delays: list[float] = []
        hearing = [asyncio.create_task(_hear(url, name, delays)) for name in listening]
        await asyncio.sleep(1)
        async with httpx2.AsyncClient(base_url=url, timeout=30) as http:
            took: list[float] = []
            began = time.monotonic()
            handing: list[asyncio.Task[None]] = []
            for at in range(tasks):
                await asyncio.sleep(max(0, began + at * within_s / tasks - time.monotonic()))
                handing.append(asyncio.create_task(_submit(http, at, sessions, took)))
            await asyncio.gather(*handing)
            most = int((await http.get("/api/v2/queues/report")).json()["states"]["running"])
            expected = sum(f"s{at % sessions}" in listening for at in range(tasks))
            until = time.monotonic() + seconds + 10
            while len(delays) < expected and time.monotonic() < until:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            polled = 0
            for at in range(1, sessions, 2):
                answer = await http.get(f"/api/v2/sessions/s{at}/notifications")
                polled += len(answer.json()["items"])
            queue = (await http.get("/api/v2/queues/report")).json()["states"]
        for task in (*hearing, serving):
            task.cancel()
        await asyncio.gather(*hearing, serving, return_exceptions=True)
        return {
            "submit_p99": percentile(took, 0.99),
            "notice_p95": percentile(delays, 0.95),
            "told": (len(delays) + polled) / tasks,
            "done": queue["succeeded"] / tasks,
            "at_once": most,
        }

    return asyncio.run(measure())


async def _submit(http: httpx2.AsyncClient, at: int, sessions: int, took: list[float]) -> None:
    body = {"type": "report", "payload": {"quarter": at}, "session_id": f"s{at % sessions}"}
    began = time.perf_counter()
    response = await http.post("/api/v2/tasks", json=body)
    took.append((time.perf_counter() - began) * 1000)
    assert response.status_code == 202, response.text


async def _hear(url: str, session: str, delays: list[float]) -> None:
    address = f"{url.replace('http', 'ws', 1)}/ws/notifications/{session}"
    async with websockets.connect(address) as socket:
        async for frame in socket:
            at = datetime.fromisoformat(json.loads(frame)["timestamp"]).timestamp()
            delays.append((time.time() - at) * 1000)
