"""Sessions on Redis: a sorted set of them all, and one of each one's tasks."""

from __future__ import annotations

from typing import Any

from onward.core.contract import COUNTED, Page, SessionTally
from onward.core.task import State
from onward.ledgers.redis.client import Functions


class RedisSessions:
    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    async def find(self, *, after: str | None, limit: int) -> Page[SessionTally]:
        rows = await self._functions.call("sessions", 0, after, limit + 1, COUNTED)
        found = [_tally(row) for row in rows]
        more = str(found[limit - 1].place) if len(found) > limit else None
        return Page(found[:limit], more)

    async def get(self, session: str) -> SessionTally | None:
        row = await self._functions.call("session", 0, session, COUNTED)
        return _tally(row) if row else None


def _tally(row: list[Any]) -> SessionTally:
    session, tasks, states, last_at, place = row
    return SessionTally(
        session=session,
        tasks=tasks,
        states={State(state): count for state, count in states.items()},
        last_at=int(last_at),
        place=int(place),
    )
