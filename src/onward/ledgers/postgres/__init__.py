"""Many servers on one Postgres, 15 or newer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from onward.core.clock import measured, wall_ahead_ms
from onward.core.contract import Enqueued, Gauge
from onward.ledgers.postgres.bell import PostgresBell
from onward.ledgers.postgres.database import PostgresDatabase
from onward.ledgers.postgres.store import PostgresEnqueued, PostgresStore
from onward.ledgers.sql.dialect import Step
from onward.ledgers.sql.documents import SqlDocuments, SqlEffects, SqlSessions
from onward.ledgers.sql.sealed_texts import LEDGER, SqlSealedTexts

SCHEMA = "onward"
MOST_CHANGES = 256  # of counts, before they are added up


class PostgresBackend:
    shared = True
    redis: str | None = None

    def __init__(self, url: str) -> None:
        self.database = PostgresDatabase(url, SCHEMA)
        self.bell = PostgresBell(self.database)
        self.tasks = PostgresStore(self.database, self.bell)
        self.documents = SqlDocuments(self.database)
        self.effects = SqlEffects(self.database)
        self.sessions = SqlSessions(partial(self.database.read, far=True))
        self.enqueued: Enqueued | None = PostgresEnqueued(self.database)
        self.sealed_texts = [SqlSealedTexts(self.database, LEDGER)]
        self.ahead_ms = wall_ahead_ms()  # until it is measured
        self.warnings: Sequence[str] = ()

    def gauges(self) -> Sequence[Gauge]:
        return ()

    async def maintain(self) -> None:
        await self.database.prepare()
        self.ahead_ms = await measured(self._time_ms, self.ahead_ms)
        await self.database.compact(MOST_CHANGES)
        await self.tasks.tidy()
        await self.bell.check()

    async def _time_ms(self) -> float:
        ((seconds,),) = await self.database.read(Step("time"))
        return float(seconds) * 1000

    async def close(self) -> None:
        await self.bell.close()
        await self.database.close()
