"""What waits in each queue and which workers serve it; pause and resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from onward.core.dispatch import Dispatcher
from onward.core.errors import NextStep, NotFound, Step
from onward.core.task import Lane, State
from onward.native.caller import SEES_ALL, Action, Caller, Scope, needs
from onward.native.limits import LimitUses
from onward.wire.base import Name, Page
from onward.wire.limits import LimitUse
from onward.wire.queues import BreakerView, Pause, PauseView, QueueView
from onward.workers.roster import Roster

T = TypeVar("T")

LOOKED_UP = 500  # queues of a list whose oldest task is read: those with most that wait


class Queues:
    def __init__(self, dispatcher: Dispatcher, roster: Roster, limits: LimitUses) -> None:
        self._limits = limits
        self._dispatcher = dispatcher
        self._pressure = dispatcher.pressure
        self._roster = roster

    @needs(*SEES_ALL)
    async def list(self, caller: Caller) -> Page[QueueView]:
        """By name: those with tasks, with workers, or paused."""
        views = await self._views()
        longest = sorted(views, key=lambda name: views[name].queued, reverse=True)[:LOOKED_UP]
        waited = await self._waited_ms(longest)
        uses = await self._limits.by_queue()
        return Page(items=tuple(_waiting(view, waited, uses) for view in views.values()))

    @needs(*SEES_ALL)
    async def read(self, caller: Caller, name: str) -> QueueView:
        return await self._find(name)

    @needs(Scope.OPERATE)
    async def pause(self, caller: Caller, name: Name, body: Pause | None = None) -> QueueView:
        """Work is still accepted and what runs goes on; nothing more is handed out."""
        given = body or Pause()
        by = given.by if caller.key is None else caller.name
        await self._pressure.pauses.pause(name, by=by, reason=given.reason)
        await caller.audit(Action.QUEUE_PAUSE, name, reason=given.reason)
        return await self._find(name)

    @needs(Scope.OPERATE)
    async def resume(self, caller: Caller, name: str) -> QueueView:
        before = await self._find(name)
        await self._pressure.pauses.resume(name)
        await caller.audit(Action.QUEUE_RESUME, name)
        found = (await self._views()).get(name)
        if found is None:
            return msgspec.structs.replace(before, paused=None)
        return _waiting(found, await self._waited_ms([name]), await self._limits.by_queue(name))

    async def _find(self, name: str) -> QueueView:
        found = (await self._views()).get(name)
        if found is None:
            raise NotFound(f"no queue {name!r}", step=NextStep(Step.LIST_QUEUES))
        return _waiting(found, await self._waited_ms([name]), await self._limits.by_queue(name))

    async def _waited_ms(self, queues: Sequence[str]) -> Mapping[str, int]:
        """How long the task has waited that is queued longest, 0 where none is."""
        since = await self._dispatcher.backend.tasks.oldest(queues)
        now = self._dispatcher.clock.now()
        return {queue: max(0, now - since.get(queue, now)) for queue in queues}

    async def _views(self) -> Mapping[str, QueueView]:
        states: dict[str, Counter[State]] = {}
        retrying: Counter[str] = Counter()
        for (queue, lane, state), count in (await self._dispatcher.backend.tasks.counts()).items():
            states.setdefault(queue, Counter())[state] += count
            if lane is Lane.RETRY and state is State.QUEUED:
                retrying[queue] += count
        for member in self._roster.members():
            for queue in member.queues:
                states.setdefault(queue, Counter())
        for queue in self._pressure.pauses.paused():
            states.setdefault(queue, Counter())
        return {name: self._view(name, states[name], retrying[name]) for name in sorted(states)}

    def _view(self, queue: str, states: Counter[State], retrying: int) -> QueueView:
        taking = [member for member in self._roster.members() if not member.draining]
        serving = [member for member in taking if queue in member.queues]
        return QueueView(
            name=queue,
            paused=_as(PauseView, self._pressure.pauses.paused().get(queue)),
            breaker=_as(BreakerView, self._pressure.breakers.readings().get(queue)),
            workers=len(serving),
            slots=sum(member.slots for member in serving),
            queued=states[State.QUEUED],
            retrying=retrying,
            oldest_ms=None,
            states={state.value: states[state] for state in State},
            limits=(),
        )


def _waiting(
    view: QueueView, waited_ms: Mapping[str, int], limits: Mapping[str, Sequence[LimitUse]]
) -> QueueView:
    return msgspec.structs.replace(
        view, oldest_ms=waited_ms.get(view.name), limits=tuple(limits.get(view.name, ()))
    )


def _as(kind: type[T], found: object) -> T | None:
    return None if found is None else msgspec.convert(found, kind, from_attributes=True)
