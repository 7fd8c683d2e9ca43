"""The tasks of one session. The session is part of every query: another's task is not found.

That it was looked for is counted and logged: to the caller it looks like one that never was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import structlog
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from onward.core.contract import Page, Query, TaskStore
from onward.core.errors import Invalid, NextStep, NotFound
from onward.core.phase import Phase, phase, states_of
from onward.core.task import State, Task, TaskId
from onward.native.caller import Caller
from onward.wire.sessions import SessionTasksQuery

log = structlog.get_logger("onward.sessions")

ALL = "all"
ROUNDS = 20  # reads of the ledger for one page


class ForeignLooks(Collector):
    """How often a task was asked for through a session that it does not belong to."""

    def __init__(self) -> None:
        self._count = 0

    def note(self, task: TaskId, session: str | None) -> None:
        self._count += 1
        log.warning("another session's task was asked for", task=task, by_session=session)

    def collect(self) -> Iterable[Metric]:
        text = "Tasks that were asked for through another session than theirs"
        return [CounterMetricFamily("onward_foreign_looks", text, value=self._count)]


class SessionTasks(NamedTuple):
    store: TaskStore
    words: Mapping[Phase, str]  # what the sessions' door calls the phases
    foreign: ForeignLooks

    async def get(self, caller: Caller, session: str | None, id: str, step: NextStep) -> Task:
        """The session's own, or one without a session for a caller without one."""
        found = (await self.store.get([id]))[0]
        if found is None or found.session != session or not caller.sees(found):
            if found is not None and found.session not in (None, session):
                self.foreign.note(id, session)
            raise NotFound("no such task", step=step)
        return found

    async def page(self, caller: Caller, session: str, query: SessionTasksQuery) -> Page[Task]:
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
            page = await self.store.find(caller.within(read))
            found += [task for task in page.items if word in (ALL, self.words[phase(task)])]
            cursor = page.next
            if cursor is None or len(found) >= query.limit:
                break
        return Page(found, cursor)
