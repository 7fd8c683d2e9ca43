"""A process that works on a ledger and is no server: its row in the roster and its Dispatcher.

When it claims is decided elsewhere: for each wake-up of Celery (celery/host.py), or all the time
(pull.py). Leases, retries and endings are the Dispatcher's, as in a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import structlog

from onward.background import Background
from onward.client.service import Service
from onward.core.alarm import Alarm
from onward.core.clock import SharedClock
from onward.core.dispatch import Dispatcher
from onward.core.policy import Profile, kept_at_most
from onward.errors import OnwardError
from onward.ledgers import open_backend
from onward.services.catalog import Catalog, Declared
from onward.settings import Settings
from onward.workers.local.executor import LocalExecutor
from onward.workers.roster import Roster, SetDraining
from onward.workers.task_logs import TaskLogs

log = structlog.get_logger("onward.ledger_worker")

AGAIN_S = 1.0
SWEEP_MS = 1_000  # servers sweep ten times as often; this is for when none runs


class Membership(NamedTuple):
    """The worker's row in the roster."""

    name: str
    transport: str
    queues: Sequence[str]
    slots: int


class LedgerWorker:
    def __init__(
        self,
        settings: Settings,
        url: str,
        membership: Membership,
        services: Mapping[str, Service],
        *,
        groups: Mapping[str, Service] | None = None,
        threads: int,  # for plain functions
    ) -> None:
        self._membership = membership
        self._services = services
        self._groups = groups or {}
        self.backend = open_backend(
            url,
            prefix=settings.redis_prefix,
            volatile=settings.redis_volatile,
            **settings.encryption(),
        )
        self.clock = SharedClock(lambda: self.backend.ahead_ms)
        self.dispatcher = Dispatcher(
            self.backend,
            _profiles(settings),
            self.clock,
            breaker=settings.breaker(),
            retry_share=settings.retry_share(),
        )
        self.catalog = Catalog(self.backend, self.clock)
        self.catalog.on_bounds = self.dispatcher.pressure.limits.take
        self.alarm = Alarm(self.dispatcher, every_ms=SWEEP_MS)
        self.roster = Roster(self.backend, self.clock)
        self.task_logs = TaskLogs(self.backend.documents, self.clock, on=settings.task_logs == "on")
        self.executor = LocalExecutor(
            self.dispatcher,
            services,
            groups=self._groups,
            threads=threads,
            logs=self.task_logs,
        )
        self.background = Background(self.dispatcher.troubles)

    def open(self) -> None:
        """Leases are renewed from here on, also before this worker is in the roster."""
        self.background.every(self.dispatcher.lease_ms / 3000, self.dispatcher.beat)
        self.background.every(1, self.backend.maintain)

    async def sign_on(
        self, set_draining: SetDraining | None = None, *, final: tuple[type[OnwardError], ...] = ()
    ) -> None:
        """Known to every server when this returns; waits for a ledger that does not answer."""
        while True:
            try:
                await self._sign_on(set_draining)
            except final:
                raise
            except Exception as error:
                log.warning("not signed on", error=repr(error))
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def close(self) -> None:
        await self.background.close()
        self.executor.close()
        await self.task_logs.close()
        for service in (*self._services.values(), *self._groups.values()):
            await service.close()
        try:
            await self.roster.close()
        except OnwardError as error:  # without heartbeats, its row expires
            log.warning("not signed off", error=str(error))
        await self.backend.close()

    async def _sign_on(self, set_draining: SetDraining | None) -> None:
        await self.backend.maintain()
        self.clock.adopt()
        await self._declare()
        await self.weigh()  # before a claim: what is paused or at its limit is not claimed
        await self.roster.beat()
        await self.roster.join(self.roster.member(*self._membership), set_draining)

    async def weigh(self) -> None:
        """What is to be gone easy on, as every process on this ledger knows it."""
        await self.catalog.renew()
        await self.dispatcher.pressure.weigh()

    async def _declare(self) -> None:
        for service in self._services.values():
            try:
                await self.catalog.declare(msgspec.convert(service.declaration(), Declared))
            except OnwardError as error:
                log.warning("not declared", service=service.name, error=str(error))


def _profiles(settings: Settings) -> Mapping[str, Profile]:
    found = settings.profiles()
    return kept_at_most(found, settings.redis_keep_ms) if settings.archive else found
