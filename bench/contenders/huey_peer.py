"""huey on SQLite: one consumer process with one thread, results stored."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from huey import SqliteHuey

from bench.contenders.payload import PAYLOAD
from bench.processes import running, until
from bench.report import percentile

# The consumer imports this module too, and finds the file and the level of safety here.
_FSYNC = {"default": None, "full": True, "off": False}
huey = SqliteHuey(
    filename=os.environ.get("BENCH_HUEY", ":memory:"),
    fsync=_FSYNC[os.environ.get("BENCH_HUEY_SYNC", "default")],
)


@huey.task()
def noop(payload: str) -> bool:
    return True


def throughput(path: str, synchronous: str, tasks: int, quiet: bool) -> dict[str, Any]:
    """Drain a full queue, from the first result stored to the last: submitting is not counted."""
    _use(path, synchronous)
    logging = ("-q",) if quiet else ()  # as it comes it writes two lines a task
    for _ in range(tasks):
        noop(PAYLOAD)
    with running(_consumer(*logging), env=_env(path, synchronous)) as consumer:
        until(lambda: huey.result_count() > 0, what="huey", process=consumer)
        before, began = huey.result_count(), time.perf_counter()
        done = before
        while done < tasks and consumer.poll() is None:
            assert time.perf_counter() - began < 20
            time.sleep(0.01)
            done = huey.result_count()
        took = time.perf_counter() - began
    assert done == tasks, done
    (level,) = huey.storage.conn.execute("PRAGMA synchronous").fetchone()
    return {"rate": (done - before) / took, "tasks": done, "synchronous": level}


def idle(path: str, synchronous: str, samples: int, poll_ms: float) -> dict[str, Any]:
    """One task at a time; consumer and caller both look every few milliseconds."""
    _use(path, synchronous)
    poll = poll_ms / 1000
    took: list[float] = []
    polling = ("-q", "-d", str(poll), "-m", str(poll), "-b", "1")
    with running(_consumer(*polling), env=_env(path, synchronous)) as consumer:
        noop(PAYLOAD)
        until(lambda: huey.result_count() > 0, what="huey", process=consumer)
        for _ in range(samples):
            began = time.perf_counter()
            result = noop(PAYLOAD)
            assert result.get(blocking=True, timeout=10, backoff=1, max_delay=poll) is True
            took.append((time.perf_counter() - began) * 1000)
    return {"p50": percentile(took, 0.5), "p99": percentile(took, 0.99), "tasks": samples}


def _use(path: str, synchronous: str) -> None:
    huey.storage.close()
    huey.storage.filename = path
    huey.storage._fsync = _FSYNC[synchronous]
    huey.storage.initialize_schema()


def _env(path: str, synchronous: str) -> dict[str, str]:
    return {"BENCH_HUEY": path, "BENCH_HUEY_SYNC": synchronous}


def _consumer(*more: str) -> list[str]:
    consumer = str(Path(sys.executable).parent / "huey_consumer")
    return [consumer, "bench.contenders.huey_peer.huey", "-w", "1", "-k", "thread", "-n", *more]
