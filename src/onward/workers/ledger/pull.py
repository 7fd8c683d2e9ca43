"""A worker that claims from the ledger itself: no server between it and its tasks.

It shares the ledger with the servers, so it goes on while they are restarted, all of them; that is
also why it needs a ledger that processes can share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from onward.core.errors import Conflict, Invalid, NotLetIn
from onward.core.task import Claimed
from onward.services.function import SAYING_NO, Service
from onward.settings import Settings
from onward.workers.ledger.worker import Outpost, Seating
from onward.workers.roster import group_queue
from onward.workers.runner import Runner

log = structlog.get_logger("onward.worker")

TRANSPORT = "ledger"


class LedgerLine:
    """How tasks come from the ledger to the functions of one process, and answers go back."""

    def __init__(
        self,
        settings: Settings,
        *,
        name: str,
        slots: int,
        services: Mapping[str, Service],
        groups: Mapping[str, Service],
        queues: Sequence[str] = (),
        on_drain: Callable[[], None],
    ) -> None:
        queues = (*dict.fromkeys((*services, *queues)), *map(group_queue, groups))
        seating = Seating(name=name, transport=TRANSPORT, queues=queues, slots=slots)
        self._post = Outpost(
            settings, settings.ledger, seating, services, groups=groups, threads=slots
        )
        self._runner = Runner(
            self._post.dispatcher,
            self._post.executor,
            worker=name,
            queues=queues,
            slots=slots,
            lease_ms=settings.lease_ms,
            keeps=self._post.executor.in_thread,
        )
        self._post.executor.on_failure = _told
        self._on_drain = on_drain
        self._signed_on = False

    @property
    def connected(self) -> bool:
        return self._signed_on and self._post.roster.beating

    async def serve(self) -> None:
        post, dispatcher = self._post, self._post.dispatcher
        post.open()
        try:
            await post.sign_on(self._obey, final=(Invalid, NotLetIn))
            post.backend.bell.attach(dispatcher)
            post.background.every(1, dispatcher.reread)
            post.background.every(1, dispatcher.pressure.weigh)
            post.background.run(post.alarm.run())
            self._runner.start()
            self._signed_on = True
            log.info(
                "signed on",
                worker=self._runner.worker_slots.worker,
                serving=self._runner.worker_slots.queues,
            )
            await post.roster.run()
        finally:
            self._signed_on = False
            await post.close()

    async def drain(self, grace_ms: int) -> None:
        await self._runner.drain(grace_ms)
        await self._post.dispatcher.finish(grace_ms)

    async def _obey(self, draining: bool) -> None:
        if not draining:
            raise Conflict("it is leaving, and cannot be called back")
        self._runner.stop_claiming()
        self._on_drain()


def _told(service: Service, task: Claimed, error: BaseException) -> None:
    """This process is its author's own: a fault in a handler is shown with where it is."""
    trace = None if isinstance(error, SAYING_NO) else error
    name, kind = service.name, type(error).__name__
    log.warning(
        "failed", service=name, error=kind, task=task.id, attempt=task.attempt, exc_info=trace
    )
