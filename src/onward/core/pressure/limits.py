"""The bounds of services, queue by queue, as they are declared now.

Where they are read is not known here. A bound by type also holds on queues that no service is named
after, and on those of other services where tasks of its types were handed in; the server's own
queues, and those of groups, have no types.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from onward.core.clock import Clock
from onward.core.contract import Ask, Move, TaskStore
from onward.core.limits import Bound, Instant
from onward.core.slots import Slots
from onward.core.task import Claimed, State

OWN = ("group:", "flow:", "onward:")  # queues without types
_OCCUPYING = frozenset({State.RUNNING, State.SCHEDULED})


class BoundedQueues:
    def __init__(self, store: TaskStore, clock: Clock, slots: Slots) -> None:
        self._store = store
        self._clock = clock
        self._slots = slots
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by queue that waits for a rate
        self._all: tuple[Bound, ...] = ()
        self._counting: tuple[Bound, ...] = ()  # of these, what runs; a rate counts starts
        self._natural: frozenset[str] = frozenset()  # queues that services are named after
        self._mixed: frozenset[str] = frozenset()  # of these, which have types of other services
        self._by_queue: dict[str, tuple[Bound, ...]] = {}
        self._elsewhere: tuple[Bound, ...] = ()  # of queues that are none of these

    def take(
        self, bounds: Sequence[Bound], natural: Collection[str], mixed: Collection[str] = ()
    ) -> None:
        """From now on these hold, in every claim that begins."""
        taken, natural, mixed = tuple(bounds), frozenset(natural), frozenset(mixed)
        if (taken, natural, mixed) == (self._all, self._natural, self._mixed):
            return
        queues = {queue for bound in (*self._all, *taken) for queue in bound.queues}
        self._all, self._natural, self._mixed = taken, natural, mixed
        self._counting = tuple(bound for bound in taken if bound.most is not None)
        self._elsewhere = tuple(bound for bound in taken if bound.types)
        self._by_queue = {
            queue: tuple(
                bound
                for bound in taken
                if queue in bound.queues or (queue in mixed and bound in self._elsewhere)
            )
            for queue in natural
        }
        self._slots.limit_by(self.of if taken else None)
        self._slots.notify(queues)  # perhaps more of them may run now
        self._slots.notify_all()

    def of(self, queue: str) -> tuple[Bound, ...]:
        """All that may hold for a task on this queue."""
        if queue in self._natural:
            return self._by_queue[queue]
        return self._elsewhere if self._is_custom(queue) else ()

    def _is_custom(self, queue: str) -> bool:
        """No service is named after it, and tasks of any type may be on it."""
        return queue not in self._natural and not queue.startswith(OWN)

    def freed(self, moves: Iterable[Move]) -> set[str]:
        """Queues in which a task may start, perhaps, once these moves are applied.

        What waits for a rate does not: an end brings its instant no nearer.
        """
        if not self._counting:
            return set()
        left = {
            (move.queue, move.service)
            for move in moves
            if move.expect in _OCCUPYING and move.to is not move.expect
        }
        if not left:
            return set()
        by_type = {*self._mixed, *filter(self._is_custom, self._slots.queues)}
        return {
            freed
            for bound in self._counting
            for queue, type_ in left
            if bound.covers(queue, type_)
            for freed in (*bound.queues, queue, *(by_type if bound.types else ()))
        }

    async def held_back(
        self, asks: Sequence[Ask], claimed: Sequence[Claimed], now: Instant
    ) -> None:
        """Slots stayed free: what only a rate holds back is claimed at the instant it allows.

        As of the claim: what may start since then would not be reported, and not looked for.
        """
        if not self._all or len(claimed) == sum(ask.limit for ask in asks):
            return
        wants = {
            (want.queue, want.priority, want.lane): want
            for ask in asks
            for want in ask.wants
            if any(bound.rate is not None for bound in want.bounds)
        }
        if not wants:
            return
        for queue, at in (await self._store.start_at([*wants.values()], now=now)).items():
            self._cancel(queue)
            self._timers[queue] = asyncio.get_running_loop().call_later(
                max(0, at - self._clock.now()) / 1000, self._slots.notify, (queue,)
            )

    def close(self) -> None:
        for queue in list(self._timers):
            self._cancel(queue)

    def _cancel(self, queue: str) -> None:
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer.cancel()
