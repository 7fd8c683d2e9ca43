"""Only the probe closes a half-open breaker: a call from before says nothing new."""

from __future__ import annotations

import asyncio

import pytest

from onward.core.clock import ManualClock
from onward.core.outcome import Outcome, Succeeded
from onward.core.pressure.breaker import BreakerRules, Circuit
from onward.core.task import Claimed
from tests.core.dispatcher import BUSY, Observed
from tests.core.dispatcher import dispatcher as dispatcher
from tests.support import a_task, wait_until

VOLUME = BreakerRules().volume


def state(dispatcher: Observed) -> Circuit:
    reading = dispatcher.pressure.breakers.readings().get("q")
    return Circuit.CLOSED if reading is None else reading.state


async def settled(dispatcher: Observed, *tasks: Claimed, outcome: Outcome) -> None:
    await asyncio.gather(*(dispatcher.settle(task, outcome) for task in tasks))


@pytest.mark.parametrize("outcome", [Succeeded("1"), BUSY])
async def test_a_call_from_before_the_pause_is_not_taken_for_the_probe(
    dispatcher: Observed, clock: ManualClock, outcome: Outcome
) -> None:
    worker_slots = dispatcher.add_worker(slots=VOLUME + 2)
    await dispatcher.submit_all([a_task(profile="tasks") for _ in range(VOLUME + 1)])
    await wait_until(lambda: len(dispatcher.inbox) == VOLUME + 1)
    slow, *failing = dispatcher.inbox
    await settled(dispatcher, *failing, outcome=BUSY)
    dispatcher.slots.free(worker_slots, VOLUME)
    assert state(dispatcher) is Circuit.OPEN
    clock.advance(BreakerRules().pause_ms)
    await dispatcher.pressure.weigh()
    assert state(dispatcher) is Circuit.HALF_OPEN
    await dispatcher.settle(slow, outcome)
    dispatcher.slots.free(worker_slots)
    assert state(dispatcher) is Circuit.HALF_OPEN, "it was called long before"
    receipt = await dispatcher.submit(a_task(profile="tasks"))
    await wait_until(lambda: len(dispatcher.inbox) == VOLUME + 2)
    probe = dispatcher.inbox[-1]
    assert probe.id == receipt.task
    await dispatcher.settle(probe, Succeeded("1"))
    assert state(dispatcher) is Circuit.CLOSED
