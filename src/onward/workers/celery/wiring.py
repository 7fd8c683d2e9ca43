"""How Celery is set up, for servers that send wake-ups and for workers that read them."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import parse_qsl, urlencode

from celery import Celery

from onward.core.errors import Invalid
from onward.settings import Settings
from onward.urls import shown

WAKE = "onward.wake"
SWEEP = "process_scheduled_tasks"
DEFAULT_QUEUE = "onward"
STALE_S = 60  # an unread wake-up is dropped after this: others have come since

REDIS = ("redis://", "rediss://", "unix://")


def ledger_url(settings: Settings) -> str:
    """The Redis that holds the tasks: ONWARD_LEDGER, or REDIS_URL if that is not set."""
    named = "ledger" in settings.model_fields_set
    url = settings.ledger if named or settings.redis is None else settings.redis
    if not url.startswith(REDIS):
        raise Invalid(
            f"Celery workers need the ledger on Redis, and ONWARD_LEDGER is {shown(url)}",
            hint="set ONWARD_LEDGER=redis://127.0.0.1:6379/0, for the server as well",
        )
    return url


def wake_queue(queue: str) -> str:
    """The Celery queue of a queue's wake-ups: workers read those of what they serve."""
    return f"{DEFAULT_QUEUE}.{queue}"


def celery_app(settings: Settings, **options: Any) -> Celery:
    broker = settings.celery_broker_url or _as_kombu(ledger_url(settings))
    app = Celery("onward", set_as_current=False)
    app.conf.update(
        broker_url=broker,
        broker_use_ssl={"ssl_cert_reqs": ssl.CERT_REQUIRED}
        if broker.startswith("rediss://")
        else None,
        # Apart from the ledger's keys, and from the keys of another Celery on the same Redis.
        broker_transport_options={
            "global_keyprefix": f"{settings.redis_prefix}onward:celery:",
            **options,
        },
        broker_connection_retry_on_startup=True,
        result_backend=settings.celery_result_backend,
        task_ignore_result=True,  # the ledger has the results
        task_store_errors_even_if_ignored=False,
        task_default_queue=DEFAULT_QUEUE,
        task_create_missing_queues=True,
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        # In memory: it holds one interval, and a file would be left wherever beat is started.
        beat_scheduler="celery.beat:Scheduler",
        beat_schedule={
            "process-scheduled-tasks": {"task": SWEEP, "schedule": 1.0, "options": {"expires": 5}}
        },
    )
    return app


def wake(app: Celery, queue: str, **options: Any) -> None:
    """Blocks until the broker has the message."""
    app.send_task(WAKE, (queue,), queue=wake_queue(queue), expires=STALE_S, retry=False, **options)


def _as_kombu(url: str) -> str:
    """Kombu writes the URL of a unix socket in another way."""
    scheme, _, rest = url.partition("://")
    if scheme != "unix":
        return url
    path, _, query = rest.partition("?")
    options = [
        ("virtual_host" if name == "db" else name, value) for name, value in parse_qsl(query)
    ]
    return f"redis+socket://{path}" + (f"?{urlencode(options)}" if options else "")
