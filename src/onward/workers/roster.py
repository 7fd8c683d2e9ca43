"""Who is there, and what they serve. A hint for people and for "is anybody there?", never a lease.

Each server writes the workers connected to it; its rows count as long as its own heartbeat does. A
miss in the cache is looked up in the ledger before anybody is told that there is no worker. That a
worker shall drain is written into its row, and heard by the server that it is connected to.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec
import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.errors import Conflict, LedgerUnavailable
from onward.core.task import Instant, WorkerId, encode, new_id

log = structlog.get_logger("onward.roster")

SERVER, WORKER = "server", "worker"
SERVER_TTL_MS = 5_000


def group_queue(group: str) -> str:
    return f"group:{group}"


def group_of(queue: str) -> str | None:
    return queue.removeprefix("group:") if queue.startswith("group:") else None


def is_service(queue: str) -> bool:
    """What workers may offer by name. Runs of flows and webhooks are the server's own: whoever
    claimed one could end it with a result of their making.
    """
    return not queue.startswith(("group:", "flow:", "onward:"))


class Member(msgspec.Struct, frozen=True, kw_only=True):
    id: WorkerId
    transport: str
    queues: tuple[str, ...]
    slots: int
    server: str
    since: Instant
    stand_in: bool = False  # serves a queue only while nobody else does
    draining: bool = False  # takes no more work, and finishes what it has


_decode = msgspec.json.Decoder(Member).decode
SetDraining = Callable[[bool], Awaitable[None]]  # drain, or take work again; Conflict: it cannot


class Roster:
    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self.server = new_id()
        self._here: dict[WorkerId, Member] = {}
        self._set_draining_of: dict[WorkerId, SetDraining] = {}
        self._draining: set[WorkerId] = set()  # of those here
        self._all: dict[WorkerId, Member] = {}
        # By queue, how many take its work; kept with each change, for thousands may go at once.
        self._serving: Counter[str] = Counter()
        self._serving_first: Counter[str] = Counter()  # without those who stand in
        self._announcing = False
        self._watchers: list[Callable[[], None]] = []
        self._others: list[Callable[[], Awaitable[Sequence[Member]]]] = []
        self._beaten_at: Instant = 0

    def member(
        self, id: WorkerId, transport: str, queues: Sequence[str], slots: int, **more: bool
    ) -> Member:
        return Member(
            id=id,
            transport=transport,
            queues=tuple(queues),
            slots=slots,
            server=self.server,
            since=self._clock.now(),
            **more,
        )

    async def join(self, member: Member, set_draining: SetDraining | None = None) -> None:
        """Known to every server when this returns. Without `set_draining` it cannot be drained."""
        # Here before its row is there: a refresh in between would take the row for a leftover.
        self._here[member.id] = member
        self._draining.discard(member.id)
        self._set_draining_of.pop(member.id, None)
        if set_draining is not None:
            self._set_draining_of[member.id] = set_draining
        try:
            await self._write(member)
        except BaseException:
            if self._here.get(member.id) is member:
                del self._here[member.id]
            raise
        self._set(member.id, member)

    async def leave(self, member: Member) -> None:
        if self._here.get(member.id) is not member:
            return  # a newer connection has taken the name over
        del self._here[member.id]
        self._set_draining_of.pop(member.id, None)
        self._draining.discard(member.id)
        self._set(member.id, None)
        await self._backend.documents.delete(WORKER, member.id)

    async def drain(self, member: Member, *, draining: bool = True) -> Member:
        """Done when this returns; by a worker at another server within a second."""
        if member.server == self.server:
            await self._set_draining(member.id, draining)
            if member.id not in self._here:
                return member
        marked = msgspec.structs.replace(member, draining=draining)
        await self._write(marked)
        return marked

    def watch(self, watcher: Callable[[], None]) -> None:
        self._watchers.append(watcher)

    def consult(self, others: Callable[[], Awaitable[Sequence[Member]]]) -> None:
        """Members who belong to no server; asked for with each refresh."""
        self._others.append(others)

    async def serves(self, queue: str) -> bool:
        if self._known(queue):
            return True
        await self.refresh()
        return self._known(queue)

    def served_by_others(self, queue: str) -> bool:
        return self._serving_first[queue] > 0

    def members(self) -> Sequence[Member]:
        return sorted(self._all.values(), key=lambda member: member.since)

    async def refresh(self) -> None:
        free = {
            f"{member.transport}:{member.id}": member
            for others in self._others
            for member in await others()
        }
        draining = frozenset(self._draining)
        found = await self._rows()
        for member in list(self._here.values()):
            if member.id not in found:  # we were silent for long, and others took us for dead
                await self._write(self._marked(member))
        here = {id: self._marked(member) for id, member in self._here.items()}
        now = {**free, **found, **here}
        for id in [id for id, member in self._all.items() if now.get(id) != member]:
            self._set(id, None)
        for id in now.keys() - self._all.keys():
            self._set(id, now[id])
        for wish in self._wishes(found.values(), draining):
            await self._heed(wish)

    async def _rows(self) -> dict[WorkerId, Member]:
        now = self._clock.now()
        alive = {doc.key for doc in await self._backend.documents.list(SERVER, now=now)}
        alive.add(self.server)
        found: dict[WorkerId, Member] = {}
        for doc in await self._backend.documents.list(WORKER, now=now):
            member = _decode(doc.body)
            ours = member.server == self.server
            if member.id in self._here if ours else member.server in alive:
                found[member.id] = member
            else:  # its server died without a word, or it left us while the ledger was away
                await self._backend.documents.delete(WORKER, doc.key)
        return found

    def _wishes(self, rows: Iterable[Member], draining: frozenset[WorkerId]) -> Sequence[Member]:
        """Of those here, whom another server wants to drain, or not to drain any more.

        `draining` is who did before the rows were read: of whoever was changed here since, a row
        is the older word. So it is of a connection that another one under the same name replaced.
        """
        here = self._here
        return [
            row
            for row in rows
            if row.id in here
            and row.since == here[row.id].since
            and (row.id in self._draining) is (row.id in draining) is not row.draining
        ]

    async def _heed(self, wish: Member) -> None:
        try:
            await self._set_draining(wish.id, wish.draining)
        except Conflict as error:
            log.warning("a worker does not do as it is told", worker=wish.id, error=str(error))
            if wish.id in self._here:
                await self._write(self._marked(self._here[wish.id]))

    async def beat(self) -> None:
        now = self._clock.now()
        await self._backend.documents.put(
            SERVER, self.server, "{}", now=now, expires_at=now + SERVER_TTL_MS
        )
        self._beaten_at = now

    @property
    def beating(self) -> bool:
        """Whether the ledger has taken a write of ours lately."""
        return self._clock.now() - self._beaten_at < SERVER_TTL_MS

    async def run(self) -> None:
        turn = 0
        while True:
            try:
                if turn % 2 == 0:
                    await self.beat()
                await self.refresh()
            except Exception as error:
                log.warning("roster not refreshed", error=repr(error))
            turn += 1
            await asyncio.sleep(1)

    async def close(self) -> None:
        try:
            for member in list(self._here.values()):
                await self.leave(member)
            await self._backend.documents.delete(SERVER, self.server)
        except LedgerUnavailable:  # then our silence tells it, a few seconds later
            log.warning("left without signing off")

    async def _set_draining(self, id: WorkerId, draining: bool) -> None:
        set_draining = self._set_draining_of.get(id)
        if set_draining is None:
            raise Conflict(f"worker {id!r} cannot be told so from here")
        await set_draining(draining)
        if id in self._here:  # it may have hung up at once
            (self._draining.add if draining else self._draining.discard)(id)
            self._set(id, self._marked(self._here[id]))

    def _marked(self, member: Member) -> Member:
        draining = member.id in self._draining
        return member if not draining else msgspec.structs.replace(member, draining=True)

    async def _write(self, member: Member) -> None:
        await self._backend.documents.put(WORKER, member.id, encode(member), now=self._clock.now())

    def _known(self, queue: str) -> bool:
        return self._serving[queue] > 0

    def _set(self, id: WorkerId, member: Member | None) -> None:
        before = self._all.pop(id, None)
        if before is not None:
            self._count(before, -1)
        if member is not None:
            self._all[id] = member
            self._count(member, 1)
        if not self._announcing:  # once a turn, however many come and go in it
            self._announcing = True
            asyncio.get_running_loop().call_soon(self._announce)

    def _count(self, member: Member, by: int) -> None:
        counters = [self._serving] if member.stand_in else [self._serving, self._serving_first]
        for queue in member.queues if not member.draining else ():
            for counter in counters:
                counter[queue] += by
                if not counter[queue]:
                    del counter[queue]

    def _announce(self) -> None:
        self._announcing = False
        for watcher in self._watchers:
            watcher()
