"""Who is there, and what they serve. A hint for people and for "is anybody there?", never a lease.

Each server writes the workers connected to it; its rows count as long as its own heartbeat does. A
miss in the cache is looked up in the ledger before anybody is told that there is no worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from onward.core.clock import Clock
from onward.core.contract import Backend
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


_decode = msgspec.json.Decoder(Member).decode


class Roster:
    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self.server = new_id()
        self._here: dict[WorkerId, Member] = {}
        self._all: dict[WorkerId, Member] = {}
        self._served: set[str] = set()
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

    async def join(self, member: Member) -> None:
        """Known to every server when this returns."""
        # Here before its row is there: a refresh in between would take the row for a leftover.
        self._here[member.id] = member
        try:
            await self._write(member)
        except BaseException:
            if self._here.get(member.id) is member:
                del self._here[member.id]
            raise
        self._all[member.id] = member
        self._changed()

    async def leave(self, member: Member) -> None:
        if self._here.get(member.id) is not member:
            return  # a newer connection has taken the name over
        del self._here[member.id]
        self._all.pop(member.id, None)
        self._changed()
        await self._backend.documents.delete(WORKER, member.id)

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
        return any(queue in member.queues for member in self._all.values() if not member.stand_in)

    def members(self) -> Sequence[Member]:
        return sorted(self._all.values(), key=lambda member: member.since)

    async def refresh(self) -> None:
        free = {
            f"{member.transport}:{member.id}": member
            for others in self._others
            for member in await others()
        }
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
        for member in list(self._here.values()):
            if member.id not in found:  # we were silent for long, and others took us for dead
                await self._write(member)
        before, self._all = self._all, {**free, **found, **self._here}
        if before != self._all:
            self._changed()

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
        for member in list(self._here.values()):
            await self.leave(member)
        await self._backend.documents.delete(SERVER, self.server)

    async def _write(self, member: Member) -> None:
        await self._backend.documents.put(WORKER, member.id, encode(member), now=self._clock.now())

    def _known(self, queue: str) -> bool:
        return queue in self._served

    def _changed(self) -> None:
        self._served = {queue for member in self._all.values() for queue in member.queues}
        for watcher in self._watchers:
            watcher()
