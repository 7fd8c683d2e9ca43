"""Only the probe closes a half-open breaker: a call from before says nothing new."""

from __future__ import annotations

import asyncio

import pytest

from onward.core.clock import ManualClock
from onward.core.outcome import Outcome, Succeeded
from onward.core.pressure.breaker import BreakerRules, Circuit
from onward.core.task import Claimed
from tests.core.desk import BUSY, Desk
from tests.core.desk import desk as desk
from tests.support import a_task, wait_until

VOLUME = BreakerRules().volume


def state(desk: Desk) -> Circuit:
    reading = desk.pressure.breakers.readings().get("q")
    return Circuit.CLOSED if reading is None else reading.state


async def settled(desk: Desk, *tasks: Claimed, outcome: Outcome) -> None:
    await asyncio.gather(*(desk.settle(task, outcome) for task in tasks))


@pytest.mark.parametrize("outcome", [Succeeded("1"), BUSY])
async def test_a_call_from_before_the_pause_is_not_taken_for_the_probe(
    desk: Desk, clock: ManualClock, outcome: Outcome
) -> None:
    seat = desk.sit(slots=VOLUME + 2)
    await desk.submit_all([a_task(profile="tasks") for _ in range(VOLUME + 1)])
    await wait_until(lambda: len(desk.inbox) == VOLUME + 1)
    slow, *failing = desk.inbox
    await settled(desk, *failing, outcome=BUSY)
    desk.slots.free(seat, VOLUME)
    assert state(desk) is Circuit.OPEN
    clock.advance(BreakerRules().pause_ms)
    await desk.pressure.weigh()
    assert state(desk) is Circuit.HALF_OPEN
    await desk.settle(slow, outcome)
    desk.slots.free(seat)
    assert state(desk) is Circuit.HALF_OPEN, "it was called long before"
    receipt = await desk.submit(a_task(profile="tasks"))
    await wait_until(lambda: len(desk.inbox) == VOLUME + 2)
    probe = desk.inbox[-1]
    assert probe.id == receipt.task
    await desk.settle(probe, Succeeded("1"))
    assert state(desk) is Circuit.CLOSED
