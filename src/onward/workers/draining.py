"""Draining a worker: it gets no new task, finishes what it has, and ends.

How depends on its transport. One that reads its own messages cannot be drained from here: the
refusal says how it is stopped where it runs.
"""

from __future__ import annotations

from onward.core.errors import Conflict, NextStep, NotFound, Step
from onward.core.task import WorkerId
from onward.workers.http.registry import TRANSPORT as HTTP
from onward.workers.http.registry import Registry
from onward.workers.roster import Member, Roster


class Drains:
    def __init__(self, roster: Roster, registry: Registry) -> None:
        self._roster = roster
        self._registry = registry

    async def set(self, id: WorkerId, *, draining: bool) -> Member:
        member = await self._find(id)
        if member.transport == "celery":
            raise Conflict(
                "a Celery worker reads its messages from the broker, not from here",
                hint="send its process SIGTERM: Celery finishes what runs, and ends",
            )
        if member.transport != HTTP:
            return await self._roster.drain(member, draining=draining)
        await self._registry.drain(id, draining=draining)
        return self._known(id) or member

    async def _find(self, id: WorkerId) -> Member:
        member = self._known(id)
        if member is None:
            await self._roster.refresh()
            member = self._known(id)
        if member is None:
            raise NotFound(f"no worker {id!r} is connected", step=NextStep(Step.LIST_WORKERS))
        return member

    def _known(self, id: WorkerId) -> Member | None:
        return next((one for one in self._roster.members() if one.id == id), None)
