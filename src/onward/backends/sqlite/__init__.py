"""The embedded default: one file, one server."""

from __future__ import annotations

from onward.backends.local_bell import LocalBell
from onward.backends.sqlite.database import Database
from onward.backends.sqlite.documents import SqliteDocuments, SqliteEffects
from onward.backends.sqlite.store import SqliteStore


class SqliteBackend:
    ahead_ms = 0  # its clock is ours

    def __init__(self, path: str, *, durable: bool = True) -> None:
        self.database = Database(path, durable=durable)
        self.tasks = SqliteStore(self.database)
        self.documents = SqliteDocuments(self.database)
        self.effects = SqliteEffects(self.database)
        self.bell = LocalBell()

    async def maintain(self) -> None:
        await self.database.checkpoint()

    async def close(self) -> None:
        await self.database.close()
