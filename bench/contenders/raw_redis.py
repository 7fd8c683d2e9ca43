"""The limit: the same hashes, lists and streams, written by three small functions.

One connection, batches of a hundred; a batch's settling and the next one's claiming share a trip.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import redis
import uuid_utils

from bench.contenders.payload import PAYLOAD
from bench.contenders.raw_sqlite import BATCH, CLAIMED, LEASE_MS, RETENTION_MS

LIBRARY = Path(__file__).with_suffix(".lua")
TOGETHER = 10  # batches inserted in one trip


def cycle(url: str, tasks: int) -> dict[str, Any]:
    client = redis.Redis.from_url(url)
    client.function_load(LIBRARY.read_text(), replace=True)
    began = time.perf_counter()
    _insert(client, tasks)
    queued = time.perf_counter()
    settled = _drain(client)
    over = time.perf_counter()
    assert settled == tasks == client.xlen("raw-events") / 3, settled
    return {
        "rate": tasks / (over - began),
        "submit_rate": tasks / (queued - began),
        "drain_rate": tasks / (over - queued),
    }


def _insert(client: Any, tasks: int) -> None:
    for _ in range(tasks // BATCH // TOGETHER):
        pipe = client.pipeline(transaction=False)
        for _ in range(TOGETHER):
            ids = [str(uuid_utils.uuid7()) for _ in range(BATCH)]
            pipe.execute_command("FCALL", "raw_insert", 0, _now(), PAYLOAD, *ids)
        pipe.execute()


def _drain(client: Any) -> int:
    settled, held = 0, []
    while True:
        now = _now()
        pipe = client.pipeline(transaction=False)
        pipe.execute_command("FCALL", "raw_settle", 0, now, now + RETENTION_MS, *held)
        pipe.execute_command("FCALL", "raw_claim", 0, now, now + LEASE_MS, BATCH, CLAIMED)
        done, claimed = pipe.execute()
        settled += done
        if not claimed:
            return settled
        held = [part for at in range(0, len(claimed), 3) for part in claimed[at : at + 2]]


def _now() -> int:
    return time.time_ns() // 1_000_000
