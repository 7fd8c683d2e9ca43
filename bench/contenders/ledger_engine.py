"""Onward on a ledger that has a server: a process that submits, and a process that works."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from bench.contenders.engine import CHUNK, TIMEOUT_MS, new_task, noop
from bench.processes import end_tidily
from bench.report import percentile
from onward.client.service import Service
from onward.engine import Onward
from onward.server import collect_seldom
from onward.settings import Settings

SLOTS = 256


def submit(tasks: int) -> dict[str, Any]:
    """Lists of tasks for a queue that nobody serves yet."""

    async def measure() -> dict[str, Any]:
        async with _engine(serving=False) as onward:
            chunks = [[new_task() for _ in range(CHUNK)] for _ in range(tasks // CHUNK + 1)]
            chunks[-1] = chunks[-1][: tasks % CHUNK]
            began = time.perf_counter()
            for chunk in chunks:
                await onward.dispatcher.submit_all(chunk)
            return {"rate": tasks / (time.perf_counter() - began)}

    return uvloop.run(measure())


def idle(samples: int, warm: int, pause_ms: float, serving: bool = False) -> dict[str, Any]:
    """One task at a time; done by this process, or by one that works elsewhere."""

    async def measure() -> dict[str, Any]:
        took: list[float] = []
        async with _engine(serving=serving) as onward:
            for _ in range(warm + samples):
                await asyncio.sleep(pause_ms / 1000)
                task = new_task()
                began = time.perf_counter()
                _, ending = await onward.dispatcher.submit_and_wait(task, timeout_ms=TIMEOUT_MS)
                took.append((time.perf_counter() - began) * 1000)
                assert ending is not None
        timed = took[warm:]
        return {"p50": percentile(timed, 0.5), "p99": percentile(timed, 0.99)}

    return uvloop.run(measure())


@asynccontextmanager
async def _engine(*, serving: bool, archive: str = "", slots: int = SLOTS) -> AsyncIterator[Onward]:
    collect_seldom()  # as the server does
    settings = Settings(ledger=os.environ["BENCH_URL"], builtin_slots=slots, archive=archive)
    services = {"noop": Service(noop)} if serving else None
    async with Onward(settings, services=services) as onward:
        yield onward


def worker(archive: bool = False, slots: int = SLOTS) -> list[str]:
    return [
        sys.executable,
        "-m",
        "bench.contenders.ledger_engine",
        str(slots),
        *(("archive",) if archive else ()),
    ]


async def _work(slots: int, archive: str) -> None:
    async with _engine(serving=True, archive=archive, slots=slots):
        await asyncio.Event().wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="onward-bench-") as folder:
        end_tidily()
        archive = f"sqlite:////{folder}/archive.db" if sys.argv[2:] else ""
        uvloop.run(_work(int(sys.argv[1]), archive))
