"""huey on Redis: one consumer with two processes, results stored."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from huey import RedisHuey

from bench.contenders.payload import PAYLOAD
from bench.report import percentile

RESULTS = "huey.results.bench"
# The consumer imports this module too, and finds the server here.
huey = RedisHuey("bench", url=os.environ["BENCH_URL"], notify_result=True)


@huey.task()
def noop(payload: str) -> bool:
    return True


def submit(tasks: int) -> dict[str, Any]:
    began = time.perf_counter()
    for _ in range(tasks):
        noop(PAYLOAD)
    return {"rate": tasks / (time.perf_counter() - began)}


def idle(samples: int, warm: int, pause_ms: float) -> dict[str, Any]:
    took: list[float] = []
    for _ in range(warm + samples):
        time.sleep(pause_ms / 1000)
        began = time.perf_counter()
        assert noop(PAYLOAD).get(blocking=True, timeout=10) is True
        took.append((time.perf_counter() - began) * 1000)
    timed = took[warm:]
    return {"p50": percentile(timed, 0.5), "p99": percentile(timed, 0.99)}


def worker() -> list[str]:
    consumer = str(Path(sys.executable).parent / "huey_consumer")
    queue = "bench.contenders.huey_redis.huey"
    return [consumer, queue, "-w", "2", "-k", "process", "-n", "-q"]
