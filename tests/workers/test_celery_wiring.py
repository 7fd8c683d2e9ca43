"""What a Celery process is made of: its services, its ledger, its broker."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import Celery

from onward import Worker
from onward.client.service import Service
from onward.core.errors import Invalid
from onward.settings import Settings
from onward.workers.celery import wiring
from onward.workers.celery.services import services_of
from onward.workers.celery.wiring import celery_app, ledger_url

pytestmark = pytest.mark.contract("S3-13")


class PlainlyNothing:
    """A context for a function that asks nothing of it."""

    task_id = key = "t"
    attempt = 1
    cancelled = False
    state = None

    async def progress(self, value: float, message: str | None = None) -> None: ...

    async def emit(self, data: Any) -> None: ...

    async def once(self, name: str, effect: Any, *, repeat_unknown: bool = False) -> None: ...


def send(to: str) -> str:
    return to


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("other_project")
    monkeypatch.setitem(sys.modules, "other_project", module)
    return module


def loaded(*names: str) -> dict[str, Service]:
    where = tuple(f"other_project:{name}" for name in names)
    return dict(services_of(Settings(celery_services=where)))


def test_functions_celery_tasks_services_and_sdk_workers_are_taken(project: Any) -> None:
    celery = Celery("shop", set_as_current=False)
    worker = Worker()
    worker.service(send)
    worker.group("g")(lambda payload: payload)
    project.bill = lambda amount: amount
    project.bill.__name__ = "bill"
    project.task = celery.task(name="shop.send")(send)
    project.mail = Service(send, name="mail")
    project.worker = worker
    found = loaded("bill", "task", "mail", "worker")
    assert found.keys() == {"echo", "countdown", "summarize", "bill", "shop.send", "mail", "send"}
    assert found["shop.send"].arguments('{"to": "Ada"}') == {"to": "Ada"}


async def test_a_celery_task_that_retries_by_itself_fails_its_attempt(project: Any) -> None:
    def charge(self: Any, amount: int) -> None:
        try:
            raise ConnectionError("till closed")
        except ConnectionError as error:
            raise self.retry(exc=error, countdown=60) from error

    celery = Celery("shop", set_as_current=False)
    project.charge = celery.task(name="shop.charge", bind=True)(charge)
    service = loaded("charge")["shop.charge"]
    with pytest.raises(ConnectionError, match="till closed"):
        await service.call('{"amount": 3}', PlainlyNothing())


@pytest.mark.contract("S3-13")
async def test_a_bound_celery_task_knows_its_request(project: Any) -> None:
    def seen(self: Any) -> list[Any]:
        return [self.request.id, self.request.retries]

    async def seen_async(self: Any) -> list[Any]:
        return [self.request.id, self.request.retries]

    celery = Celery("shop", set_as_current=False)
    project.seen = celery.task(name="shop.seen", bind=True)(seen)
    project.seen_async = celery.task(name="shop.seen_async", bind=True)(seen_async)
    context = PlainlyNothing()
    context.task_id, context.attempt = "t-1", 2
    for service in (loaded("seen")["shop.seen"], loaded("seen_async")["shop.seen_async"]):
        assert json.loads(await service.call("{}", context)) == ["t-1", 1]
    assert project.seen.request.id is None, "it is over"


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("jobs", "name module:attr"),
        (":send", "name module:attr"),
        ("no.such.module:send", "cannot be loaded"),
        ("other_project:missing", "cannot be loaded"),
        ("other_project:number", "is a int"),
        ("other_project:greedy", "cannot take *rest"),
    ],
)
def test_what_is_no_service_is_refused(project: Any, where: str, said: str) -> None:
    def greedy(*rest: int) -> None: ...

    project.number, project.greedy = 7, greedy
    with pytest.raises(Invalid) as raised:
        services_of(Settings(celery_services=(where,)))
    assert said in f"{raised.value} {raised.value.hint}"
    assert where in str(raised.value)


@pytest.mark.contract("R-9")
def test_services_are_found_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corner_shop.py").write_text("def ship(order: int) -> int: return order")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # as `celery` has it
    assert "ship" in services_of(Settings(celery_services=("corner_shop:ship",)))


def test_the_ledger_is_the_named_one_or_redis_url() -> None:
    redis = "redis://127.0.0.1:6379/3"
    assert ledger_url(Settings(ledger=redis)) == redis
    assert ledger_url(Settings(redis=redis)) == redis
    for settings in (Settings(), Settings(ledger="sqlite:///tasks.db", redis=redis)):
        with pytest.raises(Invalid, match="on Redis"):
            ledger_url(settings)


@pytest.mark.contract("R-9")
@pytest.mark.parametrize(
    ("ledger", "broker"),
    [
        ("redis://127.0.0.1:6379/3", "redis://127.0.0.1:6379/3"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock"),
        ("unix:///run/redis.sock?db=2", "redis+socket:///run/redis.sock?virtual_host=2"),
    ],
)
def test_the_broker_is_the_ledgers_redis_unless_another_is_named(ledger: str, broker: str) -> None:
    assert celery_app(Settings(ledger=ledger)).conf.broker_url == broker
    named = Settings(ledger=ledger, celery_broker_url="amqp://elsewhere//")
    assert celery_app(named).conf.broker_url == "amqp://elsewhere//"


@pytest.mark.contract("R-9")
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ONWARD_LEDGER", "sqlite:///onward.db", "ONWARD_LEDGER is sqlite:///onward.db\n  set "),
        ("ONWARD_LEASE_MS", "soon", "ONWARD_LEASE_MS cannot be read"),
    ],
)
def test_loading_the_application_without_what_it_needs_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=r"^onward: ") as raised:
        runpy.run_path(str(Path(wiring.__file__).with_name("celery.py")))
    assert said in str(raised.value)


def test_celery_retries_nothing_keeps_no_result_and_hoards_no_message() -> None:
    conf = celery_app(Settings(ledger="rediss://127.0.0.1/0")).conf
    assert conf.task_ignore_result is True
    assert conf.task_acks_late is False
    assert conf.worker_prefetch_multiplier == 1
    assert conf.broker_use_ssl["ssl_cert_reqs"] is not None
    schedule = conf.beat_schedule["process-scheduled-tasks"]
    assert (schedule["task"], schedule["schedule"]) == ("process_scheduled_tasks", 1.0)
