"""Which bounds go with a claim, and which queues may go on when a move frees one."""

from __future__ import annotations

import pytest

from onward.core import machine
from onward.core.clock import ManualClock
from onward.core.limits import Bound
from onward.core.pressure.limits import BoundedQueues
from onward.core.slots import Slots, WorkerSlots
from onward.ledgers import open_backend
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
