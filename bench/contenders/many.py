"""Many tasks at once: through partitions inside the process, and handed in over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx2
import msgspec
import uvloop

from bench.contenders.engine import CHUNK, TIMEOUT_MS, new_task, noop
from bench.contenders.payload import PAYLOAD, ledger
from onward import Client
from onward.client.address import http_options
from onward.client.service import Service
from onward.engine import Onward
from onward.server import collect_seldom
from onward.settings import Settings

SLOTS = 256
ANSWER_S = 60


def drain(path: str, tasks: int, partitions: int) -> dict[str, Any]:
    """What a worker needs for a full queue whose tasks lie in so many partitions; 0: in none."""

    async def measure() -> dict[str, Any]:
        collect_seldom()
        settings = Settings(ledger=ledger(path), synchronous="normal", builtin_slots=SLOTS)
        async with Onward(settings) as onward:
            for at in range(0, tasks, CHUNK):
                some = range(at, min(at + CHUNK, tasks))
                await onward.dispatcher.submit_all(
                    [_in_partition(n % partitions if partitions else None) for n in some]
                )
        async with Onward(settings, services={"noop": Service(noop)}) as onward:
            done = onward.dispatcher.tally
            began, cpu = time.perf_counter(), time.process_time()
            async with asyncio.timeout(TIMEOUT_MS / 1000 * 2):
                while done["task.succeeded"] < tasks:  # noqa: ASYNC110 the tally rings no bell
                    await asyncio.sleep(0.005)
            return {
                "cost_us": (time.perf_counter() - began) / tasks * 1e6,
                "cpu_us": (time.process_time() - cpu) / tasks * 1e6,
            }

    return uvloop.run(measure())


def _in_partition(n: int | None) -> Any:
    task = new_task()
    return task if n is None else msgspec.structs.replace(task, partition=f"p{n}")


def batches(url: str, tasks: int, size: int) -> dict[str, Any]:
    """Batches, one after the other; their bodies are made before."""
    body = {"type": "noop", "payload": json.loads(PAYLOAD)}
    sent = msgspec.json.encode({"tasks": [body] * size})

    async def measure() -> dict[str, Any]:
        async with httpx2.AsyncClient(**http_options(url), timeout=ANSWER_S) as http:
            began = time.perf_counter()
            for _ in range(tasks // size):
                head = {"content-type": "application/json"}
                response = await http.post("/api/v2/tasks/batch", content=sent, headers=head)
                assert response.status_code == 200, response.text[:500]
                items = response.json()["items"]
                assert len(items) == size
                assert all("id" in item for item in items)
            return {"rate": tasks / (time.perf_counter() - began)}

    return uvloop.run(measure())


def gathered(url: str, tasks: int) -> dict[str, Any]:
    """Singular submits of one program, all at the same time."""
    payload = json.loads(PAYLOAD)

    async def measure() -> dict[str, Any]:
        async with Client(url) as client:
            began = time.perf_counter()
            views = await asyncio.gather(*[client.submit("noop", payload) for _ in range(tasks)])
            took = time.perf_counter() - began
            assert len({view.id for view in views}) == tasks
            return {"rate": tasks / took}

    return uvloop.run(measure())
