"""Documents and Effects on SQLite: two small tables."""

from __future__ import annotations

from collections.abc import Sequence

from onward.backends.sqlite.database import QUERIES, Database
from onward.core.contract import Document, Effect
from onward.core.task import Instant, Json


class SqliteDocuments:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def put(
        self,
        kind: str,
        key: str,
        body: Json,
        *,
        now: Instant,
        expect: int | None = None,
        expires_at: Instant | None = None,
    ) -> Document | None:
        def work() -> Document | None:
            self._db.run(QUERIES["expire_documents"], (now,))
            if expect is not None:
                found = self._db.run(QUERIES["get_document"], (kind, key, now))
                if (found[0][2] if found else 0) != expect:
                    return None
            fields = {"kind": kind, "key": key, "body": body, "expires_at": expires_at}
            ((version,),) = self._db.run(QUERIES["put_document"], fields)
            return Document(key, body, version)

        return await self._db.write(work)

    async def get(self, kind: str, key: str, *, now: Instant) -> Document | None:
        rows = self._db.read(QUERIES["get_document"], (kind, key, now))
        return Document(*rows[0]) if rows else None

    async def list(self, kind: str, *, now: Instant) -> Sequence[Document]:
        return [Document(*row) for row in self._db.read(QUERIES["list_documents"], (kind, now))]

    async def delete(self, kind: str, key: str, *, expect: int | None = None) -> bool:
        bindings = (kind, key, expect)
        gone = await self._db.write(lambda: self._db.run(QUERIES["delete_document"], bindings))
        return bool(gone)


class SqliteEffects:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def begin(self, key: str, name: str, *, fence: int, now: Instant) -> Effect | None:
        def work() -> Effect | None:
            if self._db.run(QUERIES["begin_effect"], (key, name, fence, now)):
                return None
            return Effect(*self._db.run(QUERIES["get_effect"], (key, name))[0])

        return await self._db.write(work)

    async def finish(self, key: str, name: str, value: Json) -> None:
        await self._db.write(lambda: self._db.run(QUERIES["finish_effect"], (value, key, name)))

    async def undo(self, key: str, name: str) -> None:
        await self._db.write(lambda: self._db.run(QUERIES["undo_effect"], (key, name)))
