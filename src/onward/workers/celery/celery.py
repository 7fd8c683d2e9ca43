"""The application that `celery -A onward.workers.celery` finds: its two tasks, and its processes.

Messages are acknowledged as they are taken, and Celery retries nothing: both are the ledger's.
"""

from __future__ import annotations

import os
from socket import gethostname
from typing import Any, NoReturn

import structlog
from celery import signals
from celery.concurrency.prefork import TaskPool as Prefork
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from pydantic import ValidationError

from onward.core.errors import LedgerUnavailable, OnwardError
from onward.logs import speak_through_logging
from onward.settings import Settings
from onward.workers.celery import hiring
from onward.workers.celery.crew import TRANSPORT, Crew
from onward.workers.celery.host import Host
from onward.workers.celery.wiring import (
    DEFAULT_QUEUE,
    SWEEP,
    WAKE,
    celery_app,
    ledger_url,
    wake,
    wake_queue,
)
from onward.workers.ledger.worker import Seating

log = structlog.get_logger("onward.celery")

MOST_WAKEUPS = 16  # that lie in the broker for one queue


def _stop(message: str, hint: str | None = None) -> NoReturn:
    raise SystemExit(f"onward: {message}" + (f"\n  {hint}" if hint else ""))


def _settings() -> Settings:
    try:
        settings = Settings()
        ledger_url(settings)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the settings"
        _stop(f"{where} cannot be read: {first['msg']}")
    except OnwardError as error:
        _stop(str(error), error.hint)
    return settings


settings = _settings()
app = celery_app(settings)


class _Here:
    """This process: its host, if it runs tasks. None is there before a fork."""

    def __init__(self) -> None:
        self._host: Host | None = None
        self._pid = 0
        self.main = 0  # process id of the worker that others are forked from
        self.taken: frozenset[str] | None = None  # queues of Celery that messages are taken from

    @property
    def host(self) -> Host:
        if self._host is None or self._pid != os.getpid():
            self.open(f"celery@{gethostname()}")
        assert self._host is not None  # noqa: S101 narrows for the type checker
        return self._host

    def open(self, node: str, slots: int = 1) -> None:
        services = hiring.services(settings)
        queues = [name for name in services if self.taken is None or wake_queue(name) in self.taken]
        self._pid = os.getpid()
        url, name = ledger_url(settings), f"{node}/{self._pid}"
        seat = Seating(name=name, transport=TRANSPORT, queues=tuple(queues), slots=slots)
        self._host = Host(lambda: Crew(settings, url, services, seat))

    def close(self, **_: Any) -> None:
        host, self._host = self._host, None
        if host is not None and self._pid == os.getpid():
            host.close(settings.drain_ms)


_here = _Here()


def _work(queue: str) -> None:
    """Carry out what waits in a queue of the ledger."""
    try:
        _here.host.work(queue, lambda: _wake(queue))
    except LedgerUnavailable as error:
        log.warning("no work done", queue=queue, error=str(error))


def _sweep() -> None:
    """Move what is due: retries, leases, ages; and wake workers for what waits."""
    try:
        waiting = _here.host.sweep()
    except LedgerUnavailable as error:
        log.warning("not swept", error=str(error))
        return
    for queue, count in waiting.items():
        for _ in range(min(count, MOST_WAKEUPS) - _lying(queue)):
            _wake(queue)


def _wake(queue: str) -> None:
    try:
        wake(app, queue)
    except OperationalError as error:  # the next sweep tries again
        log.warning("nobody woken", queue=queue, error=repr(error))


def _lying(queue: str) -> int:
    """How many wake-ups nobody has taken yet: more would help nobody."""
    with app.producer_or_acquire() as producer:
        declared = app.amqp.queues[wake_queue(queue)].queue_declare(channel=producer.channel)
    return int(declared.message_count)


app.task(name=WAKE)(_work)
app.task(name=SWEEP)(_sweep)


def _serve(conf: Any, **_: Any) -> None:
    """Wake-ups are taken for the services we have, unless -Q says otherwise."""
    try:
        served = hiring.services(settings)
    except OnwardError as error:
        _stop(str(error), error.hint)
    # Each with an exchange of its own: on a common one every message would go to all of them.
    conf.task_queues = [
        Queue(name, Exchange(name), routing_key=name)  # type: ignore[no-untyped-call]
        for name in (DEFAULT_QUEUE, *map(wake_queue, served))
    ]


def _look_around(sender: Any, **_: Any) -> None:
    if any(green in str(sender.pool_cls) for green in ("gevent", "eventlet")):
        _stop("green threads cannot host an event loop", "use --pool prefork, threads or solo")
    _here.main = os.getpid()
    _here.taken = frozenset(app.amqp.queues.consume_from)


def _speak(**_: Any) -> None:
    """Our lines among Celery's, with its levels and its format."""
    speak_through_logging()


def _forked(sender: Any = None, **_: Any) -> None:
    if os.getpid() != _here.main:  # solo says so, too, and before beat is forked from it
        _here.open(str(sender))


def _ready(sender: Any, **_: Any) -> None:
    # Solo and threads run tasks in this process; with prefork nothing may be open here.
    if not isinstance(sender.pool, Prefork):
        _here.open(str(sender.hostname), slots=getattr(sender.pool, "limit", None) or 1)


signals.celeryd_init.connect(_serve)
signals.worker_init.connect(_look_around)
signals.after_setup_logger.connect(_speak)
signals.worker_process_init.connect(_forked)
signals.worker_ready.connect(_ready)
signals.worker_process_shutdown.connect(_here.close)
signals.worker_shutdown.connect(_here.close)
