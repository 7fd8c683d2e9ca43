"""Documents and Effects in SQL, two small tables; and Sessions, which are counted from tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from onward.core.contract import COUNTED, Document, Effect, Page, SessionTally
from onward.core.task import STATES, Held, Instant, Json
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.store import Transactions
from onward.ledgers.sql.write_batch import Plan

Read = Callable[[Step], Awaitable[list[Row]]]

NEWEST = 1 << 62  # above any place


class SqlDocuments:
    def __init__(self, database: Transactions) -> None:
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
        fields = (kind, key, body, expires_at)

        def plan() -> Plan[Document | None]:
            yield Step("expire_documents", (now,))
            if expect is None:
                rows = yield Step("put_document", fields)
            elif expect == 0:
                rows = yield Step("create_document", fields)
            else:
                rows = yield Step("replace_document", (*fields, expect))
            return Document(key, body, rows[0][0]) if rows else None

        return await self._db.write(plan)

    async def get(self, kind: str, key: str, *, now: Instant) -> Document | None:
        rows = await self._db.read(Step("get_document", (kind, key, now)))
        return Document(*rows[0]) if rows else None

    async def list(self, kind: str, *, now: Instant) -> Sequence[Document]:
        rows = await self._db.read(Step("list_documents", (kind, now)))
        return [Document(*row) for row in rows]

    async def delete(self, kind: str, key: str, *, expect: int | None = None) -> bool:
        def plan() -> Plan[bool]:
            return bool((yield Step("delete_document", (kind, key, expect))))

        return await self._db.write(plan)


class SqlEffects:
    def __init__(self, database: Transactions) -> None:
        self._db = database

    async def begin(self, task: Held, name: str, *, now: Instant) -> Effect | None:
        def plan() -> Plan[Effect | None]:
            place = (*(yield from _owner(task)), name)
            if (yield Step("begin_effect", (*place, task.id, task.fence, now))):
                return None
            return Effect(*(yield Step("get_effect", place))[0])

        return await self._db.write(plan)

    async def finish(self, task: Held, name: str, value: Json, *, fence: int) -> bool:
        def plan() -> Plan[bool]:
            place = (*(yield from _owner(task)), name)
            yield Step("finish_effect", (value, *place, fence))
            found = yield Step("get_effect", place)
            return bool(found and found[0][2] is not None)

        return await self._db.write(plan)

    async def undo(self, task: Held, name: str) -> None:
        def plan() -> Plan[None]:
            place = (*(yield from _owner(task)), name)
            yield Step("undo_effect", (*place, task.id, task.fence))

        await self._db.write(plan)


def _owner(task: Held) -> Plan[tuple[str, str]]:
    """Scope and key. No submission has the scope "", so no key can pass for a task's id."""
    if task.key is None:
        return "", task.id
    found = yield Step("scope_of_key", (task.id, task.key))
    # A stream entry that repeats a key after a worker took it becomes a task without a hold on
    # that key. Its profile has the name of the scope.
    return (found[0][0] if found else task.profile), task.key


class SqlSessions:
    """Of the ledger, or of the archive behind another one."""

    def __init__(self, read: Read) -> None:
        self._read = read

    async def find(self, *, after: str | None, limit: int) -> Page[SessionTally]:
        place = NEWEST if after is None else int(after)
        rows = await self._read(Step("newest_sessions", (place, limit + 1)))
        found = [await self.get(session) for session, _ in rows[:limit]]
        more = str(rows[limit - 1][1]) if len(rows) > limit else None
        return Page([tally for tally in found if tally is not None], more)

    async def get(self, session: str) -> SessionTally | None:
        rows = await self._read(Step("tally_session", (session, COUNTED)))
        if not rows:
            return None
        return SessionTally(
            session=session,
            tasks=rows[0][0],
            states={STATES[state]: count for _, _, state, count, _ in rows if state in STATES},
            last_at=max(row[4] for row in rows),
            place=max(row[1] for row in rows),
        )
