"""A service goes down for ten minutes under load: what the lanes and the breaker make of it.

Simulated time on a real ledger in memory: forty slots, a second a call.
"""

from __future__ import annotations

from collections import Counter

import pytest

from onward.core.alarm import Alarm
from onward.core.clock import ManualClock
from onward.core.contract import Backend
from onward.core.dispatch import Dispatcher
from onward.core.outcome import Failed, Succeeded
from onward.core.pressure.breaker import BreakerRules
from onward.core.slots import WorkerSlots
from onward.core.task import Claimed, Lane, State
from onward.faults import Fault
from tests.support import NOW, PROFILES, a_task, wait_until

SLOTS, CALL_MS, TICK_MS = 40, 1_000, 250
SECOND, MINUTE = 1_000, 60_000
DOWN = Failed(Fault(kind="ServiceUnavailable", message="down", status=503))
NEVER = BreakerRules(volume=10**9)


class Simulation:
    """One service with a worker of so many slots, and the clock."""

    def __init__(self, backend: Backend, rules: BreakerRules) -> None:
        self.clock = ManualClock()
        self.dispatcher = Dispatcher(backend, PROFILES, self.clock, breaker=rules)
        self.down = False
        self.started: list[tuple[int, Lane, bool]] = []  # when, from which lane, breaker shut
        self._alarm = Alarm(self.dispatcher)
        self._running: list[tuple[int, Claimed]] = []
        self._worker_slots = WorkerSlots(
            "w", ["q"], lease_ms=10**9, deliver=self._deliver, stop=lambda task, revoked: None
        )
        self.dispatcher.slots.add(self._worker_slots, SLOTS)

    def _deliver(self, task: Claimed) -> None:
        reading = self.dispatcher.pressure.breakers.shut("q")
        shut = reading is not None and reading.state == "open"
        self.started.append((self.clock.now(), task.lane, shut))
        self._running.append((self.clock.now() + CALL_MS, task))

    async def submit(self, count: int) -> None:
        now = self.clock.now()
        await self.dispatcher.submit_all(
            [a_task(profile="tasks", created_at=now) for _ in range(count)]
        )

    async def live(self, ms: int, *, arrivals_a_second: int = 0) -> None:
        for _ in range(ms // TICK_MS):
            self.clock.advance(TICK_MS)
            now = self.clock.now()
            if (now - NOW) % SECOND == 0:
                await self.dispatcher.pressure.weigh()
                await self.dispatcher.reread()
                if arrivals_a_second:
                    await self.submit(arrivals_a_second)
            await self._alarm.sweep()
            over = [task for until, task in self._running if until <= now]
            self._running = [item for item in self._running if item[0] > now]
            outcome = DOWN if self.down else Succeeded("1")
            settled = [self.dispatcher.settle_soon(task, outcome) for task in over]
            self.dispatcher.slots.free(self._worker_slots, len(over))
            for future in settled:
                await future
            await wait_until(lambda: self.dispatcher._claiming is None)

    async def counts(self) -> Counter[State]:
        by_state: Counter[State] = Counter()
        for (_, _, state), count in (await self.dispatcher.backend.tasks.counts()).items():
            by_state[state] += count
        return by_state

    def starts(self, since: int) -> Counter[int]:
        return Counter((at - since) // SECOND for at, _, _ in self.started if at >= since)


@pytest.mark.slow
@pytest.mark.contract("S3-11")
async def test_nothing_is_burned_while_open_and_no_herd_runs_on_release(backend: Backend) -> None:
    simulation = Simulation(backend, BreakerRules())
    await simulation.live(10 * SECOND, arrivals_a_second=16)
    simulation.down = True
    await simulation.live(10 * MINUTE, arrivals_a_second=16)
    outage = [shut for at, _, shut in simulation.started if at > NOW + 10 * SECOND]
    assert sum(outage) == 0, "not one task was started while it was open"
    # Until half of the last minute's calls had failed, and then a probe a minute.
    went_well = (await simulation.counts())[State.SUCCEEDED]
    assert len(outage) <= went_well + SLOTS + 10
    assert (await simulation.counts())[State.DEAD] == 0
    queued = (await simulation.counts())[State.QUEUED]
    assert queued > 9_000, "the work is parked where it was"
    simulation.down = False
    released = simulation.clock.now()
    await simulation.live(6 * MINUTE, arrivals_a_second=16)
    starts = simulation.starts(released)
    begun = [starts[second] for second in range(min(starts), max(starts))]
    assert max(begun) / (sum(begun) / len(begun)) <= 3, begun
    assert max(begun) <= SLOTS
    while (await simulation.counts())[State.QUEUED]:
        await simulation.live(MINUTE)
    assert (await simulation.counts())[State.SUCCEEDED] == simulation.dispatcher.tally[
        "task.created"
    ]


@pytest.mark.slow
@pytest.mark.contract("S3-8")
async def test_new_work_keeps_its_slots_in_a_storm_of_retries(backend: Backend) -> None:
    simulation = Simulation(backend, NEVER)
    await simulation.submit(10_000)
    simulation.down = True
    await simulation.live(10 * MINUTE)  # everything fails again and again, whatever is left
    simulation.down = False
    waiting = await backend.tasks.counts()
    retries = waiting["q", Lane.RETRY, State.QUEUED] + waiting["q", Lane.PRIMARY, State.SCHEDULED]
    assert retries > 3_000
    released = simulation.clock.now()
    await simulation.live(2 * MINUTE, arrivals_a_second=2 * SLOTS)
    lanes = Counter(lane for at, lane, _ in simulation.started if at > released)
    assert lanes[Lane.PRIMARY] / lanes.total() >= 0.7
    assert lanes[Lane.RETRY] / lanes.total() >= 0.09, "and retries are not starved"
