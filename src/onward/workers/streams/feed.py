"""Workers on Redis streams: tasks are offered there, and their answers collected from there.

The backlog stays in the ledger; the stream holds only what is offered or under way. An entry that
no worker has read is *offered*: claimed and fenced, without a lease. It runs once the group's
pending list shows a consumer; that consumer's heartbeats (its idle time) are the lease. All of this
can be read from the stream, so a server that takes the duty over goes on where the last one was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from platform import node
from time import monotonic
from typing import Any

import msgspec
import structlog

from onward.core.coalesce import Coalescer
from onward.core.contract import Documents, LeaseRenewal, Query
from onward.core.dispatch import Dispatcher
from onward.core.duty import Duty
from onward.core.errors import LedgerUnavailable
from onward.core.outcome import Lost, Released
from onward.core.slots import WorkerSlots
from onward.core.task import Claimed, Instant, State, as_claimed, encode, new_id
from onward.services.catalog import Catalog, Declared
from onward.services.declarations import Declarations
from onward.wire.streams import RELEASED, Fields, cancel_key
from onward.workers.roster import Roster, is_service
from onward.workers.streams.channel import (
    OURSELVES,
    Channel,
    EntryId,
    PendingEntry,
    ReadPositions,
    StreamConnections,
)
from onward.workers.streams.collect import AWAY, PAGE, REFUSED, Collector
from onward.workers.streams.dialects import StreamDialect, own_streams
from onward.workers.streams.offers import Offer, Offers, net_ms, reclaimed

log = structlog.get_logger("onward.streams")

EVERY = "*"
LEDGER = "ledger"  # the kind of the document with the ledger's name
HELD = (State.QUEUED, State.RUNNING)  # as which tasks are counted that are offered, or delivered
ANY = "any"  # `via` of a service that any transport may serve
SWEEP_S = 0.5
REREAD = 4  # sweeps between two reads of the offered tasks: another server may have changed them
REFUSED_S = 5.0  # until the next try at a stream that refuses entries, as when Redis is full
RENEW_S = 5.0  # to wait for Redis before the alarm's first look
LEAVE_S = 2.0  # to wait for Redis when the server stops
STOP_S = 60  # longer than any grace period
GLANCE_MS = 250  # a service acknowledges an entry that is not for it sooner than this
SILENT_MS = 3_600_000  # a consumer without entries is deleted after this


class FeedSettings(msgspec.Struct, frozen=True, kw_only=True):
    types: Sequence[str]  # besides the dialect's own queue; "*": all that no other worker serves
    besides: Sequence[str] = ()  # queues that "*" leaves out
    visibility_ms: int
    credits: int  # entries that no worker has read yet


class StreamFeed:
    """Feeds one dialect's streams and collects the answers, on one server at a time."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        connections: StreamConnections,
        dialect: StreamDialect,
        settings: FeedSettings,
        catalog: Catalog,
        duty: Duty | None,  # None: the ledger has no other server
    ) -> None:
        self._duty = duty
        self._ledger = ""  # its name, with which the streams are marked
        self.other: str | None = None  # the ledger that has these streams, if it is another one
        self._catalog = catalog
        self._declared: Sequence[str] = ()  # types of services that are reached by this stream
        self._elsewhere: frozenset[str] = frozenset(settings.besides)  # … and by other transports
        self._dispatcher = dispatcher
        self._tasks = dispatcher.backend.tasks
        self._documents = dispatcher.backend.documents
        self._clock = dispatcher.clock
        self._roster = roster
        self._dialect = dialect
        self._settings = settings
        self._visibility_ms = settings.visibility_ms
        self._net_ms = net_ms(settings.visibility_ms)
        self._channel = Channel(connections, dialect)
        self._offers = Offers(dispatcher, self._channel)
        declarations = Declarations(catalog)
        self._collector = Collector(
            dispatcher, roster, self._channel, self._offers, declarations, settings.visibility_ms
        )
        self._adding = Coalescer(self._add, whole=True)
        self._reading = Coalescer(self._tasks.get)
        self._waiting_queues: Sequence[str] = ()
        self._sweeps = 0
        self._closed_until = 0.0  # no new entries before
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._loops = [loop.create_task(self._watch()), loop.create_task(self._collector.run())]

    async def stop(self) -> None:
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        fed = self._offers.worker_slots is not None
        self._offers.leave()
        with suppress(Exception):  # if this fails, others wait until it expires
            async with asyncio.timeout(LEAVE_S):
                if self._duty is not None:
                    await self._duty.give_up()
                elif fed:  # else another server of this ledger feeds them
                    await self._channel.vacate(self._ledger)

    async def renew(self) -> None:
        """On every server, on duty or not: its alarm would end the attempts all the same."""
        try:
            async with asyncio.timeout(RENEW_S):
                alone, others = own_streams(self._dialect, await self._catalog.all())
                await self._channel.join_own((), [*alone, *others])
                await self._collector.renew()
        except Exception as error:
            # Whatever is wrong with this Redis or an entry: alarms of all other tasks must ring.
            log.warning("leases of the stream not renewed", error=repr(error))

    # On and off duty.

    async def _watch(self) -> None:
        while True:
            try:
                if await self._is_ours():
                    if self._offers.worker_slots is None:
                        await self._take_seat()
                    await self.sweep()
                else:
                    self._offers.leave()
            except AWAY as error:
                # Nothing can be offered: tasks stay in their queues, and all is read again later.
                log.warning("stream out of reach", streams=self._dialect.name, error=repr(error))
                self._offers.leave()
            except Exception as error:
                log.exception("sweep failed")
                self._dispatcher.troubles.failed(f"sweep of {self._dialect.name}", error)
                self._offers.leave()
            else:
                self._dispatcher.troubles.went_well(f"sweep of {self._dialect.name}")
            await asyncio.sleep(SWEEP_S)

    async def _is_ours(self) -> bool:
        if self._duty is not None and not await self._duty.mine():
            self.other = None
            return False
        # Read each time: in a Redis that has lost the ledger no stream may be created.
        name = await _name(self._documents, self._clock.now())
        if self._ledger not in ("", name):
            raise LedgerUnavailable("the ledger was replaced by another one")
        self._ledger = name
        other = await self._channel.occupy(self._ledger)
        if other not in (None, self.other):
            log.error(
                "these streams are another ledger's",
                streams=self._dialect.name,
                ledger=other,
                hint="nothing is offered; use another database of that Redis, as in redis://…/1",
            )
        self.other = other
        return other is None

    async def _take_seat(self) -> None:
        await self._look_for_own_streams(await self._catalog.all())
        await self._channel.prepare()
        self._offers.clear()
        async for rows in self._channel.entries():
            await self._collector.meet(rows)
        # First the answers that came meanwhile: a task without an entry may have one.
        await self._collector.catch_up()
        await self._release_forgotten()
        worker_slots = WorkerSlots(
            self._collector.worker,
            self._queues(),
            lease_ms=None,
            deliver=self._deliver,
            stop=self._stop,
        )
        self._offers.sit(worker_slots, self._settings.credits)

    async def _release_forgotten(self) -> None:
        """Releases what was claimed for the stream and has no entry: never written, or deleted."""
        counts = await self._tasks.counts()
        live = {queue for (queue, _, state), n in counts.items() if n and state in HELD}
        for queue in sorted(live):
            after: str | None = None
            while True:
                page = await self._tasks.find(
                    Query(states=frozenset({State.RUNNING}), queue=queue, after=after, limit=PAGE)
                )
                forgotten = [
                    as_claimed(task)
                    for task in page.items
                    if task.worker == self._collector.worker
                    and task.offered
                    and self._offers.of(task.id) is None
                ]
                settled = [self._dispatcher.settle(held, Released()) for held in forgotten]
                await asyncio.gather(*settled)
                after = page.next
                if after is None:
                    break

    def _queues(self) -> list[str]:
        """Never a type that other workers serve, and nothing while no group could read it."""
        read = {name for name in self._channel.task_streams if self._channel.readers(name).groups}
        if not read or monotonic() < self._closed_until:
            return []
        declared = [type_ for type_ in self._declared if self._stream_of(type_, type_) in read]
        named = [*declared, *(name for name in self._settings.types if name != EVERY)]
        if EVERY in self._settings.types:
            named += [queue for queue in self._waiting_queues if queue not in self._elsewhere]
        free = [
            name for name in named if is_service(name) and not self._roster.served_by_others(name)
        ]
        return list(dict.fromkeys([self._dialect.queue, *free]))

    def _stream_of(self, type_: str, queue: str) -> str:
        """The service's own, if it has a consumer there, or if no other service may read it."""
        if self._dialect.own is None:
            return self._dialect.tasks
        for service in self._catalog.concerned(type_, queue):
            stream = self._dialect.own(service.name)
            if service.sensitive:
                return stream
            if service.via == self._dialect.name and self._channel.readers(stream).lively:
                return stream
        return self._dialect.tasks

    async def _look_for_own_streams(self, services: Sequence[Declared]) -> None:
        alone, others = own_streams(self._dialect, services)
        await self._channel.join_own(alone, others)

    # Offering.

    def _deliver(self, task: Claimed) -> None:
        self._spawn(self._offer(task, self._offers.worker_slots))

    async def _offer(self, task: Claimed, worker_slots: WorkerSlots | None) -> None:
        with self._offers.coming(task):
            try:
                whole = await self._reading.one(task.id) if self._dialect.shared else None
                entry = await self._adding.one((task, self._dialect.entry(task, whole)))
            except AWAY as error:
                # If the entry was written after all, its fence is older than the next offer's.
                log.warning("not offered", task=task.id, error=repr(error))
                if worker_slots is not None and worker_slots is self._offers.worker_slots:
                    if isinstance(error, REFUSED):
                        # Else the same tasks would be claimed and released again and again.
                        self._closed_until = monotonic() + REFUSED_S
                        self._dispatcher.slots.rearrange(worker_slots, self._queues())
                    self._dispatcher.slots.free(worker_slots)
                await self._dispatcher.settle(task, Released())
                return
            # Else the server on duty now reads it from the stream.
            if worker_slots is self._offers.worker_slots:
                offer = Offer(entry, task)
                offer.worker_slots = worker_slots
                self._offers.keep(offer)

    async def _add(self, entries: Sequence[tuple[Claimed, Fields]]) -> Sequence[EntryId]:
        streams: list[str] = []
        for task, _ in entries:
            if self._dialect.own is not None:
                # As new as at its submission: a service may just have been declared sensitive.
                await self._catalog.of(task.type, task.queue)
            streams.append(self._stream_of(task.type, task.queue))
        unknown = [name for name in streams if name not in self._channel.task_streams]
        if unknown:
            await self._channel.join_own(unknown, ())
        fields = [entry for _, entry in entries]
        return await self._channel.add(list(zip(streams, fields, strict=True)))

    def _stop(self, task: Claimed, revoked: bool) -> None:
        self._spawn(self._take_back(task, revoked))

    async def _take_back(self, task: Claimed, revoked: bool) -> None:
        offer = await self._offers.find(task.id)
        if offer is not None and offer.claimed.fence == task.fence:
            await (self._offers.forget(offer) if revoked else self._withdraw(offer))

    async def _withdraw(self, offer: Offer) -> None:
        """Deletes an entry that no worker has read; a worker that has it is asked to stop."""
        if offer.entry is None or await self._channel.withdraw(offer.entry):
            await self._offers.settle(offer, Released())
        else:
            key = cancel_key(offer.claimed.id, offer.claimed.fence)
            await self._channel.mark(key, STOP_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except AWAY as error:  # read again once both stream and ledger answer
                log.warning("left for later", error=repr(error))

        self._dispatcher.spawn(guarded())

    # Watching.

    async def sweep(self) -> None:
        """Finds which consumer has what, whose heartbeats have stopped, and what was lost."""
        # In this order: an entry delivered after the first look must not be taken for acknowledged.
        reach = await self._channel.delivered()
        pending = await self._channel.pending()
        await self._look_at(pending, reach)
        await self._reclaim()
        await self._serve(reach)
        if self._sweeps % REREAD == 0:
            await self._reread()
            await self._look_for_gaps()
        if self._sweeps % 120 == 0:
            await self._channel.dismiss(SILENT_MS)
            await self._channel.trim(self._clock.now())
        self._sweeps += 1

    async def _look_at(self, pending: Mapping[EntryId, PendingEntry], reach: ReadPositions) -> None:
        now = self._clock.now()
        arrived: list[tuple[Offer, PendingEntry]] = []
        news: list[Coroutine[Any, Any, None]] = []
        for offer in self._offers.all():
            taken = None if offer.entry is None else pending.get(offer.entry)
            if taken is None:
                if offer.entry is None or reach.all_had(offer.entry):
                    news.append(self._acknowledged(offer, now))
            elif taken.consumer in (OURSELVES, RELEASED):
                continue  # claimed from a silent worker, or handed back: for _reclaim
            elif offer.consumer is None and self._may_let_go(taken):
                continue
            else:
                offer.acked_at = None
                if offer.consumer is None:
                    arrived.append((offer, taken))
                else:
                    news.append(self._still_held(offer, taken, now))
        await self._arrived(arrived, now)
        await asyncio.gather(*news)

    def _may_let_go(self, taken: PendingEntry) -> bool:
        """Each service reads every entry, and soon acknowledges those that are not for it."""
        return self._dialect.shared and taken.idle_ms < GLANCE_MS

    async def _arrived(self, arrived: Sequence[tuple[Offer, PendingEntry]], now: Instant) -> None:
        """The ledger's lease must not end before the stream's: after a long silence it counts from
        now, or the alarm would end the attempt before this sweep reclaims it."""
        untils = [now - taken.idle_ms + self._visibility_ms for _, taken in arrived]
        replies = await self._dispatcher.delivered(
            [
                (offer.claimed, taken.consumer, max(now, until) + self._net_ms)
                for (offer, taken), until in zip(arrived, untils, strict=True)
            ]
        )
        for (offer, taken), until, held in zip(arrived, untils, replies, strict=True):
            if held is None:
                await self._refresh([offer])
                continue
            offer.claimed, offer.consumer, offer.until = held, taken.consumer, until
            self._offers.give_credit(offer)

    async def _still_held(self, offer: Offer, taken: PendingEntry, now: Instant) -> None:
        until = now - taken.idle_ms + self._visibility_ms
        if taken.consumer != offer.consumer:
            offer.until = until
            await self._offers.taken_over(offer, taken.consumer, until + self._net_ms)
        elif until - offer.until >= self._visibility_ms // 10:
            await self._hold(offer, until)

    async def _hold(self, offer: Offer, until: Instant) -> None:
        claimed, lease = offer.claimed, until + self._net_ms
        await self._dispatcher.extend(LeaseRenewal(claimed.id, claimed.fence, lease))
        offer.until = until

    async def _acknowledged(self, offer: Offer, now: Instant) -> None:
        """Acknowledged and not answered: after a lease without an answer it is lost."""
        if offer.acked_at is None:
            offer.acked_at = now
        elif now - offer.acked_at >= self._visibility_ms:
            lost = Lost(reclaimed(offer.consumer, OURSELVES, offer.entry))
            # All services have let go of it, and none was seen to keep it: it waits for another.
            unwanted = self._dialect.shared and offer.consumer is None
            await self._offers.settle(offer, Released() if unwanted else lost)

    async def _reclaim(self) -> None:
        """Claims what has been idle for too long; it is offered again as a new entry."""
        idle = await self._channel.claim_idle(self._visibility_ms)
        for entry, before in sorted(idle.items()):
            offer = self._offers.at(entry) or await self._collector.find(entry)
            if offer is None:
                await self._offers.drop([entry])
            elif before.consumer == RELEASED:
                await self._offers.settle(offer, Released())
            else:
                # Also if no sweep has seen its consumer: this server was away, or stood still.
                silent = offer.consumer if before.consumer == OURSELVES else before.consumer
                log.info("reclaimed", task=offer.claimed.id, worker=silent)
                await self._offers.settle(offer, Lost(reclaimed(silent, OURSELVES, entry)))

    async def _serve(self, reach: ReadPositions) -> None:
        services = await self._catalog.all()
        await self._look_for_own_streams(services)
        ours = [service for service in services if service.via == self._dialect.name]
        others = [service for service in services if service.via not in (ANY, self._dialect.name)]
        self._declared = [type_ for service in ours for type_ in service.task_types]
        self._elsewhere = frozenset(self._settings.besides).union(
            *[service.task_types for service in others]
        )
        if EVERY in self._settings.types:
            counts = await self._tasks.counts()
            queued = {q for (q, _, state), n in counts.items() if n and state is State.QUEUED}
            self._waiting_queues = sorted(queued)
        queues = tuple(self._queues())
        if self._offers.worker_slots is None:
            return
        served = self._offers.worker_slots.queues
        if served != queues:
            self._dispatcher.slots.rearrange(self._offers.worker_slots, queues)
        for offer in self._offers.all() if served != queues or self._dialect.own else ():
            if offer.entry is None or reach.any_had(offer.entry):
                continue
            # Another worker serves it by now, or another stream is its service's.
            claimed = offer.claimed
            elsewhere = offer.entry.stream != self._stream_of(claimed.type, claimed.queue)
            if elsewhere or (served != queues and self._roster.served_by_others(claimed.queue)):
                await self._withdraw(offer)

    async def _reread(self) -> None:
        offers = self._offers.all()
        for at in range(0, len(offers), PAGE):
            await self._refresh(offers[at : at + PAGE])

    async def _refresh(self, offers: Sequence[Offer]) -> None:
        """Reads what other servers have done to the tasks of these offers."""
        tasks = await self._tasks.look([offer.claimed.id for offer in offers])
        for offer, task in zip(offers, tasks, strict=True):
            fence = task.fence if task is not None and task.state is State.RUNNING else None
            if task is None or fence != offer.claimed.fence:
                await self._offers.forget(offer)
                continue
            offer.claimed = as_claimed(task)
            if task.cancel_by is not None:
                await self._withdraw(offer)

    async def _look_for_gaps(self) -> None:
        """Releases entries that vanished unread: another program has trimmed the stream."""
        waiting = [offer for offer in self._offers.all() if offer.acked_at is None]
        if await self._channel.length() >= len(waiting):
            return
        there = {row.entry async for rows in self._channel.entries() for row in rows}
        reach = await self._channel.delivered()
        for offer in waiting:
            entry = offer.entry
            if entry is not None and entry not in there and not reach.any_had(entry):
                log.warning("an entry has vanished", task=offer.claimed.id, entry=entry.id)
                await self._offers.settle(offer, Released())


async def _name(documents: Documents, now: Instant) -> str:
    """The ledger's name, written once by the first server that needs it."""
    found = await documents.get(LEDGER, "name", now=now)
    if found is None:
        fresh = encode(f"{node()}/{new_id()}")
        await documents.put(LEDGER, "name", fresh, now=now, expect=0)
        return await _name(documents, now)
    return str(msgspec.json.decode(found.body))
