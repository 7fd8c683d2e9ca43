"""Which workers are connected, and draining one."""

from __future__ import annotations

from onward.core.dispatch import Dispatcher
from onward.native.caller import SEES_ALL, Action, Caller, Scope, needs
from onward.wire.base import Page
from onward.wire.workers import WorkerView
from onward.workers.draining import Drains
from onward.workers.roster import Member, Roster

HERE = ("socket", "local")  # transports whose tasks go through the slots of one server


class Workers:
    def __init__(self, dispatcher: Dispatcher, roster: Roster, drains: Drains) -> None:
        self._slots = dispatcher.slots
        self._roster = roster
        self._drains = drains

    @needs(*SEES_ALL)
    async def list(self, caller: Caller) -> Page[WorkerView]:
        return Page(items=tuple(self._view(one) for one in self._roster.members()))

    @needs(Scope.OPERATE)
    async def drain(self, caller: Caller, worker_id: str) -> WorkerView:
        """It gets no new task, finishes what it has, and goes."""
        drained = await self._drains.set(worker_id, draining=True)
        await caller.audit(Action.WORKER_DRAIN, worker_id)
        return self._view(drained)

    @needs(Scope.OPERATE)
    async def undrain(self, caller: Caller, worker_id: str) -> WorkerView:
        undrained = await self._drains.set(worker_id, draining=False)
        await caller.audit(Action.WORKER_DRAIN, worker_id, undone=True)
        return self._view(undrained)

    def _view(self, member: Member) -> WorkerView:
        here = member.server == self._roster.server and member.transport in HERE
        return WorkerView(
            id=member.id,
            transport=member.transport,
            queues=member.queues,
            slots=member.slots,
            connected_at=member.since,
            stand_in=member.stand_in,
            draining=member.draining,
            busy=self._slots.busy_by_worker()[member.id] if here else None,
        )
