"""Workers that claim from the ledger themselves: any server may ask, and none need be there."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward.cli.worker import ledger_transport
from tests.faults.chores import states_in, submit_chores
from tests.faults.redis_invariants import Snapshot, check_redis_invariants
from tests.faults.test_servers import (
    LEASE_MS,
    WAIT_S,
    Pair,
    ended,
    http,
    running,
    serving_pair,
    working,
)
from tests.processes import Process
from tests.support import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-1", "R-1")]

CHORES = f"{Path(__file__).with_name('stream_worker.py')}:worker"
TASKS, KILLS = 2_000, 4


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with serving_pair(tmp_path) as pair:
        yield pair


async def test_it_serves_its_types_and_its_group_by_any_server(pair: Pair) -> None:
    over = ledger_transport(pair.redis.url)
    async with http(pair.a) as a, http(pair.b) as b, working("", over, id="own") as own:
        for client in (a, b):
            said = await client.post("/api/openai", json={"data": {"n": 1}})
            assert (said.status_code, said.json()["result"]) == (200, {"by": own.id})
            (member,) = (await client.get("/api/v2/workers")).json()["items"]
            assert (member["id"], member["transport"]) == (own.id, "ledger")
            assert member["queues"] == ["chore", "group:default"]
        tasks = []
        for n in range(5):
            body = {"type": "chore", "payload": {"n": n}}
            task = (await a.post(f"/api/v2/tasks?wait_ms={WAIT_S}000", json=body)).json()
            assert task["result"] == {"by": own.id, "n": n, "attempt": 1}
            tasks.append(task["id"])
        events = (await b.get(f"/api/v2/tasks/{tasks[0]}/events")).json()["items"]
        assert "task.progress" in [event["type"] for event in events]
    check_redis_invariants(pair.redis.client, tasks)


async def test_it_is_told_to_stop_and_told_to_go(pair: Pair) -> None:
    over = ledger_transport(pair.redis.url)
    async with http(pair.a) as client, working("", over, id="own") as own:
        body: dict[str, Any] = {"type": "chore", "payload": {"seconds": 60}}
        stopped = (await client.post("/api/v2/tasks", json=body)).json()["id"]
        await running(client, stopped)
        await client.post(f"/api/v2/tasks/{stopped}/cancel")
        assert (await ended(client, stopped))["state"] == "canceled"
        body["payload"]["seconds"] = 1.5
        last = (await client.post("/api/v2/tasks", json=body)).json()["id"]
        await running(client, last)
        assert (await client.post(f"/api/v2/workers/{own.id}/drain")).status_code == 200
        assert (await ended(client, last))["state"] == "succeeded"
        await wait_until(lambda: not own.connected, WAIT_S)

        async def workers() -> list[Any]:
            items: list[Any] = (await client.get("/api/v2/workers")).json()["items"]
            return items

        await wait_until(workers, WAIT_S, holds=lambda items: not items)
    check_redis_invariants(pair.redis.client, [stopped, last])


async def test_it_goes_on_while_every_server_is_gone(pair: Pair) -> None:
    accepted: list[str] = []
    async with working("", ledger_transport(pair.redis.url), concurrency=2):
        async with http(pair.a) as client:
            await submit_chores(client, 40, accepted)
            later = {"type": "chore", "payload": {"n": 0}, "delay_ms": 1_000}
            accepted.append((await client.post("/api/v2/tasks", json=later)).json()["id"])
        pair.a.kill()
        pair.b.kill()
        redis: Any = pair.redis.client
        counts = "onward:counts"
        await wait_until(lambda: redis.hget(counts, "chore:succeeded") == b"41", WAIT_S)
    check_redis_invariants(pair.redis.client, accepted)


async def staffed(client: httpx2.AsyncClient, seen: set[str], many: int) -> None:
    """Until so many have been seen in all: those who were killed have been replaced."""
    async with asyncio.timeout(WAIT_S):
        while len(seen) < many:
            seen |= {one["id"] for one in (await client.get("/api/v2/workers")).json()["items"]}
            await asyncio.sleep(0.05)


async def test_killed_again_and_again_they_lose_nothing_and_end_nothing_twice(
    pair: Pair, tmp_path: Path
) -> None:
    """Fewer than five times: a task that is lost so often in a row is poison, and dead."""
    accepted: list[str] = []

    def hire() -> Process:
        command = (sys.executable, "-m", "onward.cli", "worker", CHORES, "--via", "ledger")
        env = {"ONWARD_LEDGER": pair.redis.url, "ONWARD_LEASE_MS": str(LEASE_MS)}
        return Process(*command, env=env, log=tmp_path / "worker.log")

    crew = [hire(), hire()]
    try:
        async with http(pair.a) as client:
            submitting = asyncio.create_task(submit_chores(client, TASKS, accepted, max_retries=20))
            seen: set[str] = set()
            for turn in range(KILLS):
                await staffed(client, seen, len(crew) + turn)
                await asyncio.sleep(0.5)
                crew[turn % 2].kill()
                crew[turn % 2] = hire()
            await submitting
            await wait_until(
                lambda: states_in(client, "chore"),
                90,
                holds=lambda states: states["succeeded"] >= TASKS,
            )
    finally:
        for worker in crew:
            worker.kill()
    assert "Traceback" not in (tmp_path / "worker.log").read_text()
    events = Counter(type_ for _, type_, _, _ in Snapshot(pair.redis.client).log())
    assert events["task.reclaimed"] > 0, "nobody was killed with anything in hand"
    check_redis_invariants(pair.redis.client, accepted)
