"""The application that `celery -A onward.workers.celery` loads: its two tasks, and its processes.

Messages are acknowledged when they are read, and Celery retries nothing: the ledger does both.
"""

from __future__ import annotations

import os
from socket import gethostname
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
from celery import signals
from celery.concurrency.prefork import TaskPool as Prefork
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from pydantic import ValidationError

from onward.core.errors import LedgerUnavailable
from onward.errors import OnwardError
from onward.logs import speak_through_logging
from onward.settings import Settings, as_given
from onward.tracing import worker_spans
from onward.workers.celery.host import TRANSPORT, CeleryHost, HostThread
from onward.workers.celery.services import services_of
from onward.workers.celery.wiring import (
    DEFAULT_QUEUE,
    SWEEP,
    WAKE,
    celery_app,
    ledger_url,
    wake,
    wake_queue,
)
from onward.workers.ledger.worker import Membership

if TYPE_CHECKING:
    from onward.tracing.exporting import WorkerSpans

log = structlog.get_logger("onward.celery")

MOST_WAKEUPS = 16  # in the broker at a time, for one queue


def _stop(message: str, hint: str | None = None) -> NoReturn:
    raise SystemExit(f"onward: {message}" + (f"\n  {hint}" if hint else ""))


def _settings() -> Settings:
    try:
        settings = Settings()
        ledger_url(settings)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name, *rest = [str(part) for part in first["loc"]] or ["the settings"]
        where = ".".join([as_given(name), *rest])
        _stop(f"{where} cannot be read: {first['msg']}")
    except OnwardError as error:
        _stop(str(error), error.hint)
    return settings


settings = _settings()
app = celery_app(settings)


class _Process:
    """This process: its host, if it runs tasks. There is none before a fork."""

    def __init__(self) -> None:
        self._host: HostThread | None = None
        self._spans: WorkerSpans | None = None
        self._pid = 0
        self.main = 0  # process id of the worker that others are forked from
        self.reads: frozenset[str] | None = None  # the Celery queues that this worker reads

    @property
    def host(self) -> HostThread:
        if self._host is None or self._pid != os.getpid():
            self.open(f"celery@{gethostname()}")
        assert self._host is not None  # noqa: S101 narrows for the type checker
        return self._host

    def open(self, node: str, slots: int = 1) -> None:
        services = services_of(settings)
        queues = [name for name in services if self.reads is None or wake_queue(name) in self.reads]
        self._pid = os.getpid()
        self._spans = worker_spans()
        url, name = ledger_url(settings), f"{node}/{self._pid}"
        membership = Membership(name, TRANSPORT, queues, slots)
        self._host = HostThread(lambda: CeleryHost(settings, url, membership, services))

    def close(self, **_: Any) -> None:
        host, self._host = self._host, None
        if host is not None and self._pid == os.getpid():
            host.close(settings.drain_ms)
            if self._spans is not None:
                self._spans.close()


_process = _Process()


def _work(queue: str) -> None:
    """Runs what waits in a queue of the ledger."""
    try:
        _process.host.work(queue, lambda: _wake(queue))
    except LedgerUnavailable as error:
        log.warning("nothing claimed", queue=queue, error=str(error))


def _sweep() -> None:
    """Moves what is due (retries, leases, ages), and wakes workers for what waits."""
    try:
        waiting = _process.host.sweep()
    except LedgerUnavailable as error:
        log.warning("not swept", error=str(error))
        return
    for queue, count in waiting.items():
        for _ in range(min(count, MOST_WAKEUPS) - _unread(queue)):
            _wake(queue)


def _wake(queue: str) -> None:
    try:
        wake(app, queue)
    except OperationalError as error:  # the next sweep tries again
        log.warning("no worker woken", queue=queue, error=repr(error))


def _unread(queue: str) -> int:
    """How many wake-ups are in the broker: more of them would change nothing."""
    with app.producer_or_acquire() as producer:
        declared = app.amqp.queues[wake_queue(queue)].queue_declare(channel=producer.channel)
    return int(declared.message_count)


app.task(name=WAKE)(_work)
app.task(name=SWEEP)(_sweep)


def _serve(conf: Any, **_: Any) -> None:
    """Reads the wake-ups of the services that are here, unless -Q names others."""
    try:
        served = services_of(settings)
    except OnwardError as error:
        _stop(str(error), error.hint)
    # Each has an exchange of its own: a common one would send every message to all of them.
    conf.task_queues = [
        Queue(name, Exchange(name), routing_key=name)  # type: ignore[no-untyped-call]
        for name in (DEFAULT_QUEUE, *map(wake_queue, served))
    ]


def _check_pool(sender: Any, **_: Any) -> None:
    if any(green in str(sender.pool_cls) for green in ("gevent", "eventlet")):
        _stop("green threads cannot host an event loop", "use --pool prefork, threads or solo")
    _process.main = os.getpid()
    _process.reads = frozenset(app.amqp.queues.consume_from)


def _log_as_celery(**_: Any) -> None:
    """Logs go to Celery's logger, with its levels and its format."""
    speak_through_logging()


def _forked(sender: Any = None, **_: Any) -> None:
    if os.getpid() != _process.main:  # solo sends this signal, too, and before beat is forked
        _process.open(str(sender))


def _ready(sender: Any, **_: Any) -> None:
    # Solo and threads run tasks in this process; with prefork nothing may be open here.
    if not isinstance(sender.pool, Prefork):
        _process.open(str(sender.hostname), slots=getattr(sender.pool, "limit", None) or 1)


signals.celeryd_init.connect(_serve)
signals.worker_init.connect(_check_pool)
signals.after_setup_logger.connect(_log_as_celery)
signals.worker_process_init.connect(_forked)
signals.worker_ready.connect(_ready)
signals.worker_process_shutdown.connect(_process.close)
signals.worker_shutdown.connect(_process.close)
