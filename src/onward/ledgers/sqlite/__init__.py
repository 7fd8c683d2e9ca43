"""The embedded default: one file, one server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from onward.core.clock import wall_ahead_ms
from onward.core.contract import Enqueued, Gauge
from onward.ledgers.local_bell import LocalBell
from onward.ledgers.sql.documents import SqlDocuments, SqlEffects, SqlSessions
from onward.ledgers.sql.sealed_texts import LEDGER, SqlSealedTexts
from onward.ledgers.sql.store import SqlStore
from onward.ledgers.sqlite.batch import SqliteBatch
from onward.ledgers.sqlite.counters import Counters
from onward.ledgers.sqlite.database import SqliteDatabase


class SqliteBackend:
    shared = False
    redis: str | None = None
    enqueued: Enqueued | None = None
    warnings: Sequence[str] = ()

    def __init__(self, path: str, *, durable: bool = True) -> None:
        self.database = SqliteDatabase(path, durable=durable)
        self.counters = Counters(self.database)
        self.tasks = SqlStore(self.database, partial(SqliteBatch, self.counters))
        self.documents = SqlDocuments(self.database)
        self.effects = SqlEffects(self.database)
        self.sessions = SqlSessions(partial(self.database.read, far=True))
        self.bell = LocalBell()
        self.sealed_texts = [SqlSealedTexts(self.database, (*LEDGER, "long_text"))]

    @property
    def ahead_ms(self) -> int:
        return wall_ahead_ms()  # it has no clock of its own

    def gauges(self) -> Sequence[Gauge]:
        what = "Bytes in the write-ahead log of the ledger's file"
        return [("onward_ledger_log_bytes", what, self.database.log_bytes)]

    async def maintain(self) -> None:
        if self.counters.rates.rated_at:
            await self.tasks.forget_rates(self.counters.rates.rated_at)
            self.counters.rates.rated_at = 0
        await self.database.checkpoint()

    async def close(self) -> None:
        await self.database.close()
