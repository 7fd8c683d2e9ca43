"""kill -9 anything at any moment: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward.client.address import http_options
from tests.faults.chores import states_in, submit_chores
from tests.faults.invariants import check_invariants
from tests.processes import HTTP, Process, Server, free_port, serving
from tests.support import wait_until

pytestmark = pytest.mark.slow

WORKER = str(Path(__file__).with_name("worker_process.py"))


async def submit_until(
    server: Server, accepted: list[str], stop: asyncio.Event, *, path: str, body: dict[str, Any]
) -> None:
    """Keep submitting, and remember every id that was answered."""
    async with httpx2.AsyncClient(**http_options(server.url), timeout=60) as http:
        while not stop.is_set():
            try:
                response = await http.post(path, json=body)
            except httpx2.TransportError:
                await asyncio.sleep(0.01)
                continue
            if response.status_code < 300:
                said = response.json()
                accepted.append(said.get("taskId") or said["id"])


async def drained(url: str, timeout: float = 60) -> None:
    """Until no task is queued, scheduled or running."""
    async with httpx2.AsyncClient(**http_options(url), timeout=60) as http:

        async def left() -> dict[str, Any]:
            queues = (await http.get("/api/v2/queues")).json()["items"]
            return {
                queue["name"]: queue["states"]
                for queue in queues
                if any(queue["states"][state] for state in ("queued", "running", "scheduled"))
            }

        await wait_until(left, timeout, holds=lambda queues: not queues)


@pytest.mark.contract("S0-2", "N-3")
async def test_a_server_killed_under_load_loses_nothing_it_answered_for(tmp_path: Path) -> None:
    port = free_port()
    env: dict[str, Any] = {"ONWARD_LEASE_MS": 1000, "ONWARD_RETRY_SCHEDULES": '{"Default":[0.1]}'}
    accepted: list[str] = []
    stop = asyncio.Event()
    server = Server(tmp_path, port=port, up=True, **env).wait_ready()
    load = [
        asyncio.create_task(submit_until(server, accepted, stop, path=path, body=body))
        for path, body in (
            ("/api/openai", {"data": {"n": 1}, "async": True}),
            ("/api/v2/tasks", {"type": "echo", "payload": {"n": 1}}),
            ("/api/v2/tasks", {"type": "countdown", "payload": {"seconds": 0.3}}),
        )
        for _ in range(4)
    ]
    try:
        for _ in range(3):
            enough = len(accepted) + 300
            await wait_until(lambda: len(accepted), holds=enough.__le__)
            server.kill()
            server = Server(tmp_path, port=port, up=True, **env)
            await asyncio.to_thread(server.wait_ready)
        stop.set()
        await asyncio.gather(*load)
        await drained(server.url)
        assert await asyncio.to_thread(server.stop) == 0
    finally:
        stop.set()
        server.kill()
    assert len(accepted) >= 900
    check_invariants(tmp_path / "ledger.db", accepted)


async def staffed(http: httpx2.AsyncClient, many: int) -> None:
    await wait_until(
        lambda: http.get("/api/v2/workers"), holds=lambda said: len(said.json()["items"]) >= many
    )


@pytest.mark.contract("N-7")
async def test_workers_killed_every_second_lose_no_task_and_end_none_twice(tmp_path: Path) -> None:
    tasks = 2_000
    with serving(tmp_path, ONWARD_LEASE_MS=2000) as server:
        accepted: list[str] = []

        def start() -> Process:
            return Process(sys.executable, WORKER, server.url, log=tmp_path / "worker.log")

        crew = [start(), start()]
        try:
            async with httpx2.AsyncClient(**http_options(server.url), timeout=60) as http:
                # Killed from the first second on: on a slow machine, work ends as it comes in.
                submitting = asyncio.create_task(submit_chores(http, tasks, accepted))
                kills = 0
                while True:
                    await staffed(http, len(crew))
                    await asyncio.sleep(1)
                    states = await states_in(http, "chore")
                    if states["succeeded"] + states["dead"] == tasks:
                        break
                    crew[kills % 2].kill()
                    crew[kills % 2] = start()
                    kills += 1
                    assert kills < 60, states
                await submitting
            assert kills >= 2
            assert states["dead"] == 0, "a lost delivery burns no retry"
        finally:
            for process in crew:
                process.kill()
        assert await asyncio.to_thread(server.stop) == 0
    check_invariants(tmp_path / "ledger.db", accepted)


@pytest.mark.contract("N-7")
async def test_a_server_told_to_stop_hands_back_what_runs_unburned(tmp_path: Path) -> None:
    with serving(tmp_path, up=True, ONWARD_DRAIN_MS=200) as server:
        async with httpx2.AsyncClient(**http_options(server.url), timeout=60) as http:
            body = {"type": "countdown", "payload": {"seconds": 30}}
            task = (await http.post("/api/v2/tasks", json=body)).json()["id"]
        assert await asyncio.to_thread(server.stop) == 0
        again = Server(tmp_path, port=server.port)
        try:
            again.wait_ready()
            found = HTTP.get(f"{again.url}/api/v2/tasks/{task}").json()
            assert (found["state"], found["attempt"], found["failures"]) == ("queued", 0, 0)
        finally:
            again.kill()
