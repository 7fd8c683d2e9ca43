"""What is on a stream: each entry, the claim behind it, and the consumer that has it.

Kept in memory while this server is on duty; the server that takes the duty over reads all of it
again from the stream and the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from onward.core.coalesce import Coalescer
from onward.core.contract import LeaseRenewal, LeaseStatus, Verdict
from onward.core.dispatch import Dispatcher
from onward.core.outcome import Outcome
from onward.core.slots import WorkerSlots
from onward.core.task import Claimed, Instant, Json, TaskId, encode
from onward.workers.streams.channel import Channel, EntryId


def net_ms(visibility_ms: int) -> int:
    """By how much the ledger's lease outlasts the stream's, for when no server sweeps. It must not
    end before a sweep that is only slow: the sweep knows which consumer was silent."""
    return visibility_ms + 10_000


class Offer:
    """One entry on the stream, and the claim behind it."""

    def __init__(self, entry: EntryId | None, claimed: Claimed) -> None:
        self.entry = entry  # None: only its answer is known
        self.claimed = claimed
        self.worker_slots: WorkerSlots | None = None  # whose slot it takes until a consumer has it
        self.consumer: str | None = None  # that has it; None: none yet
        self.until: Instant = 0  # when its consumer has been silent for too long
        self.acked_at: Instant | None = None  # acknowledged, and no answer read yet


class Offers:
    def __init__(self, dispatcher: Dispatcher, channel: Channel) -> None:
        self._dispatcher = dispatcher
        self._slots = dispatcher.slots
        self._dropping = Coalescer(channel.drop, whole=True)
        self._by_task: dict[TaskId, Offer] = {}
        self._by_entry: dict[EntryId, Offer] = {}
        self._coming: dict[TaskId, tuple[str, asyncio.Event]] = {}  # on their way to the stream
        self.worker_slots: WorkerSlots | None = None  # set while this server is on duty

    @contextmanager
    def coming(self, task: Claimed) -> Iterator[None]:
        """While its entry is being written: a worker may read it before its id is known here."""
        mine = (str(task.fence), asyncio.Event())
        self._coming[task.id] = mine
        try:
            yield
        finally:
            mine[1].set()
            # Released because Redis was away, it may be claimed and on its way a second time.
            if self._coming.get(task.id) is mine:
                del self._coming[task.id]

    def is_coming(self, task: TaskId, fence: str) -> bool:
        return task in self._coming and self._coming[task][0] == fence

    async def find(self, task: TaskId) -> Offer | None:
        if task in self._coming:
            await self._coming[task][1].wait()
        return self.of(task)

    def of(self, task: TaskId) -> Offer | None:
        return self._by_task.get(task)

    def at(self, entry: EntryId) -> Offer | None:
        return self._by_entry.get(entry)

    def all(self) -> list[Offer]:
        return list(self._by_task.values())

    def sit(self, worker_slots: WorkerSlots, credits: int) -> None:
        self.worker_slots = worker_slots
        for offer in self._by_task.values():
            self._slots.keep(worker_slots, offer.claimed)
            if offer.consumer is None:
                offer.worker_slots = worker_slots
                credits -= 1
        self._slots.add(worker_slots, max(0, credits))

    def leave(self) -> None:
        if self.worker_slots is not None:
            self._slots.remove(self.worker_slots)
            self.worker_slots = None
        self.clear()

    def clear(self) -> None:
        for offer in self._by_task.values():
            self._slots.put_down(offer.claimed.id, offer.claimed.fence)
        self._by_task.clear()
        self._by_entry.clear()

    def keep(self, offer: Offer) -> EntryId | None:
        """Records it; returns the entry that this one replaces."""
        before = self._by_task.get(offer.claimed.id)
        replaced = None
        if before is not None and before.entry not in (None, offer.entry):
            replaced = before.entry
        if replaced is not None:
            self._by_entry.pop(replaced, None)
        if before is not None:
            self.give_credit(before)
        self._by_task[offer.claimed.id] = offer
        if offer.entry is not None:
            self._by_entry[offer.entry] = offer
        if self.worker_slots is not None:
            self._slots.keep(self.worker_slots, offer.claimed)
        return replaced

    def give_credit(self, offer: Offer) -> None:
        # Only to the slots that lent it: those added since began with a count of their own.
        if offer.worker_slots is not None and offer.worker_slots is self.worker_slots:
            self._slots.free(offer.worker_slots)
        offer.worker_slots = None

    async def settle(self, offer: Offer, outcome: Outcome) -> Verdict:
        verdict = await self._dispatcher.settle(offer.claimed, outcome)
        await self.forget(offer)
        return verdict

    async def forget(self, offer: Offer) -> None:
        """Settled first, deleted second: after a crash in between the next start deletes it."""
        self.give_credit(offer)
        self._slots.put_down(offer.claimed.id, offer.claimed.fence)
        if self._by_task.get(offer.claimed.id) is offer:
            del self._by_task[offer.claimed.id]
        if offer.entry is not None:
            self._by_entry.pop(offer.entry, None)
            await self._dropping.one(offer.entry)

    async def taken_over(self, offer: Offer, consumer: str, lease: Instant) -> LeaseStatus:
        """A worker has claimed it from another one."""
        before, claimed = offer.consumer, offer.claimed
        # Before the ledger replies: a sweep and an answer may notice the same worker at once.
        offer.consumer = consumer
        note = ("task.reclaimed", reclaimed(before, consumer, offer.entry))
        renewal = LeaseRenewal(claimed.id, claimed.fence, lease, None, (note,))
        return await self._dispatcher.extend(renewal)

    async def drop(self, entries: Sequence[EntryId]) -> None:
        """Deletes entries that have no offer."""
        if entries:
            await self._dropping.many(entries)


def reclaimed(before: str | None, after: str, entry: EntryId | None) -> Json:
    found = None if entry is None else entry.id
    return encode({"from": before, "to": after, "message_id": found})
