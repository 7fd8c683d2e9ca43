"""The free slots of this process, and the tasks in them. Knows who could take work; runs nothing.

A queue is *pending* while it may hold work that this process has not looked for: it is claimed from
once a slot is free. A queue that yielded less than was asked for is not pending until a bell rings
for it, so an idle process sends the ledger nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from onward.core import lanes
from onward.core.contract import Ask, LeaseRenewal, Want
from onward.core.limits import Bound
from onward.core.task import Claimed, Instant, TaskId, WorkerId

# What one claim asks for: half of many slots. One half is claimed while the other is settled.
USUAL_CLAIM, LARGEST_CLAIM = 128, 256

NO_BOUNDS: Mapping[str, int] = {}


class WorkerSlots:
    """One worker's standing offer: these queues, so many slots."""

    def __init__(
        self,
        worker: WorkerId,
        queues: Iterable[str],
        *,
        lease_ms: int | None,  # None: what it takes is only offered, and has no lease yet
        deliver: Callable[[Claimed], None],
        stop: Callable[[Claimed, bool], None],
        most: Mapping[str, int] = NO_BOUNDS,
    ) -> None:
        """`most`: of its slots, how many a queue may take, where that is not all of them."""
        self.most = most
        self.taken: Counter[str] = Counter()  # by such a queue: slots with a task, or in an ask
        self.worker = worker
        self.queues = tuple(dict.fromkeys(queues))
        self.lease_ms = lease_ms
        self.deliver = deliver
        self.stop = stop  # (task, revoked): please stop; revoked means that it is no longer ours
        self.free = 0
        self.gone = False

    def room(self, queue: str) -> int:
        """How many of its free slots this queue may take."""
        most = self.most.get(queue)
        return self.free if most is None else min(self.free, most - self.taken[queue])


HeldTask: TypeAlias = tuple[WorkerSlots, Claimed]


class _Borrowed(msgspec.Struct):
    """Slots that are in an ask which is under way."""

    slots: WorkerSlots
    looking: bool  # for work that may be waiting; False: for work that is coming in
    bounded: str | None  # the bounded queue that they count for, here or of this worker


