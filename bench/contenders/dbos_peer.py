"""DBOS on SQLite: workflows of steps in this process."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def linear(path: str, runs: int, steps: int, at_once: int) -> dict[str, Any]:
    from dbos import DBOS

    logging.disable(logging.WARNING)
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{path}"})

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
