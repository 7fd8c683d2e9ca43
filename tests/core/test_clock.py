"""Time only goes on: neither a clock that is set nor a bad measurement moves it much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from onward.core.clock import FAR_MS, SLEW, SYNC_MS, SharedClock, SystemClock, uptime_ms, wall_ms

START = 1_700_000_000_000


class Machine:
    """A machine whose clocks the test moves."""

    def __init__(self) -> None:
        self.uptime = 5_000
        self.wall = START
        self.ahead = 0
        self.clock = SharedClock(
            lambda: self.ahead, wall_ms=lambda: self.wall, uptime_ms=lambda: self.uptime
        )

    def live(self, ms: int) -> None:
        self.uptime += ms
        self.wall += ms


def test_the_clock_starts_with_the_wall_and_goes_on_with_the_uptime() -> None:
    machine = Machine()
    assert machine.clock.now() == START
    machine.live(12_345)
    assert machine.clock.now() == START + 12_345


@pytest.mark.parametrize("step", [60_000, -60_000, 86_400_000, -86_400_000])
def test_a_wall_clock_that_is_set_revokes_nobodys_lease(step: int) -> None:
    machine = Machine()
    began = machine.clock.now()
    machine.wall += step
    passed = 0
    for _ in range(30):
        machine.live(1_000)
        passed = machine.clock.now() - began
    assert abs(passed - 30_000) <= 30_000 // SLEW


def test_a_small_difference_is_made_good_for_slowly() -> None:
    machine = Machine()
    machine.clock.now()
    machine.wall += 500
    for _ in range(60):
        machine.live(SYNC_MS)
        machine.clock.now()
    assert machine.clock.now() == machine.wall


def test_one_bad_measurement_of_the_ledgers_clock_does_little() -> None:
    machine = Machine()
    machine.clock.now()
    machine.ahead = 5_000  # measured over a line that hung
    for _ in range(10):
        machine.live(1_000)
        assert abs(machine.clock.now() - machine.wall) <= 200
    machine.ahead = 0
    for _ in range(20):
        machine.live(1_000)
        machine.clock.now()
    assert machine.clock.now() == machine.wall


def test_the_ledgers_time_is_taken_over_at_once_at_the_start() -> None:
    machine = Machine()
    machine.clock.now()
    machine.ahead = -7_000
    machine.clock.adopt()
    assert machine.clock.now() == START - 7_000


def test_a_clock_that_is_far_off_is_reported_once() -> None:
    machine = Machine()
    machine.clock.now()
    machine.wall += 2 * FAR_MS
    with capture_logs() as logs:
        for _ in range(5):
            machine.live(SYNC_MS)
            machine.clock.now()
    assert [(line["off_s"], "restart" in line["hint"]) for line in logs] == [(120, True)]


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(-(10**6), 10**6)), max_size=60))
def test_time_never_goes_back(moves: list[tuple[int, int]]) -> None:
    machine = Machine()
    before = machine.clock.now()
    for ms, step in moves:
        machine.live(ms)
        machine.wall += step
        now = machine.clock.now()
        assert before <= now <= before + ms + (ms + SYNC_MS) // SLEW + 1
        before = now


def test_the_clocks_of_this_machine_are_read() -> None:
    assert abs(SystemClock().now() - wall_ms()) < 60_000
    assert uptime_ms() <= uptime_ms()
