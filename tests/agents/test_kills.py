"""A server that is killed at any moment: what ended is told, and told once."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward.client.address import http_options
from tests.processes import Server
from tests.push.conftest import PlainWorker
from tests.support import wait_until

pytestmark = pytest.mark.slow


@pytest.mark.contract("S2-6")
async def test_every_ending_is_told_once_however_often_the_server_is_killed(tmp_path: Path) -> None:
    accepted: set[str] = set()

    async def submit(http: httpx2.AsyncClient, number: int) -> None:
        body = {"type": "echo", "payload": number, "session_id": "s1"}
        with suppress(httpx2.TransportError):
            answer = await http.post("/api/v2/tasks", json=body)
            assert answer.status_code in (200, 202), answer.text
            accepted.add(answer.json()["id"])

    for life in range(4):
        server = Server(tmp_path, up=True, ONWARD_LEASE_MS=1_000)
        server.wait_ready()
        async with httpx2.AsyncClient(**http_options(server.url), timeout=60) as http:
            calls = [asyncio.ensure_future(submit(http, number)) for number in range(40)]
            await asyncio.wait(calls[: 10 * (life + 1)])
            server.kill()
            await asyncio.gather(*calls)

    server = Server(tmp_path, up=True, ONWARD_LEASE_MS=1_000)
    server.wait_ready()
    try:
        async with httpx2.AsyncClient(**http_options(server.url), timeout=60) as http:

            async def told() -> list[dict[str, Any]] | None:
                path = "/api/v2/sessions/s1/notifications?limit=1000"
                items: list[dict[str, Any]] = (await http.get(path)).json()["items"]
                return items if accepted <= {item["task_id"] for item in items} else None

            items = await wait_until(told, timeout=30)
    finally:
        server.kill()
    assert len(accepted) >= 40
    assert set(Counter(item["task_id"] for item in items).values()) == {1}
    assert {item["type"] for item in items} == {"task_completed"}


@pytest.mark.contract("N-3")
async def test_every_ending_is_called_back_however_often_the_server_is_killed(
    tmp_path: Path,
) -> None:
    hook = PlainWorker(lambda _: None)
    accepted: set[str] = set()

    async def submit(http: httpx2.AsyncClient, number: int) -> None:
        body = {"type": "echo", "payload": number, "callback_url": hook.url}
        with suppress(httpx2.TransportError):
            answer = await http.post("/api/v2/tasks", json=body)
            assert answer.status_code in (200, 202), answer.text
            accepted.add(answer.json()["id"])

    try:
        for life in range(3):
            server = Server(tmp_path, up=True, ONWARD_LEASE_MS=1_000)
            server.wait_ready()
            async with httpx2.AsyncClient(**http_options(server.url), timeout=10) as http:
                calls = [asyncio.ensure_future(submit(http, number)) for number in range(20)]
                await asyncio.wait(calls[: 5 * (life + 1)])
                server.kill()
                await asyncio.gather(*calls)
        server = Server(tmp_path, up=True, ONWARD_LEASE_MS=1_000)
        server.wait_ready()
        try:
            await wait_until(
                lambda: accepted <= {call.body["id"] for call in hook.calls}, timeout=60
            )
        finally:
            server.kill()
    finally:
        hook.stop()
    assert len(accepted) >= 15
    # At least once: under one id, and always the same.
    for call in hook.calls:
        assert call.headers["webhook-id"] == f"{call.body['id']}.1"
        assert (call.body["state"], call.body["generation"]) == ("succeeded", 1)
