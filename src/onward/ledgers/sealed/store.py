"""A TaskStore around another: what people wrote is sealed on its way in and opened on its way out.

The ledger inside never sees a clear text, the core outside never a sealed one. A task that does not
open goes to no worker: it waits, and is tried again every few minutes, until its key is back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import structlog

from onward.core import moves
from onward.core.contract import (
    LOG_BYTES,
    PAGE_BYTES,
    Ask,
    Inserted,
    LeaseRenewal,
    LeaseStatus,
    Move,
    Moved,
    Page,
    Query,
    Submission,
    TaskStore,
)
from onward.core.errors import Unreadable
from onward.core.task import Claimed, Event, Instant, Letter, State, Task, TaskId, encode
from onward.ledgers.codec import text_bytes, to_row
from onward.ledgers.sealed.chosen import ClearOwners
from onward.ledgers.sealed.fields import opens, seals, shown, shown_event
from onward.ledgers.sealed.keyring import Keyring

log = structlog.get_logger("onward.sealed")

AGAIN_MS = 300_000
WAITING_FOR_KEY = "key"  # what a task that does not open is waiting_for
LOOK = 256  # tasks opened at a time to look for a text
MOST_LOOKED_AT = 20_000  # for one page of a search


class SealedStore:
    def __init__(self, inner: TaskStore, keyring: Keyring) -> None:
        self._inner = inner
        self.chosen = ClearOwners()
        self._seals, self._opens = seals(keyring, self.chosen.seals), opens(keyring)
        self.position, self.counts, self.purge = inner.position, inner.counts, inner.purge
        self.oldest, self.open_approvals = inner.oldest, inner.open_approvals
        self.batches = inner.batches
        self.start_at, self.usage = inner.start_at, inner.usage

    async def insert(
        self, submissions: Sequence[Submission], asks: Sequence[Ask], *, now: Instant
    ) -> Inserted:
        for one in submissions:
            self.chosen.born(one.task)
        inserted = await self._inner.insert(
            [self._seals.submission(one) for one in submissions], asks, now=now
        )
        return Inserted(inserted.receipts, await self._opened(inserted.claimed, now))

    async def claim(self, asks: Sequence[Ask], *, now: Instant) -> Sequence[Claimed]:
        return await self._opened(await self._inner.claim(asks, now=now), now)

    async def _opened(self, claimed: Sequence[Claimed], now: Instant) -> Sequence[Claimed]:
        self.chosen.read(claimed)
        opened: list[Claimed] = []
        waits: list[Move] = []
        for task in claimed:
            try:
                opened.append(self._opens.claimed(task))
            except Unreadable as error:
                log.error("a task waits for its key", task=task.id, error=str(error))
                waits.append(_waits(task, now))
        if waits:
            try:
                await self._inner.apply([self._seals.move(move) for move in waits], now=now)
            except Exception as error:
                # The ledger went away between the claim and this: those that do not open are left
                # to their lease, and those that do are claimed already.
                log.warning("left to their lease", tasks=len(waits), error=repr(error))
        return opened

    async def extend(
        self, renewals: Sequence[LeaseRenewal], *, now: Instant
    ) -> Sequence[LeaseStatus]:
        return await self._inner.extend(
            [self._seals.renewal(renewal) for renewal in renewals], now=now
        )

    async def apply(
        self,
        moves: Sequence[Move],
        asks: Sequence[Ask] = (),
        *,
        now: Instant,
        frees: Collection[str] = (),
    ) -> Moved:
        for move in moves:
            self._bear(move)
        sealed = [self._seals.move(move) for move in moves]
        moved = await self._inner.apply(sealed, asks, now=now, frees=frees)
        if not moved.claimed:
            return moved
        opened = await self._opened(moved.claimed, now)
        return msgspec.structs.replace(moved, claimed=tuple(opened))

    def _bear(self, move: Move) -> None:
        for child in move.spawn:
            self.chosen.born(child.task)
        if move.answer is not None:
            self._bear(move.answer)

    async def post(self, letters: Sequence[Letter], *, now: Instant) -> Moved:
        return await self._inner.post([self._seals.letter(one) for one in letters], now=now)

    async def due(
        self,
        *,
        now: Instant,
        limit: int,
        without: Collection[TaskId] = (),
        most_bytes: int = PAGE_BYTES,
    ) -> Sequence[Task]:
        # The clock must strike for all of them, also for those that do not open.
        found = await self._inner.due(now=now, limit=limit, without=without, most_bytes=most_bytes)
        self.chosen.read(found)
        return [shown(self._opens, task) for task in found]

    async def get(self, ids: Sequence[TaskId]) -> Sequence[Task | None]:
        found = await self._inner.get(ids)
        self.chosen.read(found)
        return [None if task is None else self._opens.task(task) for task in found]

    async def look(self, ids: Sequence[TaskId]) -> Sequence[Task | None]:
        found = await self._inner.look(ids)
        self.chosen.read(found)
        return [None if task is None else shown(self._opens, task) for task in found]

    async def find(self, query: Query) -> Page[Task]:
        if query.text:
            return await self._search(query, query.text)
        page = await self._inner.find(query)
        return Page([shown(self._opens, task) for task in page.items], page.next)

    async def _search(self, query: Query, text: str) -> Page[Task]:
        """The ledger cannot look into what is sealed, so everything is opened that may be meant."""
        found: list[Task] = []
        looked_at, spent = 0, 0
        look = msgspec.structs.replace(query, text=None, limit=LOOK)
        while looked_at < MOST_LOOKED_AT:
            page = await self._inner.find(look)
            looked_at += len(page.items)
            for at, sealed in enumerate(page.items, start=1):
                task = shown(self._opens, sealed)
                if _mentions(task, text):
                    found.append(task)
                    spent += text_bytes(to_row(task))
                enough = len(found) == query.limit or spent > query.most_bytes
                if enough and (at < len(page.items) or page.next):
                    # The cursor of the last one that was looked at: asked for by itself.
                    last = await self._inner.find(msgspec.structs.replace(look, limit=at))
                    return Page(found, last.next)
            if page.next is None:
                return Page(found, None)
            look = msgspec.structs.replace(look, after=page.next)
        return Page(found, look.after)

    async def events(
        self, *, after: str, limit: int, task: TaskId | None = None, most_bytes: int = LOG_BYTES
    ) -> Page[Event]:
        page = await self._inner.events(after=after, limit=limit, task=task, most_bytes=most_bytes)
        items = [shown_event(self._opens, event) for event in page.items]
        return Page(items, page.next, page.more)


def _waits(task: Claimed, now: Instant) -> Move:
    """Handed back as it was: no attempt is counted, and what it remembers stays sealed."""
    return moves.guarded(
        task,
        State.RUNNING,
        to=State.WAITING,
        due_at=_again_at(task.expires_at, now),
        changes={
            "waiting_for": WAITING_FOR_KEY,
            "attempt": task.attempt - 1,
            "worker": None,
            "queued_at": now,
            "start_by": None,
        },
        events=(("task.parked", encode({"waiting_for": WAITING_FOR_KEY})),),
    )


def _again_at(expires_at: Instant | None, now: Instant) -> Instant:
    """Not at once for one whose time is over: where that ends nothing, it would be claimed, and
    found closed, as fast as it can be.
    """
    again_at = now + AGAIN_MS
    return again_at if expires_at is None or expires_at <= now else min(again_at, expires_at)


def _mentions(task: Task, text: str) -> bool:
    return any(text in field for field in (task.id, task.type, task.payload, task.error or ""))
