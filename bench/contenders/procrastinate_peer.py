"""procrastinate: one process, 30 jobs at a time. It keeps its jobs, but no results."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from procrastinate import App, PsycopgConnector

from bench.contenders.payload import PAYLOAD

CHUNK = 500
app = App(connector=PsycopgConnector(conninfo=os.environ["BENCH_URL"], min_size=1, max_size=20))


@app.task(name="noop")
async def noop(body: Any) -> None:
    pass


def submit(tasks: int) -> dict[str, Any]:
    async def measure() -> dict[str, Any]:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            jobs = [{"body": json.loads(PAYLOAD)}] * min(tasks, CHUNK)
            began = time.perf_counter()
            for _ in range(tasks // len(jobs)):
                await noop.batch_defer_async(*jobs)
            return {"rate": tasks / (time.perf_counter() - began)}

    return asyncio.run(measure())


def worker() -> list[str]:
    return [sys.executable, "-m", "bench.contenders.procrastinate_peer"]


async def _work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=30)


if __name__ == "__main__":
    asyncio.run(_work())
