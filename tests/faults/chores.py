"""Many tasks of one kind, handed in while their workers die; and how far they have come."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx2

AT_ONCE = 20


async def submit_chores(
    http: httpx2.AsyncClient, many: int, accepted: list[str], **more: Any
) -> None:
    async def some(part: range) -> None:
        for n in part:
            body = {"type": "chore", "payload": {"n": n}, **more}
            response = await http.post("/api/v2/tasks", json=body)
            assert response.status_code in (200, 202), response.text  # it may be over by now
            accepted.append(response.json()["id"])

    await asyncio.gather(*[some(range(at, many, AT_ONCE)) for at in range(AT_ONCE)])


async def states_in(http: httpx2.AsyncClient, queue: str) -> Counter[str]:
    """How many tasks there are, by state; none before the first has come."""
    queues = (await http.get("/api/v2/queues")).json()["items"]
    return Counter(next((one["states"] for one in queues if one["name"] == queue), {}))
