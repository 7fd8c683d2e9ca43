"""What waits in each queue and which workers serve it; pause and resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from onward.core.dispatch import Dispatcher
from onward.core.errors import NextStep, NotFound, Step
from onward.core.task import Lane, State
from onward.native.caller import Caller, Scope, needs
from onward.wire.base import Page
from onward.wire.queues import BreakerView, Pause, PauseView, QueueView
from onward.workers.roster import Roster

T = TypeVar("T")


class Queues:
    def __init__(self, dispatcher: Dispatcher, roster: Roster) -> None:
        self._dispatcher = dispatcher
        self._pressure = dispatcher.pressure
        self._roster = roster

    @needs(Scope.READ)
    async def list(self, caller: Caller) -> Page[QueueView]:
        """By name: those with tasks, with workers, or paused."""
        return Page(items=tuple((await self._views()).values()))

    @needs(Scope.READ)
    async def read(self, caller: Caller, name: str) -> QueueView:
        return await self._find(name)

    @needs(Scope.OPERATE)
    async def pause(self, caller: Caller, name: str, body: Pause | None = None) -> QueueView:
        """Work is still accepted and what runs goes on; nothing more is handed out."""
        given = body or Pause()
        await self._pressure.pauses.pause(name, by=given.by, reason=given.reason)
        return await self._find(name)

    @needs(Scope.OPERATE)
    async def resume(self, caller: Caller, name: str) -> QueueView:
        before = await self._find(name)
        await self._pressure.pauses.resume(name)
        found = (await self._views()).get(name)
        return found or msgspec.structs.replace(before, paused=None)

    async def _find(self, name: str) -> QueueView:
        found = (await self._views()).get(name)
        if found is None:
            raise NotFound(f"no queue {name!r}", step=NextStep(Step.LIST_QUEUES))
        return found

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
            states={state.value: states[state] for state in State},
        )


def _as(kind: type[T], found: object) -> T | None:
    return None if found is None else msgspec.convert(found, kind, from_attributes=True)
