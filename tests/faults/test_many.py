"""kill -9 while many are handed in, end together, or are canceled: each batch ends once, each
operation goes on where it was.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward.client.address import http_options
from tests.faults.invariants import check_invariants
from tests.processes import Server, free_port
from tests.support import wait_until

pytestmark = pytest.mark.slow

LEASE: dict[str, Any] = {"ONWARD_LEASE_MS": 1000}


async def insisted(http: httpx2.AsyncClient, method: str, path: str, **more: Any) -> Any:
    """Until it is answered, by whichever life of the server."""
    while True:
        try:
            response = await http.request(method, path, **more)
        except httpx2.TransportError:
            await asyncio.sleep(0.02)
            continue
        if response.status_code < 300:
            return response.json()
        assert response.status_code == 503, response.text
        await asyncio.sleep(0.02)


@pytest.mark.contract("B-1", "B-2")
async def test_a_batch_ends_once_whatever_is_killed(tmp_path: Path) -> None:
    port, batches, tasks = free_port(), 8, 400
    server = Server(tmp_path, port=port, up=True, **LEASE).wait_ready()
    made: list[str] = []

    async def hand_in(http: httpx2.AsyncClient) -> None:
        for number in range(batches):
            items = [
                {"type": "echo", "payload": n, "idempotency_key": f"{number}-{n}"}
                for n in range(tasks)
            ]
            after = {"type": "echo", "payload": {"after": number}, "tags": ["after"]}
            body = {"tasks": items, "batch": {"name": f"b{number}", "on_complete": after}}
            headers = {"idempotency-key": f"batch-{number}"}
            found = await insisted(http, "POST", "/api/v2/tasks/batch", json=body, headers=headers)
            assert all("id" in item for item in found["items"])
            made.append(found["batch"])

    async with httpx2.AsyncClient(**http_options(server.url), timeout=60) as http:
        try:
            handing_in = asyncio.create_task(hand_in(http))
            for kill in range(1, 4):
                await wait_until(lambda: len(made), holds=(2 * kill).__le__)
                server.kill()
                server = Server(tmp_path, port=port, up=True, **LEASE)
                await asyncio.to_thread(server.wait_ready)
            await handing_in
            for number, batch in enumerate(made):

                async def over(batch: str = batch) -> dict[str, Any] | None:
                    view = await insisted(http, "GET", f"/api/v2/batches/{batch}")
                    return view if view["finished_at"] else None

                view: dict[str, Any] | None = await wait_until(over, 60)
                assert view is not None
                assert (view["name"], view["states"]) == (f"b{number}", {"succeeded": tasks})
            page = await insisted(http, "GET", "/api/v2/tasks", params={"tag": "after"})
            numbers = sorted(task["payload"]["after"] for task in page["items"])
            assert numbers == list(range(batches))
            assert await asyncio.to_thread(server.stop) == 0
        finally:
            server.kill()
    check_invariants(tmp_path / "ledger.db", made, all_over=False)


@pytest.mark.contract("B-3")
async def test_an_operation_goes_on_after_each_kill(tmp_path: Path) -> None:
    port, tasks = free_port(), 12_000
    server = Server(tmp_path, port=port, **LEASE).wait_ready()
    async with httpx2.AsyncClient(**http_options(server.url), timeout=60) as http:
        try:
            for at in range(0, tasks, 6_000):
                items = [{"type": "nobody", "payload": at + n} for n in range(6_000)]
                await insisted(http, "POST", "/api/v2/tasks/batch", json={"tasks": items})
            body = {"filter": {"type": "nobody"}, "rate": 5_000}
            begun = await insisted(http, "POST", "/api/v2/tasks/cancel", json=body)
            path = f"/api/v2/operations/{begun['id']}"
            seen = 0
            for _ in range(2):
                seen = await wait_until(lambda: _done(http, path), 60, holds=(seen + 1_000).__le__)
                server.kill()
                server = Server(tmp_path, port=port, **LEASE)
                await asyncio.to_thread(server.wait_ready)
            await wait_until(lambda: _done(http, path), 60, holds=lambda done: done == tasks)
            shown = await insisted(http, "GET", path, params={"wait_ms": 20_000})
            assert (shown["state"], shown["done"], shown["failed"]) == ("succeeded", tasks, 0)
            assert await asyncio.to_thread(server.stop) == 0
        finally:
            server.kill()
    check_invariants(tmp_path / "ledger.db")


async def _done(http: httpx2.AsyncClient, path: str) -> int:
    found: int = (await insisted(http, "GET", path))["done"]
    return found
