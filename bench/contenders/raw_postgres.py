"""The limit: the same rows in the same tables, with nothing in between.

One connection, batches of a hundred, a statement and a transaction each: insert with an event,
claim with an event, settle with an event. No handler, no waiting caller, no counts, no leases.
"""

from __future__ import annotations

import time
from typing import Any

import asyncpg
import uuid_utils
import uvloop

from bench.contenders.payload import PAYLOAD
from bench.contenders.raw_sqlite import BATCH, CLAIMED, LEASE_MS, RETENTION_MS, WORKER
from onward.ledgers.postgres import SCHEMA
from onward.ledgers.postgres.migration import open_schema

INSERT = """
WITH new AS (
    INSERT INTO task (id, type, queue, profile, payload, created_at, queued_at, events)
    SELECT id, 'noop', 'noop', 'console', $2, $3, $3, 1 FROM unnest($1::text[]) AS id RETURNING tid
)
INSERT INTO event (tid, n, generation, type, at) SELECT tid, 1, 1, 'task.created', $3 FROM new
"""
CLAIM = """
WITH head AS (
    SELECT tid FROM task
    WHERE state = 'queued' AND queue = 'noop' AND priority = 1 AND lane = 'primary'
    ORDER BY place LIMIT $1 FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE task SET state = 'running', fence = fence + 1, rev = rev + 1, events = events + 1,
        attempt = attempt + 1, worker = $2, started_at = $3, lease_until = $4, due_at = $4
    FROM head WHERE task.tid = head.tid RETURNING task.tid, id, fence, rev, payload
), told AS (
    INSERT INTO event (tid, n, generation, type, at, data)
    SELECT tid, 2, 1, 'task.claimed', $3, $5 FROM claimed
)
SELECT tid, id, fence, rev, payload FROM claimed
"""
SETTLE = """
WITH settled AS (
    UPDATE task SET state = 'succeeded', rev = task.rev + 1, events = events + 1, due_at = $4,
        result = 'null', finished_at = $5
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS held (tid, fence, rev)
    WHERE task.tid = held.tid AND state = 'running'
        AND task.fence = held.fence AND task.rev = held.rev
    RETURNING task.tid
)
INSERT INTO event (tid, n, generation, type, at, final)
SELECT tid, 3, 1, 'task.succeeded', $5, 1 FROM settled
"""


def cycle(url: str, tasks: int) -> dict[str, Any]:
    async def measure() -> dict[str, Any]:
        connection = await asyncpg.connect(url, server_settings={"search_path": SCHEMA})
        await open_schema(connection, SCHEMA)
        began = time.perf_counter()
        for _ in range(tasks // BATCH):
            ids = [str(uuid_utils.uuid7()) for _ in range(BATCH)]
            await connection.execute(INSERT, ids, PAYLOAD, _now())
        queued = time.perf_counter()
        await _drain(connection)
        over = time.perf_counter()
        ended = await connection.fetchval("SELECT count(*) FROM event WHERE final = 1")
        await connection.close()
        assert ended == tasks, ended
        return {
            "rate": tasks / (over - began),
            "submit_rate": tasks / (queued - began),
            "drain_rate": tasks / (over - queued),
        }

    return uvloop.run(measure())


async def _drain(connection: Any) -> None:
    while True:
        now = _now()
        rows = await connection.fetch(CLAIM, BATCH, WORKER, now, now + LEASE_MS, CLAIMED)
        if not rows:
            return
        tids, _, fences, revs, _ = zip(*rows, strict=True)
        await connection.execute(SETTLE, tids, fences, revs, now + RETENTION_MS, _now())


def _now() -> int:
    return time.time_ns() // 1_000_000
