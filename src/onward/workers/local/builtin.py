"""The worker inside the server: runs the shipped services, and stands in for groups (R-3)."""

from __future__ import annotations

from collections.abc import Mapping

from onward.client.service import Service
from onward.core.dispatch import Dispatcher
from onward.workers.local.executor import LocalExecutor
from onward.workers.roster import Roster, group_queue
from onward.workers.runner import Runner


class BuiltinWorker:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        services: Mapping[str, Service],
        groups: Mapping[str, Service],
        *,
        slots: int,
    ) -> None:
        self._roster = roster
        self._services = services
        self._slots = slots
        self._own = list(services)
        self._groups = [group_queue(name) for name in groups]
        self._executor = LocalExecutor(dispatcher, services, groups=groups, threads=slots)
        self._runner = Runner(
            dispatcher,
            self._executor,
            worker=f"builtin-{roster.server[-12:]}",
            queues=self._own + self._groups,
            slots=slots,
            keeps=self._executor.in_thread,
        )

    async def start(self) -> None:
        worker, queues = self._runner.worker_slots.worker, self._own + self._groups
        await self._roster.join(
            self._roster.member(worker, "local", queues, self._slots, stand_in=True),
            self._set_draining,
        )
        self._roster.watch(self._stand_in)
        self._runner.start()
        self._stand_in()

    def _stand_in(self) -> None:
        """Serves a group only while no other worker does."""
        free = [queue for queue in self._groups if not self._roster.served_by_others(queue)]
        if self._runner.worker_slots.queues != (*self._own, *free):
            self._runner.serve(self._own + free)

    async def _set_draining(self, draining: bool) -> None:
        """It stays in its server, idle, until it takes tasks again."""
        if draining:
            self._runner.stop_claiming()
        else:
            self._runner.claim_again()

    async def drain(self, grace_ms: int) -> None:
        await self._runner.drain(grace_ms)

    async def close(self) -> None:
        self._executor.close()
        for service in self._services.values():
            await service.close()
