"""The limit: the same rows in the same tables, with nothing in between.

One thread, batches of a hundred, three transactions a batch: insert with an event, claim with an
event, settle with an event. No handler, no waiting caller, no counts, no leases to look after.
"""

from __future__ import annotations

import time
from itertools import repeat
from pathlib import Path
from typing import Any

import apsw
import uuid_utils

from bench.contenders.payload import PAYLOAD
from onward.ledgers.sqlite.dialect import INDEXES
from onward.ledgers.sqlite.dialect import SCHEMA as TABLES

SCHEMA = TABLES + INDEXES
BATCH = 100

COLUMNS = (
    "tid, id, type, queue, profile, payload, created_at, state, lane, priority, fence, rev,"
    " generation, events, attempt, failures, retries, lost, queued_at, overdue, place"
)
INSERT = f"INSERT INTO task ({COLUMNS}) VALUES ({','.join('?' * 21)})"  # noqa: S608
EVENT = (
    "INSERT INTO event (seq, tid, n, generation, type, at, data, final) VALUES (?,?,?,1,?,?,?,?)"
)
CLAIM = """
UPDATE task SET state = 'running', fence = fence + 1, rev = rev + 1, events = events + 1,
    attempt = attempt + 1, worker = ?, started_at = ?, lease_until = ?, due_at = ?
WHERE tid IN (
    SELECT tid FROM task INDEXED BY task_line
    WHERE state = 'queued' AND queue = 'noop' AND priority = 1 AND lane = 'primary'
        AND partition = ''
    ORDER BY place LIMIT ?
)
RETURNING tid, id, fence, rev, payload
"""
SETTLE = """
UPDATE task SET state = 'succeeded', rev = rev + 1, events = events + 1, due_at = ?, result = ?,
    error = NULL, lost = 0, finished_at = ?
WHERE id = ? AND state = 'running' AND fence = ? AND rev = ?
"""
WORKER = "builtin-0123456789ab"
CLAIMED = f'{{"worker":"{WORKER}","attempt":1}}'
LEASE_MS, RETENTION_MS = 30_000, 30 * 24 * 3_600_000


def cycle(path: str, synchronous: str, seconds: float) -> dict[str, Any]:
    connection = apsw.Connection(path, statementcachesize=256)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA cache_size = -65536")
    connection.execute("PRAGMA temp_store = memory")
    connection.execute(SCHEMA)
    raw = _Raw(connection)
    warm = time.perf_counter() + seconds / 5
    while time.perf_counter() < warm:
        raw.batch()
    before, began, cpu = raw.tid, time.perf_counter(), time.process_time()
    while time.perf_counter() < began + seconds:
        raw.batch()
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    done = raw.tid - before
    (ended,) = connection.execute("SELECT count(*) FROM event WHERE final IS NOT NULL").fetchone()
    assert ended == raw.tid, (ended, raw.tid)
    connection.close()
    return {"rate": done / took, "cpu_us": cpu / done * 1e6, "tasks": done}


class _Raw:
    def __init__(self, connection: apsw.Connection) -> None:
        self._db = connection
        self.tid = 0
        self._event = 0

    def batch(self) -> None:
        self._insert()
        self._settle(self._claim())

    def _insert(self) -> None:
        now = time.time_ns() // 1_000_000
        tids = range(self.tid + 1, self.tid + BATCH + 1)
        self.tid += BATCH
        rows = [
            (
                *(tid, str(uuid_utils.uuid7()), "noop", "noop", "console", PAYLOAD, now),
                *("queued", "primary", 1, 0, 0, 1, 1, 0, 0, 0, 0, now, 0, tid),
            )
            for tid in tids
        ]
        with self._db:
            self._db.executemany(INSERT, rows)
            self._db.executemany(EVENT, self._events(tids, 1, "task.created", now))

    def _claim(self) -> list[tuple[Any, ...]]:
        now = time.time_ns() // 1_000_000
        until = now + LEASE_MS
        with self._db:
            claimed = self._db.execute(CLAIM, (WORKER, now, until, until, BATCH)).fetchall()
            tids = [row[0] for row in claimed]
            self._db.executemany(EVENT, self._events(tids, 2, "task.claimed", now, CLAIMED))
        return claimed

    def _settle(self, claimed: list[tuple[Any, ...]]) -> None:
        now = time.time_ns() // 1_000_000
        due_at = now + RETENTION_MS
        moves = [(due_at, "null", now, id_, fence, rev) for _, id_, fence, rev, _ in claimed]
        tids = [row[0] for row in claimed]
        with self._db:
            self._db.executemany(SETTLE, moves)
            self._db.executemany(EVENT, self._events(tids, 3, "task.succeeded", now, None, 1))

    def _events(
        self, tids: Any, n: int, type_: str, now: int, data: str | None = None, final: Any = None
    ) -> Any:
        first = self._event + 1
        self._event += len(tids)
        return zip(
            *(range(first, self._event + 1), tids, repeat(n), repeat(type_), repeat(now)),
            *(repeat(data), repeat(final)),
            strict=False,
        )


def ended(path: str) -> int:
    """Final events in a ledger's file: what really happened, whatever a contender says."""
    connection = apsw.Connection(str(Path(path)), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        (count,) = connection.execute(
            "SELECT count(*) FROM event WHERE final IS NOT NULL"
        ).fetchone()
    finally:
        connection.close()
    return int(count)
