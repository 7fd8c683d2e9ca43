"""Time only goes on: a bad measurement moves it little, and only a clock that lags steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from onward.core.clock import (
    FAR_MS,
    LOOKS,
    SLEW,
    SYNC_MS,
    SharedClock,
    SystemClock,
    uptime_ms,
    wall_ms,
)

START = 1_700_000_000_000
HOUR = 3_600_000


class Machine:
    """A machine whose uptime and reference the test moves."""

    def __init__(self) -> None:
        self.uptime = 5_000
        self.wall = START
        self.clock = SharedClock(lambda: self.wall - self.uptime, uptime_ms=lambda: self.uptime)

    def live(self, ms: int) -> None:
        self.uptime += ms
        self.wall += ms

    def look(self, times: int) -> int:
        """So many looks at the reference; returns how far `now` is behind it then."""
        for _ in range(times):
            self.live(SYNC_MS)
            self.clock.now()
        return self.wall - self.clock.now()


def test_the_clock_starts_with_the_wall_and_goes_on_with_the_uptime() -> None:
    machine = Machine()
    assert machine.clock.now() == START
    machine.live(12_345)
    assert machine.clock.now() == START + 12_345


@pytest.mark.parametrize("pause", [FAR_MS + 1_000, 60_000, 8 * HOUR])
def test_an_uptime_that_stood_still_is_made_good_for_in_one_step(pause: int) -> None:
    machine = Machine()
    machine.clock.now()
    machine.wall += pause
    assert machine.look(LOOKS - 1) > FAR_MS, "not at the first sight"
    assert machine.clock.steps == 0
    with capture_logs() as logs:
        assert machine.look(1) == 0
    assert machine.clock.steps == 1
    assert ["steps forward" in line["event"] for line in logs] == [True]
    assert machine.look(10) == 0
    assert machine.clock.steps == 1


def test_a_lag_that_is_not_seen_in_a_row_is_no_reason_to_step() -> None:
    machine = Machine()
    machine.clock.now()
    for _ in range(5):
        machine.wall += HOUR
        machine.look(LOOKS - 1)
        machine.wall -= HOUR
        machine.look(1)
    assert machine.clock.steps == 0
    assert machine.look(20) == 0


def test_a_step_forward_waits_until_the_reference_is_looked_at() -> None:
    machine = Machine()
    machine.clock.now()
    machine.wall += HOUR
    for _ in range(100):
        machine.clock.now()
    assert machine.clock.steps == 0, "many readings of the clock are one look"


@pytest.mark.parametrize("step", [FAR_MS, -60_000, -24 * HOUR])
def test_a_reference_that_is_set_back_or_a_little_forward_revokes_nobodys_lease(step: int) -> None:
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
    assert machine.look(60) == 0
    assert machine.clock.steps == 0


def test_one_bad_measurement_of_the_ledgers_clock_does_little() -> None:
    machine = Machine()
    machine.clock.now()
    machine.wall += HOUR
    assert machine.look(1) >= HOUR - SYNC_MS // SLEW
    machine.wall -= HOUR
    assert machine.look(20) == 0


def test_the_ledgers_time_is_taken_over_at_once_at_the_start() -> None:
    machine = Machine()
    machine.clock.now()
    machine.wall -= 7_000
    machine.clock.adopt()
    assert machine.clock.now() == START - 7_000


def test_a_clock_that_is_far_ahead_is_reported_once() -> None:
    machine = Machine()
    machine.clock.now()
    machine.wall -= 120_000
    with capture_logs() as logs:
        machine.look(5)
    assert [(line["off_s"], "restart" in line["hint"]) for line in logs] == [(-120, True)]


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(-(10**6), 10**6)), max_size=60))
def test_time_never_goes_back(moves: list[tuple[int, int]]) -> None:
    machine = Machine()
    before, steps = machine.clock.now(), 0
    for ms, step in moves:
        machine.live(ms)
        machine.wall += step
        now = machine.clock.now()
        assert before <= now
        if machine.clock.steps == steps:
            assert now <= before + ms + (ms + SYNC_MS) // SLEW + 1
        else:
            assert now == machine.wall
        before, steps = now, machine.clock.steps


def test_the_clocks_of_this_machine_are_read() -> None:
    assert abs(SystemClock().now() - wall_ms()) < 60_000
    assert uptime_ms() <= uptime_ms()
