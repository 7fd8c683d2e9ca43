"""The embedded default: one file, one server."""

from __future__ import annotations

from collections.abc import Sequence

from onward.core.clock import wall_ahead_ms
from onward.core.contract import Gauge
from onward.ledgers.local_bell import LocalBell
from onward.ledgers.sqlite.database import Database
from onward.ledgers.sqlite.documents import SqliteDocuments, SqliteEffects
from onward.ledgers.sqlite.sealed_texts import LEDGER, SqlSealedTexts, Statement
from onward.ledgers.sqlite.sessions import SqlSessions
from onward.ledgers.sqlite.store import SqliteStore


class SqliteBackend:
    shared = False
    redis: str | None = None
    warnings: Sequence[str] = ()

    def __init__(self, path: str, *, durable: bool = True) -> None:
        self.database = Database(path, durable=durable)
        self.tasks = SqliteStore(self.database)
        self.documents = SqliteDocuments(self.database)
        self.effects = SqliteEffects(self.database)
        self.sessions = SqlSessions(self.database.read_far)
        self.bell = LocalBell()
        self.sealed_texts = [SqlSealedTexts(self.database.read_far, self._rewrite, LEDGER)]

    async def _rewrite(self, statements: Sequence[Statement]) -> int:
        def work() -> int:
            return sum(len(self.database.run(*statement)) for statement in statements)

        return await self.database.write(work)

    @property
    def ahead_ms(self) -> int:
        return wall_ahead_ms()  # it has no clock of its own

    def gauges(self) -> Sequence[Gauge]:
        what = "Bytes in the write-ahead log of the ledger's file"
        return [("onward_ledger_log_bytes", what, self.database.log_bytes)]

    async def maintain(self) -> None:
        await self.database.checkpoint()

    async def close(self) -> None:
        await self.database.close()
