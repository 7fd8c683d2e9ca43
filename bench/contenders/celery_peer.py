"""Celery on Redis: one prefork worker with four children, results stored."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from celery import Celery

from bench.contenders.payload import PAYLOAD

url = os.environ["BENCH_URL"].replace("unix://", "redis+socket://")
app = Celery("bench", broker=url, backend=url)


@app.task(name="noop")
def noop(payload: str) -> bool:
    return True


def submit(tasks: int) -> dict[str, Any]:
    began = time.perf_counter()
    for _ in range(tasks):
        noop.delay(PAYLOAD)
    return {"rate": tasks / (time.perf_counter() - began)}


def worker() -> list[str]:
    command = str(Path(sys.executable).parent / "celery")
    return [
        *(command, "-A", "bench.contenders.celery_peer", "worker", "--loglevel", "error"),
        *("--pool", "prefork", "--concurrency", "4", "--prefetch-multiplier", "32"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    ]
