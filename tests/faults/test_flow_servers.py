"""Runs are shared by the servers of one ledger; when one is killed, another goes on with them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.redis_invariants import check_redis_invariants
from tests.faults.test_servers import WAIT_S, Pair, http, serving_pair, working

pytestmark = pytest.mark.slow

STEPS = 6


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with serving_pair(tmp_path) as pair:
        yield pair


def line(steps: int, seconds: float) -> dict[str, Any]:
    names = [f"s{at}" for at in range(steps)]
    node = {"kind": "executor", "service": "chore", "prep": {"input_key": "$params.given"}}
    return {
        "start": names[0],
        "nodes": {name: {**node, "post": {"output_key": name}} for name in names},
        "edges": [{"from": a, "to": b} for a, b in itertools.pairwise(names)],
    }


async def started(client: Any, runs: int, seconds: float) -> list[str]:
    body = {"name": "line", "definition": line(STEPS, seconds)}
    assert (await client.post("/api/v2/flows", json=body)).status_code == 200
    given = {"flow": "line", "params": {"given": {"seconds": seconds}}}
    found = [await client.post("/api/v2/runs", json=given) for _ in range(runs)]
    return [response.json()["id"] for response in found]


async def ended(client: Any, run: str) -> dict[str, Any]:
    response = await client.get(f"/api/v2/runs/{run}", params={"wait_ms": WAIT_S * 1000})
    found: dict[str, Any] = response.json()
    assert found["state"] == "succeeded", found
    return found


async def test_both_servers_advance_runs(pair: Pair) -> None:
    async with http(pair.a) as a, http(pair.b) as b, working(pair.a.url), working(pair.b.url):
        # A run stays where it was begun as long as its steps are done there.
        runs = [*await started(a, 10, 0.0), *await started(b, 10, 0.0)]
        await asyncio.gather(*(ended(b, run) for run in runs))
        workers = set()
        for run in runs:
            events = (await a.get(f"/api/v2/tasks/{run}/events")).json()["items"]
            workers |= {e["data"]["worker"] for e in events if e["type"] == "task.claimed"}
        assert len(workers) == 2, "each server has had a hand in some"
    check_redis_invariants(pair.redis.client)


@pytest.mark.contract("S4-11")
async def test_when_a_server_is_killed_the_other_goes_on(pair: Pair) -> None:
    async with http(pair.b) as b, working(pair.b.url, concurrency=32):
        async with http(pair.a) as a:
            runs = await started(a, 12, 0.05)
        await asyncio.sleep(0.15)
        pair.a.kill()
        for run in await asyncio.gather(*(ended(b, run) for run in runs)):
            assert [row["status"] for row in run["node_runs"]].count("ok") == STEPS
    check_redis_invariants(pair.redis.client)
