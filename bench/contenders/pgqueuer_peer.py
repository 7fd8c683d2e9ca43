"""pgqueuer: one process, 500 jobs at a time. It keeps no results, but a line in its log."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer, Queries

from bench.contenders.payload import PAYLOAD

CHUNK = 500


def submit(tasks: int) -> dict[str, Any]:
    async def measure() -> dict[str, Any]:
        connection = await asyncpg.connect(os.environ["BENCH_URL"])
        queries = Queries.from_asyncpg_connection(connection)
        await queries.install()
        body = PAYLOAD.encode()
        began = time.perf_counter()
        for _ in range(tasks // CHUNK):
            await queries.enqueue(["noop"] * CHUNK, [body] * CHUNK, [0] * CHUNK)
        took = time.perf_counter() - began
        await connection.close()
        return {"rate": tasks / took}

    return uvloop.run(measure())


def worker() -> list[str]:
    return [sys.executable, "-m", "bench.contenders.pgqueuer_peer"]


async def _work() -> None:
    connection = await asyncpg.connect(os.environ["BENCH_URL"])
    queue = PgQueuer.from_asyncpg_connection(connection)

    @queue.entrypoint("noop")
    async def noop(job: Any) -> None:
        pass

    await queue.run(batch_size=CHUNK)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_work())
