"""Workers that the server calls: which are registered, their last heartbeats, and their loads.

Registrations are documents in the ledger, shared by all servers; the roster reads here which are
live. Nothing here calls a worker.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Backend, Document
from onward.core.errors import Conflict, NotFound, TooBusy
from onward.core.task import Instant, WorkerId, encode, new_id
from onward.workers.http.address import Hosts
from onward.workers.roster import Member, Roster

KIND = "http_worker"
TRANSPORT = "http"
FORGOTTEN_AFTER = 20  # times the TTL in silence
MOST = 1_000
TRIES = 5


class HttpWorker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: WorkerId
    url: str
    host: str
    addresses: tuple[str, ...]  # of the host: looked up when it registered, never again
    services: tuple[str, ...]
    since: Instant
    beat_at: Instant
    load: float = 0
    slots: int | None = None  # how many calls it takes at a time, if it registered a number
    draining: bool = False  # no longer called; the reply to its next heartbeat says so
    owner: str | None = None  # the id of the key that registered it
    secret: str = ""  # with keys: calls to it are signed with this


_decode = msgspec.json.Decoder(HttpWorker).decode


class Registry:
    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        roster: Roster,
        hosts: Hosts,
        *,
        ttl_ms: int,
        slots: int,
        admits: Callable[[str | None], bool] = lambda _: True,
    ) -> None:
        """`admits`: whether a worker with this key, or without one, may still be called."""
        self._documents = backend.documents
        self._clock = clock
        self._roster = roster
        self._hosts = hosts
        self._ttl_ms = ttl_ms
        self._slots = slots
        self._admits = admits
        self._known: dict[WorkerId, HttpWorker] = {}
        self._by_service: dict[str, dict[WorkerId, HttpWorker]] = {}
        self._watchers: list[Callable[[], None]] = []
        self._allocated: dict[WorkerId, int] = {}
        self._turn = 0
        roster.consult(self.members)

    # What workers send.

    async def register(
        self,
        url: str,
        services: Sequence[str],
        *,
        id: WorkerId | None = None,
        load: float = 0,
        slots: int | None = None,
        owner: str | None = None,
    ) -> HttpWorker:
        """Known to this server when this returns, and to the others within a second."""
        pinned = await self._hosts.pin(url)
        known = await self.all()
        # Without an id it is known by its URL: else each restart would leave a dead registration.
        same = next((worker.id for worker in known if worker.url == pinned.url), None)
        worker_id = id or same or new_id()
        if len(known) >= MOST and worker_id not in self._known:
            raise TooBusy(f"{MOST} workers are registered already")
        now = self._clock.now()
        before = self._known.get(worker_id)
        if before is not None and before.owner != owner:
            # Else a key could put its own URL in the place of another key's worker.
            if self._admits(before.owner):
                raise Conflict(f"another key's worker is registered as {worker_id!r}")
            before = None  # of a dead key: neither its secret nor its place goes over
        worker = HttpWorker(
            id=worker_id,
            url=pinned.url,
            host=pinned.host,
            addresses=pinned.addresses,
            services=tuple(dict.fromkeys(services)),
            since=before.since if before is not None else now,
            beat_at=now,
            load=load,
            slots=slots,
            owner=owner,
            # The same as before: a call that is on its way was signed with it.
            secret="" if owner is None else (before and before.secret) or secrets.token_hex(32),
        )
        await self._put(worker)
        await self._roster.refresh()
        return worker

    async def heartbeat(
        self, id: WorkerId, load: float | None, owner: str | None = None
    ) -> HttpWorker:
        now = self._clock.now()

        def beaten(worker: HttpWorker) -> HttpWorker:
            _check_owner(worker, owner)
            known = worker.load if load is None else load
            return msgspec.structs.replace(worker, beat_at=now, load=known)

        before, worker = await self._change(id, beaten)
        if not self.alive(before):
            await self._roster.refresh()
        return worker

    async def drain(self, id: WorkerId, *, draining: bool = True) -> None:
        """Stops calls, or allows them again: here at once, at other servers within a second."""

        def marked(worker: HttpWorker) -> HttpWorker:
            return msgspec.structs.replace(worker, draining=draining)

        await self._change(id, marked)
        await self._roster.refresh()

    async def leave(self, id: WorkerId, owner: str | None = None) -> None:
        found = await self._documents.get(KIND, id, now=self._clock.now())
        if found is not None:
            _check_owner(_decode(found.body), owner)
        if found is None or not await self._documents.delete(KIND, id):
            raise NotFound(f"no worker {id!r} is registered")
        await self._roster.refresh()

    async def _change(
        self, id: WorkerId, change: Callable[[HttpWorker], HttpWorker]
    ) -> tuple[HttpWorker, HttpWorker]:
        """A registration, before and after."""
        for _ in range(TRIES):
            found = await self._documents.get(KIND, id, now=self._clock.now())
            if found is None:
                raise NotFound(f"no worker {id!r} is registered; register again")
            before = _decode(found.body)
            after = change(before)
            # It may register again between the read and this write: then its new URL must stay.
            if await self._put(after, expect=found.version):
                return before, after
        raise Conflict("the registration keeps changing; try again")

    # What the server reads.

    async def all(self) -> Sequence[HttpWorker]:
        """All that are registered, read now."""
        documents = await self._documents.list(KIND, now=self._clock.now())
        self._learn(_decode(document.body) for document in documents)
        return list(self._known.values())

    async def allocate(self, service: str) -> HttpWorker:
        """The least loaded; of equals, the one that was allocated longest ago."""
        await self.all()
        live = self.live(service)
        if not live:
            raise NotFound(f"no worker for {service!r} is online")
        chosen = min(live, key=lambda worker: (worker.load, self._allocated.get(worker.id, 0)))
        self._turn += 1
        self._allocated = {w.id: self._allocated.get(w.id, 0) for w in self._known.values()}
        self._allocated[chosen.id] = self._turn
        return chosen

    def live(self, service: str) -> Sequence[HttpWorker]:
        """As far as this server knows; without those that are silent or drain."""
        offering = self._by_service.get(service, {})
        return [one for one in offering.values() if self._heard(one) and not one.draining]

    def alive(self, worker: HttpWorker) -> bool:
        return self._heard(worker) and self._hosts.admit(worker.host, worker.addresses)

    def all_live(self) -> Sequence[HttpWorker]:
        return [one for one in self._known.values() if self.alive(one) and not one.draining]

    def slots_of(self, worker: HttpWorker) -> int:
        return worker.slots or self._slots

    def watch(self, watcher: Callable[[], None]) -> None:
        """Called whenever a worker may have come or gone, and at least once a second."""
        self._watchers.append(watcher)

    async def members(self) -> Sequence[Member]:
        await self.all()
        for watcher in self._watchers:
            watcher()
        return [
            Member(
                id=worker.id,
                transport=TRANSPORT,
                queues=worker.services,
                slots=self.slots_of(worker),
                server=self._roster.server,
                since=worker.since,
                draining=worker.draining,
            )
            for worker in self._known.values()
            if self.alive(worker)
        ]

    async def _put(self, worker: HttpWorker, expect: int | None = None) -> Document | None:
        now = self._clock.now()
        put = await self._documents.put(
            KIND,
            worker.id,
            encode(worker),
            now=now,
            expect=expect,
            expires_at=now + FORGOTTEN_AFTER * self._ttl_ms,
        )
        if put is not None:
            self._known[worker.id] = worker
            for offering in self._by_service.values():
                if worker.id in offering:
                    offering[worker.id] = worker
        return put

    def _heard(self, worker: HttpWorker) -> bool:
        in_time = self._clock.now() - worker.beat_at < self._ttl_ms
        return in_time and self._admits(worker.owner)

    def _learn(self, workers: Iterable[HttpWorker]) -> None:
        self._known = {worker.id: worker for worker in workers}
        self._by_service = {}
        for worker in self._known.values():
            if self._hosts.admit(worker.host, worker.addresses):
                for service in worker.services:
                    self._by_service.setdefault(service, {})[worker.id] = worker


def _check_owner(worker: HttpWorker, owner: str | None) -> None:
    """To another key it is not there."""
    if worker.owner != owner:
        raise NotFound(f"no worker {worker.id!r} is registered; register again")