class Slots:
    def __init__(self, *, wake: Callable[[], None]) -> None:
        self._wake = wake  # there is a free slot and a pending queue: go and claim
        self._by_worker: dict[WorkerId, WorkerSlots] = {}
        self._idle: dict[str, dict[WorkerSlots, None]] = {}  # by queue; least recently used first
        self._pending: set[str] = set()
        self._asks: dict[int, _Borrowed] = {}  # by the identity of an ask that is under way
        self._held: dict[tuple[TaskId, int], HeldTask] = {}
        self._fences: dict[TaskId, int] = {}  # of what is held, claimed last
        self._turn = 0
        self._bounds: dict[str, int] = {}  # by queue: how many may be held at a time
        self._held_count: Counter[str] = Counter()  # by queue: tasks that are held
        self._out: Counter[str] = Counter()  # by bounded queue: slots that are in an ask
        self._share: Callable[[Sequence[str]], float] = _usual_share
        self._limits: Callable[[str], tuple[Bound, ...]] | None = None  # by queue

    def add(self, slots: WorkerSlots, count: int) -> None:
        self._by_worker[slots.worker] = slots
        self._pending.update(slots.queues)
        self.free(slots, count)

    def rearrange(self, slots: WorkerSlots, queues: Iterable[str]) -> None:
        """The worker serves other queues from now on."""
        self._unlist(slots)
        slots.queues = tuple(dict.fromkeys(queues))
        self._pending.update(slots.queues)
        self._list(slots)

    def remove(self, slots: WorkerSlots) -> None:
        slots.gone = True
        self._unlist(slots)
        if self._by_worker.get(slots.worker) is slots:
            del self._by_worker[slots.worker]

    def restore(self, slots: WorkerSlots) -> None:
        """The worker had left, and takes work again, with the slots that are free by now."""
        if slots.gone:
            slots.gone = False
            self.add(slots, 0)

    def free(self, slots: WorkerSlots, count: int = 1) -> None:
        slots.free += count
        self._list(slots)

    def bound(self, queue: str, most: int | None) -> None:
        """From now on at most so many tasks of this queue may be held here at a time."""
        before = self._bounds.get(queue)
        if most is None:
            self._bounds.pop(queue, None)
        else:
            self._bounds[queue] = most
        if before is not None and (most is None or most > before):
            self.notify([queue])

    def share_by(self, share: Callable[[Sequence[str]], float]) -> None:
        """How much of its slots a worker of these queues gives to retries."""
        self._share = share

    def limit_by(self, limits: Callable[[str], tuple[Bound, ...]] | None) -> None:
        """The bounds of a queue, for every claim from it; None: no queue has any."""
        self._limits = limits

    @property
    def queues(self) -> Collection[str]:
        """All that workers here serve, or have served."""
        return self._idle.keys()

    def served(self, queue: str) -> bool:
        return any(queue in slots.queues for slots in self._by_worker.values())

    def idle(self, queue: str) -> bool:
        """Whether a slot for this queue is free, and may be used."""
        return bool(self._idle.get(queue)) and self._room(queue, 1) > 0

    def notify(self, queues: Iterable[str]) -> None:
        """There may be work in these queues."""
        for queue in queues:
            self._pending.add(queue)
            if self._idle.get(queue):
                self._wake()

    def notify_all(self) -> None:
        self.notify([queue for queue, idle in self._idle.items() if idle])

    def borrow(self, needs: Mapping[str, int]) -> list[Ask]:
        """Free slots for work that is just coming in."""
        asks: list[Ask] = []
        for queue, count in needs.items():
            if self._limits is not None and self._limits(queue):
                continue  # no new task of it goes straight into a slot: it is claimed in its turn
            need = self._room(queue, count)
            idle = self._idle.get(queue)
            while need > 0 and idle:
                slots = next(iter(idle))
                take = min(need, slots.room(queue))
                need -= take
                asks.append(self._ask(slots, take, (queue,), looking=False))
        return asks

    def ask_pending(self) -> list[Ask]:
        """Free slots for work that may be waiting; empty when there is nothing to ask for."""
        asks: list[Ask] = []
        asked: set[str] = set()
        left = min(max(USUAL_CLAIM, len(self._held)), LARGEST_CLAIM)
        pending = [queue for queue in self._pending if self._idle.get(queue)]
        # What is bounded goes first: it leaves slots for the others, and they would leave it none.
        for queue in sorted(pending, key=self._unbounded):
            idle = self._idle[queue]
            while idle and (most := self._room(queue, left)) > 0:
                slots = next(iter(idle))
                take = min(slots.room(queue), most)
                left -= take
                # A bounded queue has an ask of its own: what it yields counts against its bound.
                alone = queue in self._bounds or queue in slots.most
                wanted = (queue,) if alone else self._wanted(slots)
                asked.update(wanted)
                asks.append(self._ask(slots, take, wanted, looking=True))
        self._pending -= asked
        return asks

    def give_back(self, asks: Sequence[Ask], claimed: Sequence[Claimed]) -> list[Claimed]:
        """Deliver what was found, free the rest. Returns the tasks whose worker has left since.

        A queue that yielded all that was asked for may hold more; of slots borrowed for new work
        the receipts show what stayed queued.
        """
        left = Counter(task.worker for task in claimed)
        by_worker: dict[WorkerId, WorkerSlots] = {}
        for ask in asks:
            # Not looked up by name: a second connection may have taken the name over meanwhile, and
            # it has its own slots.
            out = self._back(ask)
            slots = by_worker[ask.worker] = out.slots
            got = min(left[ask.worker], ask.limit)
            left[ask.worker] -= got
            if got == ask.limit and out.looking:
                self._pending.update(want.queue for want in ask.wants)
            if got < ask.limit:
                self.free(slots, ask.limit - got)
        homeless: list[Claimed] = []
        for task in claimed:
            slots = by_worker[task.worker]
            if not self._deliver(slots, task):
                self.free(slots)
                homeless.append(task)
        self._wake_if_pending()
        return homeless

    def _back(self, ask: Ask) -> _Borrowed:
        out = self._asks.pop(id(ask))
        if out.bounded is not None:
            self._out[out.bounded] -= ask.limit
            out.slots.taken[out.bounded] -= ask.limit
        return out

    def _deliver(self, slots: WorkerSlots, task: Claimed) -> bool:
        # Asked for before its queue was bounded: a breaker that has opened meanwhile holds.
        if slots.gone or self._room(task.queue, 1) < 1:
            return False
        self.keep(slots, task)
        slots.deliver(task)
        return True

    def keep(self, slots: WorkerSlots, task: Claimed) -> None:
        """Held already: from before these slots were added, or by another way than a claim."""
        if (task.id, task.fence) not in self._held:
            self._held_count[task.queue] += 1
            if task.queue in slots.most:
                slots.taken[task.queue] += 1
                self._unlist(slots)
                self._list(slots)
        self._held[task.id, task.fence] = (slots, task)
        self._fences[task.id] = task.fence

    def put_down(self, task: TaskId, fence: int) -> None:
        entry = self._held.pop((task, fence), None)
        if entry is not None:
            slots, held = entry
            self._held_count[held.queue] -= 1
            if held.queue in slots.most:
                slots.taken[held.queue] -= 1
                self._list(slots)
            if self._fences[task] == fence:
                del self._fences[task]

    def stop(self, task: TaskId, fence: int, *, revoked: bool) -> None:
        """Ask the worker that holds this task here to stop."""
        entry = self._held.get((task, fence))
        if entry is not None:
            slots, claimed = entry
            if revoked:
                self.put_down(task, fence)
            slots.stop(claimed, revoked)

    def held(self) -> Sequence[HeldTask]:
        return list(self._held.values())

    def held_of(self, queue: str) -> frozenset[tuple[TaskId, int]]:
        """What is held of this queue: tasks and their fences."""
        return frozenset(key for key, (_, task) in self._held.items() if task.queue == queue)

    def of(self, tasks: Iterable[TaskId]) -> Sequence[HeldTask]:
        """What of these tasks is held here."""
        return [self._held[id, self._fences[id]] for id in tasks if id in self._fences]

    def busy(self) -> int:
        return len(self._held)

    def busy_by_worker(self) -> Counter[WorkerId]:
        return Counter(slots.worker for slots, _ in self._held.values())

    def _ask(self, slots: WorkerSlots, take: int, queues: tuple[str, ...], *, looking: bool) -> Ask:
        alone = queues and (queues[0] in self._bounds or queues[0] in slots.most)
        bounded = queues[0] if alone else None
        if bounded is not None:
            self._out[bounded] += take
            slots.taken[bounded] += take
        slots.free -= take
        self._unlist(slots)
        self._list(slots)
        self._turn = (self._turn + 1) % lanes.CYCLE
        wants = lanes.wants(queues, take, self._turn, self._share(queues))
        if self._limits is not None:
            wants = _bounded(wants, {queue: self._limits(queue) for queue in queues})
        ask = Ask(slots.worker, take, wants, slots.lease_ms)
        self._asks[id(ask)] = _Borrowed(slots, looking, bounded)
        return ask

    def _wanted(self, slots: WorkerSlots) -> tuple[str, ...]:
        return tuple(
            queue
            for queue in slots.queues
            if queue in self._pending and queue not in self._bounds and queue not in slots.most
        )

    def _unbounded(self, queue: str) -> bool:
        return queue not in self._bounds and queue not in next(iter(self._idle[queue])).most

    def _room(self, queue: str, most: int) -> int:
        """How many more of this queue may be taken now, of so many."""
        bound = self._bounds.get(queue)
        return (
            most if bound is None else min(most, bound - self._held_count[queue] - self._out[queue])
        )

    def _list(self, slots: WorkerSlots) -> None:
        if slots.free > 0 and not slots.gone:
            for queue in slots.queues:
                if slots.room(queue) > 0:
                    self._idle.setdefault(queue, {})[slots] = None
            self._wake_if_pending(slots.queues)

    def _unlist(self, slots: WorkerSlots) -> None:
        for queue in slots.queues:
            idle = self._idle.get(queue)
            if idle is not None:
                idle.pop(slots, None)

    def _wake_if_pending(self, queues: Iterable[str] | None = None) -> None:
        for queue in self._pending if queues is None else queues:
            if queue in self._pending and self._idle.get(queue):
                self._wake()
                return


def _bounded(wants: tuple[Want, ...], bounds: Mapping[str, tuple[Bound, ...]]) -> tuple[Want, ...]:
    if not any(bounds.values()):
        return wants
    return tuple([msgspec.structs.replace(want, bounds=bounds[want.queue]) for want in wants])


def renewals_of(held: Iterable[HeldTask], now: Instant) -> list[LeaseRenewal]:
    """With their leases renewed."""
    return [
        LeaseRenewal(task.id, task.fence, now + slots.lease_ms)
        for slots, task in held
        if slots.lease_ms is not None
    ]


def _usual_share(_: Sequence[str]) -> float:
    return lanes.RETRY_SHARE.normal
