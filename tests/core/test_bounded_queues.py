"""Which bounds go with a claim, and which queues may go on when a move frees one."""

from __future__ import annotations

import pytest

from onward.core import machine
from onward.core.clock import ManualClock
from onward.core.limits import Bound, Rate
from onward.core.outcome import Succeeded
from onward.core.pressure.limits import BoundedQueues
from onward.core.slots import Slots, WorkerSlots
from onward.core.task import Claimed
from onward.ledgers import open_backend
from tests.core.dispatcher import Observed
from tests.core.dispatcher import dispatcher as dispatcher
from tests.support import NOW, PROFILES, a_task

SMTP = Bound("limit:smtp:total", False, 3, None, ("mail", "sms"), ("mail", "sms"))
NATURAL = {"mail", "sms", "ocr"}


@pytest.fixture
def limits() -> BoundedQueues:
    backend = open_backend("sqlite:///:memory:")
    return BoundedQueues(backend.tasks, ManualClock(), Slots(wake=lambda: None))


@pytest.mark.contract("L-3")
def test_a_bound_holds_on_its_queues_and_by_type_where_no_service_is_named(
    limits: BoundedQueues,
) -> None:
    limits.take([SMTP], NATURAL)
    assert limits.of("mail") == (SMTP,)
    assert limits.of("ocr") == ()
    assert limits.of("elsewhere") == (SMTP,)
    assert limits.of("group:gpu") == limits.of("flow:runs") == ()


@pytest.mark.contract("L-1", "L-3")
def test_a_bound_by_type_holds_on_a_services_queue_that_has_those_types(
    limits: BoundedQueues,
) -> None:
    own = Bound("service:ocr:total", False, 1, None, ("ocr",), ("ocr",))
    limits.take([SMTP, own], NATURAL, {"ocr"})
    assert limits.of("ocr") == (SMTP, own)
    assert limits.of("mail") == (SMTP,)
    settled = machine.cancel(
        a_task(state="scheduled", queue="sms", type="sms"), NOW, PROFILES["console"]
    )
    assert settled is not None
    assert limits.freed([settled]) == {"mail", "sms", "ocr"}
    limits.take([SMTP, own], NATURAL)
    assert limits.of("ocr") == (own,)


@pytest.mark.contract("L-5")
def test_what_frees_a_bound_lets_all_its_queues_go_on(limits: BoundedQueues) -> None:
    cancel = machine.cancel(
        a_task(state="scheduled", queue="sms", type="sms"), NOW, PROFILES["console"]
    )
    assert cancel is not None
    assert limits.freed([cancel]) == set()
    limits.take([SMTP], NATURAL)
    assert limits.freed([cancel]) == {"mail", "sms"}


@pytest.mark.contract("L-3")
def test_a_bound_by_type_that_is_freed_on_one_custom_queue_wakes_the_others() -> None:
    slots = Slots(wake=lambda: None)
    limits = BoundedQueues(open_backend("sqlite:///:memory:").tasks, ManualClock(), slots)
    queues = ("slow", "ocr", "group:gpu")
    worker = WorkerSlots(
        "w", queues, lease_ms=None, deliver=lambda _: None, stop=lambda _, __: None
    )
    slots.add(worker, 1)
    limits.take([SMTP], NATURAL)
    ended = machine.cancel(
        a_task(state="scheduled", queue="fast", type="sms"), NOW, PROFILES["console"]
    )
    assert ended is not None
    assert limits.freed([ended]) == {"mail", "sms", "fast", "slow"}
    by_queue = Bound("limit:smtp:total", False, 3, None, ("mail", "fast"))
    limits.take([by_queue], NATURAL)
    assert limits.freed([ended]) == {"mail", "fast"}


@pytest.mark.contract("L-6")
def test_an_end_frees_no_rate(limits: BoundedQueues) -> None:
    rate = Bound("service:sms:total:5/1000", False, None, Rate(5, 1_000), ("sms",), ("sms",))
    cancel = machine.cancel(
        a_task(state="scheduled", queue="sms", type="sms"), NOW, PROFILES["console"]
    )
    assert cancel is not None
    limits.take([rate], NATURAL)
    assert limits.freed([cancel]) == set()
    limits.take([rate, SMTP], NATURAL)
    assert limits.freed([cancel]) == {"mail", "sms"}


@pytest.mark.contract("L-6")
async def test_what_waits_for_a_rate_asks_nothing_of_the_ledger_before_its_instant(
    dispatcher: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = Bound("service:q:total:1/60000", False, None, Rate(1, 60_000), ("q",), ("mail",))
    dispatcher.pressure.limits.take([rate], {"q"})
    slots = dispatcher.add_worker(slots=5)
    for _ in range(3):
        await dispatcher.submit(a_task())
    await dispatcher.idle()
    assert len(dispatcher.inbox) == 2, "count and burst"
    asked: list[object] = []

    async def claim(asks: object, *, now: int) -> list[Claimed]:
        asked.append(asks)
        return []

    monkeypatch.setattr(dispatcher.backend.tasks, "claim", claim)
    for task in dispatcher.inbox:
        await dispatcher.settle(task, Succeeded("1"))
        dispatcher.slots.free(slots)
        await dispatcher.idle()
    assert asked == []
    dispatcher.pressure.limits.close()
