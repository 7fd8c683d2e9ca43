"""dramatiq on Redis: one worker process with two threads, results stored."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from bench.contenders.payload import PAYLOAD

url = os.environ["BENCH_URL"]
broker = RedisBroker(url=url)
broker.add_middleware(Results(backend=RedisBackend(url=url), store_results=True))
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(payload: str) -> bool:
    return True


def submit(tasks: int) -> dict[str, Any]:
    began = time.perf_counter()
    for _ in range(tasks):
        noop.send(PAYLOAD)
    return {"rate": tasks / (time.perf_counter() - began)}


def worker() -> list[str]:
    command = str(Path(sys.executable).parent / "dramatiq")
    return [
        *("env", "dramatiq_queue_prefetch=200"),
        *(command, "bench.contenders.dramatiq_peer", "--processes", "1", "--threads", "2"),
    ]
