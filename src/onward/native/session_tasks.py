"""The tasks of one session. The session is part of every query: another's task is not found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from onward.core.contract import Page, Query, TaskStore
from onward.core.errors import Invalid, NextStep, NotFound
from onward.core.phase import Phase, phase, states_of
from onward.core.task import State, Task
from onward.wire.sessions import SessionTasksQuery

ALL = "all"
ROUNDS = 20  # reads of the ledger for one page


class SessionTasks(NamedTuple):
    store: TaskStore
    words: Mapping[Phase, str]  # what the sessions' door calls the phases

    async def get(self, session: str | None, id: str, step: NextStep) -> Task:
        """The session's own, or one without a session for a caller without one."""
        found = (await self.store.get([id]))[0]
        if found is None or found.session != session:
            raise NotFound("no such task", step=step)
        return found

    async def page(self, session: str, query: SessionTasksQuery) -> Page[Task]:
        word, states = query.status.lower(), frozenset(map(State, query.state)) or frozenset(State)
        if word != ALL:
            if word not in self.words.values():
                known = ", ".join([ALL, *dict.fromkeys(self.words.values())])
                raise Invalid(f"status is one of {known}", pointer="status")
            states &= states_of(word, self.words)
        if not states:
            return Page([], None)
        found: list[Task] = []
        cursor = query.cursor
        for _ in range(ROUNDS):
            read = Query(
                session=session,
                states=states if len(states) < len(State) else frozenset(),
                offered=State.QUEUED in query.state if query.state else None,
                after=cursor,
                limit=query.limit - len(found),
            )
            page = await self.store.find(read)
            found += [task for task in page.items if word in (ALL, self.words[phase(task)])]
            cursor = page.next
            if cursor is None or len(found) >= query.limit:
                break
        return Page(found, cursor)
