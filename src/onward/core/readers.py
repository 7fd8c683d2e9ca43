"""Which readers the log has, how far each has come, and which of them retention waits for.

A finished task stays in the ledger until every reader has read its end. A reader that is silent
for days while servers run is retired: its cursor is put aside, and holds nothing back. Should it
come back, it goes on from there; what has left the ledger meanwhile it has missed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend, Document, Documents
from onward.core.task import Instant, Json, encode

log = structlog.get_logger("onward.readers")

CURSORS = "cursor"  # by reader: the place in the log up to which it has read
RETIRED = "retired_cursor"
SEEN = "reader"
RENEW_MS = 60_000  # a reader that looks is seen so often
GAP_MS = 5 * RENEW_MS  # silence counts for so long between two looks: while no server ran, for none
DAY_MS = 24 * 3_600_000
EXPIRY_MS = 7 * DAY_MS


class Activity(msgspec.Struct, frozen=True):
    seen_at: Instant
    checked_at: Instant
    silent_ms: int = 0  # while servers ran


class LogReader(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cursor: str
    behind_ms: int  # since the first event was written that it has not read; 0: it has read all
    seen_at: Instant | None
    silent_ms: int
    retired: bool  # nothing waits for it


_decode = msgspec.json.Decoder(Activity).decode


async def begin(documents: Documents, name: str, start: str, *, now: Instant) -> Json:
    """Where this reader goes on. Without a cursor: where it was retired, else at `start`; kept."""
    found = await documents.get(CURSORS, name, now=now)
    if found is not None:
        return found.body
    retired = await documents.get(RETIRED, name, now=now)
    if retired is None:
        body = encode(start)
    else:
        body = retired.body
        log.warning("a retired reader is back; it may have missed events", reader=name)
    await documents.put(CURSORS, name, body, now=now, expect=0)
    if retired is not None:
        await documents.delete(RETIRED, name)
    return body


async def record_activity(documents: Documents, name: str, *, now: Instant) -> None:
    """It has looked at the log just now."""
    await documents.put(SEEN, name, encode(Activity(now, now)), now=now)


class Readers:
    def __init__(self, backend: Backend, clock: Clock, expiry_ms: int = EXPIRY_MS) -> None:
        self._backend = backend
        self._documents = backend.documents
        self._clock = clock
        self._expiry_ms = expiry_ms

    async def list(self) -> Sequence[LogReader]:
        """By name, the retired ones last."""
        now = self._clock.now()
        rows = {doc.key: _decode(doc.body) for doc in await self._documents.list(SEEN, now=now)}
        found: list[LogReader] = []
        for kind in (CURSORS, RETIRED):
            for doc in await self._documents.list(kind, now=now):
                cursor = msgspec.json.decode(doc.body, type=str)
                unread = (await self._backend.tasks.events(after=cursor, limit=1)).items
                row = rows.get(doc.key)
                found.append(
                    LogReader(
                        name=doc.key,
                        cursor=cursor,
                        behind_ms=max(0, now - unread[0].at) if unread else 0,
                        seen_at=None if row is None else row.seen_at,
                        silent_ms=0 if row is None else row.silent_ms,
                        retired=kind == RETIRED,
                    )
                )
        return found

    async def forget(self, name: str) -> bool:
        """Nothing waits for it any more, and if it comes back it begins anew. False: unknown."""
        gone = [await self._documents.delete(kind, name) for kind in (CURSORS, RETIRED)]
        await self._documents.delete(SEEN, name)
        return any(gone)

    async def retire_silent(self) -> None:
        """Each minute, on every server: the first one counts."""
        now = self._clock.now()
        rows = {doc.key: doc for doc in await self._documents.list(SEEN, now=now)}
        for cursor in await self._documents.list(CURSORS, now=now):
            await self._check(cursor, rows.get(cursor.key), now)

    async def _check(self, cursor: Document, row: Document | None, now: Instant) -> None:
        if row is None:  # of a version that kept no such rows: its silence begins now
            body = encode(Activity(now, now))
            await self._documents.put(SEEN, cursor.key, body, now=now, expect=0)
            return
        before = _decode(row.body)
        passed_ms = now - before.checked_at
        if passed_ms < 2 * RENEW_MS:
            return  # it was seen, or looked for, a moment ago
        silent_ms = before.silent_ms + min(passed_ms, GAP_MS)
        checked = Activity(before.seen_at, now, silent_ms)
        # Refused if the reader, or another server, was here since: then it is not ours to count.
        counted = await self._documents.put(
            SEEN, cursor.key, encode(checked), now=now, expect=row.version
        )
        if counted is not None and silent_ms >= self._expiry_ms:
            await self._retire(cursor, silent_ms, now)

    async def _retire(self, cursor: Document, silent_ms: int, now: Instant) -> None:
        await self._documents.put(RETIRED, cursor.key, cursor.body, now=now)
        # Not if it has read on since we looked: then it is there after all.
        gone = await self._documents.delete(CURSORS, cursor.key, expect=cursor.version)
        if not gone:
            await self._documents.delete(RETIRED, cursor.key)
            return
        log.error(
            "a reader of the log is retired: finished tasks no longer wait for it",
            reader=cursor.key,
            silent_days=silent_ms // DAY_MS,
            hint="if it is only away, start it: it goes on where it was; if it is gone, forget it",
        )
