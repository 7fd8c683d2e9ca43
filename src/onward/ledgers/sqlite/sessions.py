"""Sessions in SQL: of the ledger, and of the archive behind another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from onward.core.contract import COUNTED, Page, SessionTally
from onward.core.task import STATES
from onward.ledgers.sqlite.database import Row, named

Read = Callable[[str, Any], Awaitable[list[Row]]]

NEWEST = 1 << 62  # above any place
_SQL = named((files("onward.ledgers.sqlite") / "sessions.sql").read_text())


class SqlSessions:
    def __init__(self, read: Read, *, table: str = "task") -> None:
        self._read = read
        self._newest = _SQL["newest"].replace("{table}", table)
        self._tally = _SQL["tally"].replace("{table}", table)

    async def find(self, *, after: str | None, limit: int) -> Page[SessionTally]:
        bindings = {"after": NEWEST if after is None else int(after), "limit": limit + 1}
        rows = await self._read(self._newest, bindings)
        found = [await self.get(session) for session, _ in rows[:limit]]
        more = str(rows[limit - 1][1]) if len(rows) > limit else None
        return Page([tally for tally in found if tally is not None], more)

    async def get(self, session: str) -> SessionTally | None:
        rows = await self._read(self._tally, {"session": session, "counted": COUNTED})
        if not rows:
            return None
        return SessionTally(
            session=session,
            tasks=rows[0][0],
            states={STATES[state]: count for _, _, state, count, _ in rows if state in STATES},
            last_at=max(row[4] for row in rows),
            place=max(row[1] for row in rows),
        )
