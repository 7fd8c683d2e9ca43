"""Workers on a Redis stream: tasks are offered there, and their answers collected from there.

The backlog stays in the ledger; the stream holds only what is offered or under way. An entry nobody
has taken is *offered*: claimed and fenced, without a lease. It runs once the group's pending list
shows a consumer; that consumer's heartbeats (its idle time) are the lease. Everything can be read
back from the stream, so a server that takes this duty over goes on where the last one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from onward.core import machine
from onward.core.coalesce import Coalescer
from onward.core.contract import Hold, Verdict
from onward.core.dispatch import Dispatcher
from onward.core.duty import Duty
from onward.core.hands import Seat
from onward.core.outcome import Failed, Lost, Outcome, Released
from onward.core.task import Claimed, Instant, State, Task, TaskId, encode
from onward.workers.dialects import Answer, Dialect
from onward.workers.roster import Roster, group_of

log = structlog.get_logger("onward.streams")

Fields = Mapping[str, str]

EVERY = "*"
SWEEP_S = 0.5
BLOCK_MS = 1_000
PAGE = 1_000
OURSELVES = "onward"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    types: Sequence[str]  # served besides the dialect's own queue; "*" for all nobody else serves
    visibility_ms: int
    credits: int  # entries that nobody has taken yet


class Lines(msgspec.Struct, frozen=True):
    """Connections: blocking reads have their own, with no time-out under them."""

    calls: Redis
    blocking: Redis


class Offer:
    """One entry on the stream, and the claim behind it."""

    def __init__(self, entry: str, claimed: Claimed) -> None:
        self.entry = entry
        self.claimed = claimed
        self.consumer: str | None = None  # who has it; None: nobody yet
        self.until: Instant = 0  # the lease in the ledger
        self.acked_at: Instant | None = None  # taken and acknowledged, no answer seen yet


class Feed:
    """Feeds one stream and collects its answers, on one server at a time."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        lines: Lines,
        dialect: Dialect,
        rules: Rules,
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._redis = lines.calls
        self._blocking = lines.blocking
        self._dialect = dialect
        self._types = rules.types
        self._visibility_ms = rules.visibility_ms
        self._credits = rules.credits
        self._duty = Duty(
            dispatcher.backend.documents, dispatcher.clock, dialect.name, roster.server
        )
        self._offers: dict[str, Offer] = {}  # by entry
        self._by_task: dict[TaskId, Offer] = {}
        self._adding = Coalescer(self._add)
        self._seat: Seat | None = None
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._loops = [loop.create_task(self._watch()), loop.create_task(self._collect())]

    async def stop(self) -> None:
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._stand_up()
        with suppress(Exception):
            await self._duty.give_up()

    # On and off duty.

    async def _watch(self) -> None:
        while True:
            try:
                if await self._duty.mine():
                    if self._seat is None:
                        await self._sit_down()
                    self._serve()
                    await self.sweep()
                else:
                    self._stand_up()
            except (RedisError, OSError) as error:
                # Nothing can be offered: leave the work in its queues until Redis is back.
                log.warning("stream out of reach", error=repr(error))
                self._stand_up()
            except Exception:
                log.exception("sweep failed")
            await asyncio.sleep(SWEEP_S)

    async def _sit_down(self) -> None:
        dialect = self._dialect
        for stream, group in dialect.groups():
            await self._ensure_group(stream, group)
        await self._recall()
        self._seat = Seat(
            f"{OURSELVES}:{dialect.name}",
            self._queues(),
            lease_ms=None,
            deliver=self._deliver,
            stop=self._stop,
        )
        waiting = sum(offer.consumer is None for offer in self._offers.values())
        self._dispatcher.hands.sit(self._seat, max(0, self._credits - waiting))

    def _stand_up(self) -> None:
        if self._seat is not None:
            self._dispatcher.hands.leave(self._seat)
            self._seat = None
            self._offers.clear()
            self._by_task.clear()

    def _serve(self) -> None:
        queues = tuple(dict.fromkeys(self._queues()))
        if self._seat is not None and self._seat.queues != queues:
            self._dispatcher.hands.rearrange(self._seat, queues)

    def _queues(self) -> list[str]:
        """Never a type that somebody serves natively."""
        named = [name for name in self._types if name != EVERY]
        if EVERY in self._types:
            named += [name for name in self._seen_queues if group_of(name) is None]
        return [
            self._dialect.queue,
            *(name for name in named if not self._roster.served_by_others(name)),
        ]

    _seen_queues: Sequence[str] = ()

    async def _recall(self) -> None:
        """What an earlier server, or an earlier life of this one, has offered."""
        self._offers.clear()
        self._by_task.clear()
        entries = await self._entries()
        ids = [fields.get(self._dialect.id_field, "") for _, fields in entries]
        tasks = await self._dispatcher.backend.tasks.get(ids)
        for (entry, fields), task in zip(entries, tasks, strict=True):
            if task is None:
                continue  # a foreign one: adopted when the collector sees it
            if task.state is State.RUNNING and str(task.fence) == fields.get("fence", "1"):
                self._keep(Offer(entry, _claimed(task)))
            else:
                await self._drop(entry)  # settled by whoever died before clearing it away

    async def _entries(self) -> list[tuple[str, Fields]]:
        rows = await self._redis.xrange(self._dialect.tasks, count=100_000)
        return [(_text(entry), _fields(fields)) for entry, fields in rows or ()]

    async def _ensure_group(self, stream: str, group: str) -> None:
        try:
            await self._redis.xgroup_create(stream, group, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    # Offering.

    def _deliver(self, task: Claimed) -> None:
        self._dispatcher.spawn(self._offer(task))

    async def _offer(self, task: Claimed) -> None:
        try:
            entry = await self._adding.one(task)
        except (RedisError, OSError) as error:
            # If the entry did get through, its fence is older than the one of the next offer.
            log.warning("not offered", task=task.id, error=repr(error))
            await self._dispatcher.settle(task, Released())
            self._give_credit()
            return
        self._keep(Offer(entry, task))

    async def _add(self, tasks: Sequence[Claimed]) -> Sequence[str]:
        pipe = self._redis.pipeline(transaction=False)
        for task in tasks:
            fields: dict[Any, Any] = dict(self._dialect.entry(task))
            _ = pipe.xadd(self._dialect.tasks, fields)
        return [_text(entry) for entry in await pipe.execute()]

    def _keep(self, offer: Offer) -> None:
        self._offers[offer.entry] = offer
        self._by_task[offer.claimed.id] = offer

    def _give_credit(self) -> None:
        if self._seat is not None:
            self._dispatcher.hands.free(self._seat)

    def _stop(self, task: Claimed, revoked: bool) -> None:
        offer = self._by_task.get(task.id)
        if offer is not None:
            self._dispatcher.spawn(self._withdraw(offer, revoked))

    async def _withdraw(self, offer: Offer, revoked: bool) -> None:
        """Take an entry back that nobody has taken; one that is under way can only be asked for."""
        await self._redis.xdel(self._dialect.tasks, offer.entry)
        taken = await self._pending_of(offer.entry)
        if taken and not revoked:
            return
        if not revoked:
            await self._dispatcher.settle(offer.claimed, Released())
        await self._forget(offer)

    # Watching.

    async def sweep(self) -> None:
        """Who has what, whose heartbeat has stopped, and what was lost on the way."""
        if EVERY in self._types:
            counts = await self._dispatcher.backend.tasks.counts()
            self._seen_queues = sorted(
                {queue for (queue, _, state), n in counts.items() if n and state is State.QUEUED}
            )
        pending = await self._pending()
        delivered = await self._last_delivered()
        now = self._dispatcher.clock.now()
        for offer in list(self._offers.values()):
            seen = pending.get(offer.entry)
            if seen is not None:
                await self._seen(offer, *seen, now)
            elif _order(offer.entry) <= delivered:
                await self._acknowledged(offer, now)
        await self._reclaim(pending)

    async def _seen(self, offer: Offer, consumer: str, idle_ms: int, now: Instant) -> None:
        if consumer == OURSELVES:
            return  # taken from a silent worker; _reclaim sees to it
        until = now - idle_ms + self._visibility_ms
        if offer.consumer is None:
            # The ledger's own lease is a net under ours, and must not strike before it.
            claimed = await self._dispatcher.delivered(
                offer.claimed, consumer, until=until + self._visibility_ms
            )
            if claimed is None:
                await self._forget(offer)
                return
            offer.claimed, offer.consumer, offer.until = claimed, consumer, until
            self._give_credit()
            return
        if consumer != offer.consumer:
            await self._hold(offer, until, _reclaimed(offer.consumer, consumer, offer.entry))
            offer.consumer = consumer
        elif until - offer.until >= self._visibility_ms // 10:
            await self._hold(offer, until)

    async def _hold(self, offer: Offer, until: Instant, detail: str | None = None) -> None:
        notes = (("task.reclaimed", detail),) if detail is not None else ()
        claimed = offer.claimed
        lease = until + self._visibility_ms
        await self._dispatcher.extend(Hold(claimed.id, claimed.fence, lease, None, notes))
        offer.until = until

    async def _acknowledged(self, offer: Offer, now: Instant) -> None:
        """Taken, acknowledged and no answer: after a lease without one it is lost."""
        if offer.acked_at is None:
            offer.acked_at = now
        elif now - offer.acked_at >= self._visibility_ms:
            detail = _reclaimed(offer.consumer, OURSELVES, offer.entry)
            await self._settle(offer, Lost(detail))

    async def _reclaim(self, pending: Mapping[str, tuple[str, int]]) -> None:
        """Take over what has been idle for too long; it is offered again as a fresh entry."""
        for entry in await self._autoclaim():
            offer = self._offers.get(entry)
            if offer is None:
                await self._drop(entry)
                continue
            before = pending.get(entry)
            silent = before[0] if before is not None else offer.consumer
            detail = _reclaimed(silent, OURSELVES, entry)
            log.info("reclaimed", task=offer.claimed.id, worker=silent)
            await self._settle(offer, Lost(detail))

    async def _autoclaim(self) -> list[str]:
        dialect, claimed, cursor = self._dialect, set[str](), "0-0"
        try:
            while True:
                reply = await self._redis.xautoclaim(
                    dialect.tasks,
                    dialect.group,
                    OURSELVES,
                    self._visibility_ms,
                    cursor,
                    count=100,
                    justid=True,
                )
                # The cursor must be followed: fresh entries before a stale one would hide it.
                cursor, entries = (reply[0], reply[1]) if _is_cursor(reply) else ("0-0", reply)
                claimed.update(_text(entry) for entry in entries)
                if _text(cursor) == "0-0":
                    break
        except ResponseError as error:
            if "unknown command" not in str(error).lower():
                raise
            claimed.update(await self._claim_by_hand())
        ours = await self._pending(consumer=OURSELVES)  # of a sweep that died after claiming
        return sorted(claimed | set(ours))

    async def _claim_by_hand(self) -> list[str]:
        """The same on a server without XAUTOCLAIM."""
        idle: list[Any] = [
            entry
            for entry, (_, idle_ms) in (await self._pending()).items()
            if idle_ms >= self._visibility_ms
        ]
        if not idle:
            return []
        dialect = self._dialect
        claimed = await self._redis.xclaim(
            dialect.tasks, dialect.group, OURSELVES, self._visibility_ms, idle, justid=True
        )
        return [_text(entry) for entry in claimed]

    async def _pending(self, consumer: str | None = None) -> dict[str, tuple[str, int]]:
        found: dict[str, tuple[str, int]] = {}
        start = "-"
        while True:
            rows = await self._redis.xpending_range(
                self._dialect.tasks, self._dialect.group, start, "+", PAGE, consumername=consumer
            )
            for row in rows:
                found[_text(row["message_id"])] = (
                    _text(row["consumer"]),
                    int(row["time_since_delivered"]),
                )
            if len(rows) < PAGE:
                return found
            start = "(" + _text(rows[-1]["message_id"])

    async def _pending_of(self, entry: str) -> bool:
        return bool(
            await self._redis.xpending_range(
                self._dialect.tasks, self._dialect.group, entry, entry, 1
            )
        )

    async def _last_delivered(self) -> tuple[int, int]:
        for group in await self._redis.xinfo_groups(self._dialect.tasks):
            if _text(group["name"]) == self._dialect.group:
                return _order(_text(group["last-delivered-id"]))
        await self._ensure_group(self._dialect.tasks, self._dialect.group)
        return (0, 0)

    # Collecting.

    async def _collect(self) -> None:
        start = "0"  # first what was read and never acknowledged, then what is new
        while True:
            try:
                if self._seat is None:
                    start = "0"
                    await asyncio.sleep(SWEEP_S / 2)
                    continue
                start = ">" if await self._collect_once(start) == 0 else start
            except (RedisError, OSError) as error:
                log.warning("answers out of reach", error=repr(error))
                await asyncio.sleep(SWEEP_S)
            except Exception:
                log.exception("collecting failed")
                await asyncio.sleep(SWEEP_S)

    async def _collect_once(self, start: str) -> int:
        dialect = self._dialect
        streams: dict[Any, Any] = dict.fromkeys(dialect.read, start)
        reply = await self._blocking.xreadgroup(
            dialect.own_group, OURSELVES, streams, count=256, block=BLOCK_MS
        )
        count = 0
        for name, entries in _streams(reply):
            stream = _text(name)
            rows = [(_text(entry), _fields(fields)) for entry, fields in entries]
            count += len(rows)
            if stream == dialect.tasks:
                await self._adopt([row for row in rows if "fence" not in row[1]])
            else:
                await asyncio.gather(*[self._answered(stream, fields) for _, fields in rows])
            if rows:
                ids = [entry for entry, _ in rows]
                await self._redis.xack(stream, dialect.own_group, *ids)
                if stream in dialect.consumed:
                    await self._redis.xdel(stream, *ids)
        return count

    async def _answered(self, stream: str, fields: Fields) -> None:
        answer = self._dialect.answer(stream, fields)
        if answer is None:
            return
        offer = self._by_task.get(answer.task) or await self._look_up(answer)
        if offer is None:
            return
        fence = answer.fence if answer.fence is not None else await self._fence_of(offer)
        if fence != offer.claimed.fence:
            late = msgspec.structs.replace(offer.claimed, fence=fence, worker=answer.worker)
            await self._dispatcher.settle(late, answer.outcome)
            return
        await self._settle(offer, answer.outcome)

    async def _fence_of(self, offer: Offer) -> int:
        """An answer without a fence counts for an entry that somebody has, or had last."""
        if offer.consumer is not None or offer.acked_at is not None:
            return offer.claimed.fence
        if await self._pending_of(offer.entry):
            return offer.claimed.fence
        if _order(offer.entry) <= await self._last_delivered():
            return offer.claimed.fence
        return offer.claimed.fence - 1  # nobody has taken this one yet: it answers an earlier one

    async def _look_up(self, answer: Answer) -> Offer | None:
        task = (await self._dispatcher.backend.tasks.get([answer.task]))[0]
        if task is None:
            entry = next(
                (
                    row
                    for row in await self._entries()
                    if row[1].get(self._dialect.id_field) == answer.task
                ),
                ("0-0", {self._dialect.id_field: answer.task}),
            )
            await self._adopt([entry])
            return self._by_task.get(answer.task)
        claimed = _claimed(task)
        if task.state is not State.RUNNING and answer.fence is None:
            claimed = msgspec.structs.replace(claimed, fence=-1)  # of an attempt that is over
        return Offer("0-0", claimed)

    async def _adopt(self, rows: Iterable[tuple[str, Fields]]) -> None:
        """Entries that somebody else put there enter the ledger as what they are: under way."""
        for entry, fields in rows:
            task = self._dialect.adopt(fields, self._dispatcher.clock.now())
            if task is None or entry in self._offers:
                continue
            known = (await self._dispatcher.backend.tasks.get([task.id]))[0]
            if known is not None:
                continue
            now = self._dispatcher.clock.now()
            until = now + 2 * self._visibility_ms
            submission = machine.adopted(task, f"{OURSELVES}:{self._dialect.name}", until)
            await self._dispatcher.backend.tasks.insert([submission], (), now=now)
            self._keep(Offer(entry, _claimed(submission.task)))

    async def _settle(self, offer: Offer, outcome: Outcome) -> None:
        verdict = await self._dispatcher.settle(offer.claimed, outcome)
        if verdict is Verdict.STALE and isinstance(outcome, Failed | Lost):
            log.info("too late", task=offer.claimed.id)
        await self._forget(offer)

    async def _forget(self, offer: Offer) -> None:
        """Settled first, cleared away second: a crash in between clears it at the next start."""
        if self._offers.pop(offer.entry, None) is not None and offer.consumer is None:
            self._give_credit()
        if self._by_task.get(offer.claimed.id) is offer:
            del self._by_task[offer.claimed.id]
        if offer.entry != "0-0":
            await self._drop(offer.entry)

    async def _drop(self, entry: str) -> None:
        await self._redis.xack(self._dialect.tasks, self._dialect.group, entry)
        await self._redis.xdel(self._dialect.tasks, entry)


def _claimed(task: Task) -> Claimed:
    names = Claimed.__struct_fields__[:-1]
    return Claimed(*[getattr(task, name) for name in names])


def _reclaimed(before: str | None, after: str, entry: str) -> str:
    return encode({"from": before, "to": after, "message_id": entry})


def _order(entry: str) -> tuple[int, int]:
    ms, _, n = entry.partition("-")
    return int(ms), int(n or 0)


def _is_cursor(reply: Any) -> bool:
    return len(reply) >= 2 and isinstance(reply[1], list)


def _streams(reply: Any) -> list[tuple[Any, Any]]:
    """XREADGROUP under either protocol."""
    if not reply:
        return []
    if isinstance(reply, dict):
        return [(name, chain[0] if chain else []) for name, chain in reply.items()]
    return list(reply)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _fields(raw: Mapping[Any, Any] | None) -> Fields:
    return {_text(name): _text(value) for name, value in (raw or {}).items()}
