"""Documents and Effects on SQLite: two small tables."""

from __future__ import annotations

from collections.abc import Sequence

from onward.core.contract import Document, Effect
from onward.core.task import Held, Instant, Json
from onward.ledgers.sqlite.database import QUERIES, Database


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

    async def begin(self, task: Held, name: str, *, now: Instant) -> Effect | None:
        def work() -> Effect | None:
            place = (*self._owner(task), name)
            if self._db.run(QUERIES["begin_effect"], (*place, task.id, task.fence, now)):
                return None
            return Effect(*self._db.run(QUERIES["get_effect"], place)[0])

        return await self._db.write(work)

    async def finish(self, task: Held, name: str, value: Json, *, fence: int) -> bool:
        def work() -> bool:
            place = (*self._owner(task), name)
            self._db.run(QUERIES["finish_effect"], (value, *place, fence))
            found = self._db.run(QUERIES["get_effect"], place)
            return bool(found and found[0][2] is not None)

        return await self._db.write(work)

    async def undo(self, task: Held, name: str) -> None:
        def work() -> None:
            place = (*self._owner(task), name)
            self._db.run(QUERIES["undo_effect"], (*place, task.id, task.fence))

        await self._db.write(work)

    def _owner(self, task: Held) -> tuple[str, str]:
        """Scope and key. No submission has the scope "", so no key can pass for a task's id."""
        if task.key is None:
            return "", task.id
        found = self._db.run(QUERIES["scope_of_key"], (task.id, task.key))
        # A stream entry that repeats a key after a worker took it becomes a task without a hold on
        # that key. Its profile has the name of the scope.
        return (found[0][0] if found else task.profile), task.key
