"""DBOS, as it comes: workflows of steps in this process, and its queue with a worker elsewhere."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.contenders.payload import PAYLOAD, ledger

QUEUE = "noop"
CALLERS = 10


def linear(path: str, runs: int, steps: int, at_once: int) -> dict[str, Any]:
    from dbos import DBOS

    _configure(path)

    @DBOS.step()
    def noop() -> None:
        pass

    @DBOS.workflow()
    def line() -> None:
        for _ in range(steps):
            noop()

    DBOS.launch()
    try:
        line()
        began, cpu = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(lambda _: line(), range(runs)))
        done = runs * steps
        spent = time.process_time() - cpu
        return {"rate": done / (time.perf_counter() - began), "cpu_us": spent / done * 1e6}
    finally:
        DBOS.destroy()


def submit(tasks: int) -> dict[str, Any]:
    from dbos import DBOS, DBOSClient

    _declare()
    DBOS.launch()  # makes the tables and the queue
    DBOS.destroy()
    client = DBOSClient(system_database_url=os.environ["BENCH_URL"])
    body = json.loads(PAYLOAD)

    def one(_: int) -> None:
        client.enqueue({"queue_name": QUEUE, "workflow_name": "noop"}, body)

    began = time.perf_counter()
    with ThreadPoolExecutor(CALLERS) as threads:
        list(threads.map(one, range(tasks)))
    return {"rate": tasks / (time.perf_counter() - began)}


def worker() -> list[str]:
    return [sys.executable, "-m", "bench.contenders.dbos_peer"]


def _configure(path: str) -> None:
    from dbos import DBOS

    logging.disable(logging.WARNING)
    DBOS(config={"name": "bench", "system_database_url": ledger(path)})


def _declare() -> None:
    from dbos import DBOS

    _configure(os.environ["BENCH_URL"])

    @DBOS.workflow(name="noop")
    def noop(body: Any) -> None:
        pass


if __name__ == "__main__":
    from dbos import DBOS

    _declare()
    DBOS.launch()
    DBOS.register_queue(QUEUE)
    time.sleep(3600)
