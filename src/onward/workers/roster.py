"""Which workers there are, and what they serve: for people, and to refuse what no worker serves.

Never a lease. Each server writes a row for each worker connected to it; the rows count as long as
the server's own heartbeat does. A miss in the cache is looked up in the ledger before a caller is
refused. That a worker is to drain is written into its row, and read by its own server.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

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


def is_internal(queue: str) -> bool:
    """Runs of flows and webhooks are the server's own: a worker that claimed one could end it with
    any result.
    """
    return queue.startswith(("flow:", "onward:"))


def is_service(queue: str) -> bool:
    """What workers may serve by name."""
    return not is_internal(queue) and not queue.startswith("group:")


class Member(msgspec.Struct, frozen=True, kw_only=True):
    id: WorkerId
    transport: str
    queues: tuple[str, ...]
    slots: int
    server: str
    since: Instant
    stand_in: bool = False  # serves a queue only while no other worker does
    draining: bool = False  # takes no new tasks, and finishes what it has


_decode = msgspec.json.Decoder(Member).decode
SetDraining = Callable[[bool], Awaitable[None]]  # drain, or take tasks again; Conflict: it cannot


class Roster:
    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self.server = new_id()
        self._here: dict[WorkerId, Member] = {}
        self._set_draining_of: dict[WorkerId, SetDraining] = {}
        self._draining: set[WorkerId] = set()  # of those here
        self._all: dict[WorkerId, Member] = {}
        # By queue, how many serve it; updated with each change, since thousands may go at once.
        self._serving: Counter[str] = Counter()
        self._serving_first: Counter[str] = Counter()  # without stand-ins
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
        # Before its row is written: a refresh in between would delete a row of no known member.
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
            return  # a newer connection has the name
        del self._here[member.id]
        self._set_draining_of.pop(member.id, None)
        self._draining.discard(member.id)
        self._set(member.id, None)
        await self._backend.documents.delete(WORKER, member.id)

    async def drain(self, member: Member, *, draining: bool = True) -> Member:
        """Done when this returns; at another server within a second."""
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
        """Members that belong to no server; read with each refresh."""
        self._others.append(others)

    async def serves(self, queue: str) -> bool:
        if self._known(queue):
            return True
        await self.refresh()
        return self._known(queue)

    def served_by_others(self, queue: str) -> bool:
        return self._serving_first[queue] > 0

    def serving(self) -> Mapping[str, int]:
        """By queue, how many workers take its tasks; as last read."""
        return self._serving

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
            if member.id not in found:  # after a long silence of ours, others deleted its row
                await self._write(self._marked(member))
        here = {id: self._marked(member) for id, member in self._here.items()}
        now = {**free, **found, **here}
        for id in [id for id, member in self._all.items() if now.get(id) != member]:
            self._set(id, None)
        for id in now.keys() - self._all.keys():
            self._set(id, now[id])
        for row in self._changed(found.values(), draining):
            await self._apply(row)

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
            else:  # its server ended without a sign-off, or it left while the ledger did not answer
                await self._backend.documents.delete(WORKER, doc.key)
        return found

    def _changed(self, rows: Iterable[Member], draining: frozenset[WorkerId]) -> Sequence[Member]:
        """Rows of members here that another server has marked to drain, or to stop draining.

        `draining` are those that drained before the rows were read: of a member that was changed
        here since, the row is older. So is the row of a connection that a newer one has replaced.
        """
        here = self._here
        return [
            row
            for row in rows
            if row.id in here
            and row.since == here[row.id].since
            and (row.id in self._draining) == (row.id in draining)
            and (row.id in draining) != row.draining
        ]

    async def _apply(self, row: Member) -> None:
        try:
            await self._set_draining(row.id, row.draining)
        except Conflict as error:
            log.warning("a worker cannot be drained", worker=row.id, error=str(error))
            if row.id in self._here:
                await self._write(self._marked(self._here[row.id]))

    async def beat(self) -> None:
        now = self._clock.now()
        await self._backend.documents.put(
            SERVER, self.server, "{}", now=now, expires_at=now + SERVER_TTL_MS
        )
        self._beaten_at = now

    @property
    def beating(self) -> bool:
        """Whether the ledger has accepted our last heartbeat."""
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
        except LedgerUnavailable:  # without heartbeats the rows expire a few seconds later
            log.warning("not signed off")

    async def _set_draining(self, id: WorkerId, draining: bool) -> None:
        set_draining = self._set_draining_of.get(id)
        if set_draining is None:
            raise Conflict(f"worker {id!r} cannot be drained from here")
        await set_draining(draining)
        if id in self._here:  # it may have disconnected meanwhile
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
        if not self._announcing:  # once in a turn of the loop, however many come and go
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
