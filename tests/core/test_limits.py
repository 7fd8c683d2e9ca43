"""The arithmetic of rates, and what a bound covers: pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.core.limits import Bound, Rate, costs_of, whole

NOW = 1_700_000_000_000


@pytest.mark.contract("L-4")
@given(
    count=st.integers(1, 50),
    per_ms=st.integers(1, 5_000),
    burst=st.integers(0, 20),
    starts=st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 70)), max_size=60),
)
def test_no_window_ever_holds_more_than_count_and_burst(
    count: int, per_ms: int, burst: int, starts: list[tuple[int, int]]
) -> None:
    rate = Rate(count, per_ms, burst)
    paid_at, now = 0, NOW
    made: list[tuple[int, int]] = []
    for after, cost in starts:
        now += after
        cost = min(cost, count + burst)
        if rate.start_at(paid_at, cost) <= now * 1_000:
            paid_at = rate.paid_at(paid_at, cost, now)
            made.append((now, cost))
    for begin, _ in made:
        assert sum(cost for at, cost in made if begin <= at < begin + per_ms) <= count + burst


@pytest.mark.contract("L-4")
@given(
    count=st.integers(1, 50), per_ms=st.integers(1, 5_000), burst=st.integers(0, 20), cost=st.data()
)
def test_whoever_waits_long_enough_may_start(
    count: int, per_ms: int, burst: int, cost: st.DataObject
) -> None:
    rate = Rate(count, per_ms, burst)
    mine = cost.draw(st.integers(1, count + burst))
    assert rate.start_at(0, mine) <= NOW * 1_000
    paid_at = rate.paid_at(0, mine, NOW)
    assert rate.start_at(paid_at, 1) >= (NOW - 1) * 1_000 or burst >= mine
    assert rate.start_at(paid_at, mine) <= paid_at + mine * rate.step


@pytest.mark.contract("L-4")
def test_a_rate_gives_away_nothing() -> None:
    rate = Rate(50, 1_000)
    paid_at, made = 0, 0
    for ms in range(60_000):
        while rate.start_at(paid_at, 1) <= (NOW + ms) * 1_000:
            paid_at = rate.paid_at(paid_at, 1, NOW + ms)
            made += 1
    assert made == 50 * 60 + 1


def test_a_bound_covers_its_queues_and_its_types_elsewhere() -> None:
    one = Bound("one", False, 1, None, ("q", "r"), ("t",))
    two = Bound("two", True, 1, None, ("s",))
    assert [one.covers(*pair) for pair in (("q", "x"), ("z", "t"), ("z", "x"))] == [
        True,
        True,
        False,
    ]
    assert whole((one, two), "r") == (one,)
    assert costs_of('{"rate":4}') == {"rate": 4}
    assert costs_of(None) == {}
