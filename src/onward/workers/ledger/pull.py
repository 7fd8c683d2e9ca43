"""A worker that claims from the ledger itself: no server stands between it and its tasks.

It shares the ledger with the servers, so it goes on while all of them are restarted; that is also
why it needs a ledger that processes can share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from onward.client.failures import MEANT
from onward.client.service import Service
from onward.core.errors import Conflict, Invalid, NotLetIn
from onward.core.task import Claimed
from onward.services.catalog import RENEW_MS
from onward.settings import Settings
from onward.workers.ledger.worker import LedgerWorker, Membership
from onward.workers.roster import group_queue
from onward.workers.runner import Runner

log = structlog.get_logger("onward.worker")


class LedgerTransport:
    """How tasks come from the ledger to the functions of one process, and answers go back."""

    def __init__(  # noqa: PLR0913 all but the settings by keyword
        self,
        settings: Settings,
        *,
        name: str,
        slots: int,
        most: Mapping[str, int],
        services: Mapping[str, Service],
        groups: Mapping[str, Service],
        queues: Sequence[str] = (),
        on_drain: Callable[[], None],
    ) -> None:
        queues = (*dict.fromkeys((*services, *queues)), *map(group_queue, groups))
        membership = Membership(name, "ledger", queues, slots)
        self._worker = LedgerWorker(
            settings, settings.ledger, membership, services, groups=groups, threads=slots
        )
        self._runner = Runner(
            self._worker.dispatcher,
            self._worker.executor,
            worker=name,
            queues=queues,
            slots=slots,
            most=most,
            keeps=self._worker.executor.in_thread,
        )
        self._worker.executor.on_failure = _log_failure
        self._on_drain = on_drain
        self._signed_on = False

    @property
    def connected(self) -> bool:
        return self._signed_on and self._worker.roster.beating

    async def serve(self) -> None:
        worker, dispatcher = self._worker, self._worker.dispatcher
        worker.open()
        try:
            await worker.sign_on(self._set_draining, final=(Invalid, NotLetIn))
            worker.backend.bell.attach(dispatcher)
            worker.background.every(1, dispatcher.reread)
            worker.background.every(1, dispatcher.pressure.weigh)
            worker.background.every(RENEW_MS / 1000, worker.catalog.renew)
            worker.background.run(worker.alarm.run())
            self._runner.start()
            self._signed_on = True
            log.info(
                "signed on",
                worker=self._runner.worker_slots.worker,
                serving=self._runner.worker_slots.queues,
            )
            await worker.roster.run()
        finally:
            self._signed_on = False
            await worker.close()

    async def drain(self, grace_ms: int) -> None:
        await self._runner.drain(grace_ms)
        await self._worker.dispatcher.finish(grace_ms)

    async def _set_draining(self, draining: bool) -> None:
        if not draining:
            raise Conflict("the worker is ending, and cannot take tasks again")
        self._runner.stop_claiming()
        self._on_drain()


def _log_failure(service: Service, task: Claimed, error: BaseException) -> None:
    """The process belongs to the author of the handler: a bug is logged with its traceback."""
    trace = None if isinstance(error, MEANT) else error
    name, kind = service.name, type(error).__name__
    log.warning(
        "failed", service=name, error=kind, task=task.id, attempt=task.attempt, exc_info=trace
    )
