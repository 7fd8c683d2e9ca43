"""One breaker a service: when it opens, who probes, how it closes, and that servers agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.core.clock import ManualClock
from onward.core.contract import Backend
from onward.core.policy import counts_as_failure
from onward.core.pressure.breaker import (
    WAVE_MS,
    WAVES,
    WINDOW_MS,
    BreakerRules,
    Breakers,
    Circuit,
    Window,
)
from onward.faults import Fault
from tests.support import NOW, PROFILES

PAUSE_MS = BreakerRules().pause_ms
Server = tuple[Breakers, dict[str, int | None]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(backend: Backend, clock: ManualClock, served: set[str]) -> Callable[[], Server]:
    def start() -> Server:
        bounds: dict[str, int | None] = {}
        breakers = Breakers(
            backend.documents,
            clock,
            BreakerRules(),
            bound=bounds.__setitem__,
            serves=served.__contains__,
        )
        return breakers, bounds

    return start


@pytest.fixture
def served() -> set[str]:
    return {"q"}


def state(breakers: Breakers) -> Circuit:
    reading = breakers.readings().get("q")
    return Circuit.CLOSED if reading is None else reading.state


@pytest.mark.contract("S3-11")
@pytest.mark.parametrize(
    ("calls", "failures", "opens"),
    [(9, 9, False), (10, 4, False), (10, 5, True), (11, 5, False), (100, 50, True)],
)
def test_it_opens_at_half_of_ten_or_more(
    server: Callable[[], Server], calls: int, failures: int, opens: bool
) -> None:
    breakers, bounds = server()
    for _ in range(calls - failures):
        breakers.record("q", 1, 0)
    for _ in range(failures):
        breakers.record("q", 1, 1)
    assert (breakers.shut("q") is not None) is opens
    assert bounds == ({"q": 0} if opens else {})


def test_calls_of_more_than_a_minute_ago_are_forgotten(
    server: Callable[[], Server], clock: ManualClock
) -> None:
    breakers, _ = server()
    breakers.record("q", 9, 9)
    clock.advance(WINDOW_MS)
    breakers.record("q", 9, 9)
    assert breakers.shut("q") is None
    breakers.record("q", 1, 1)
    assert breakers.shut("q") is not None


@given(st.lists(st.tuples(st.integers(0, 20_000), st.booleans()), max_size=60))
def test_the_window_counts_the_last_minute(steps: list[tuple[int, bool]]) -> None:
    window, now, seen = Window(), NOW, []
    for ms, bad in steps:
        now += ms
        window.add(1, int(bad), now)
        seen.append((now // 1000, bad))
        recent = [bad for second, bad in seen if second > now // 1000 - WINDOW_MS // 1000]
        assert (window.calls, window.failures) == (len(recent), sum(recent))


@pytest.mark.contract("S3-11")
async def test_after_a_pause_one_task_is_let_through_and_its_success_closes(
    server: Callable[[], Server], clock: ManualClock
) -> None:
    breakers, bounds = server()
    breakers.record("q", 10, 10)
    await breakers.tend()
    clock.advance(PAUSE_MS - 1)
    await breakers.tend()
    assert (state(breakers), bounds["q"]) == (Circuit.OPEN, 0)
    clock.advance(1)
    await breakers.tend()
    assert (state(breakers), bounds["q"]) == (Circuit.HALF_OPEN, 1)
    breakers.record("q", 1, 0)
    assert (state(breakers), bounds["q"]) == (Circuit.CLOSED, 2)


async def test_a_probe_that_fails_opens_it_for_another_pause(
    server: Callable[[], Server], clock: ManualClock
) -> None:
    breakers, bounds = server()
    breakers.record("q", 10, 10)
    await breakers.tend()
    clock.advance(PAUSE_MS)
    await breakers.tend()
    breakers.record("q", 1, 1)
    reading = breakers.shut("q")
    assert reading is not None
    assert (reading.state, reading.until) == (Circuit.OPEN, clock.now() + PAUSE_MS)
    assert bounds["q"] == 0
    assert breakers.opened == {"q": 2}


async def test_what_ends_while_it_is_open_says_nothing_new(
    server: Callable[[], Server], clock: ManualClock
) -> None:
    breakers, _ = server()
    breakers.record("q", 10, 10)
    opened = breakers.shut("q")
    clock.advance(1)
    breakers.record("q", 5, 0)
    breakers.record("q", 5, 5)
    assert breakers.shut("q") == opened


async def test_the_work_that_waited_goes_out_in_waves(
    server: Callable[[], Server], clock: ManualClock, backend: Backend
) -> None:
    breakers, bounds = server()
    breakers.record("q", 10, 10)
    await breakers.tend()
    clock.advance(PAUSE_MS)
    await breakers.tend()
    breakers.record("q", 1, 0)
    waves = []
    for _ in range(WAVES):
        await breakers.tend()
        waves.append(bounds["q"])
        clock.advance(WAVE_MS)
    assert waves == [2 ** (1 + at) for at in range(WAVES)]
    await breakers.tend()
    assert bounds["q"] is None
    assert breakers.readings() == {}
    assert await backend.documents.list("breaker", now=clock.now()) == []


async def test_servers_agree_and_only_one_of_them_probes(
    server: Callable[[], Server], clock: ManualClock
) -> None:
    (one, bounds_one), (two, bounds_two) = server(), server()
    one.record("q", 10, 10)
    await one.tend()
    await two.tend()
    assert two.shut("q") == one.shut("q")
    assert bounds_two == {"q": 0}
    clock.advance(PAUSE_MS)
    await two.tend()
    await one.tend()
    assert (bounds_one["q"], bounds_two["q"]) == (0, 1), "whoever came first has the probe"
    one.record("q", 1, 0)
    assert state(one) is Circuit.HALF_OPEN, "only the probe counts"
    two.record("q", 1, 0)
    await two.tend()
    await one.tend()
    assert (state(one), state(two)) == (Circuit.CLOSED, Circuit.CLOSED)
    clock.advance(WAVES * WAVE_MS)
    for breakers in (two, one, one):
        await breakers.tend()
    assert (bounds_one["q"], bounds_two["q"]) == (None, None)


async def test_a_silent_prober_is_succeeded(
    server: Callable[[], Server], clock: ManualClock
) -> None:
    (dies, _), (lives, bounds) = server(), server()
    dies.record("q", 10, 10)
    await dies.tend()
    clock.advance(PAUSE_MS)
    await dies.tend()
    await lives.tend()
    assert bounds["q"] == 0
    clock.advance(PAUSE_MS)
    await lives.tend()
    assert bounds["q"] == 1


async def test_a_server_that_could_not_probe_leaves_it_to_others(
    server: Callable[[], Server], clock: ManualClock, served: set[str]
) -> None:
    breakers, bounds = server()
    breakers.record("q", 10, 10)
    await breakers.tend()
    served.clear()
    clock.advance(PAUSE_MS)
    await breakers.tend()
    assert (state(breakers), bounds["q"]) == (Circuit.OPEN, 0)


async def test_two_who_open_at_once_end_with_one_word(
    server: Callable[[], Server], clock: ManualClock
) -> None:
    (one, _), (two, _) = server(), server()
    one.record("q", 10, 10)
    clock.advance(5)
    two.record("q", 12, 12)
    for breakers in (one, two, one, two):
        await breakers.tend()
    assert one.shut("q") == two.shut("q") is not None


async def test_a_restarted_server_knows_what_is_open(server: Callable[[], Server]) -> None:
    before, _ = server()
    before.record("q", 10, 10)
    await before.tend()
    after, bounds = server()
    await after.tend()
    assert bounds == {"q": 0}


DOWN = Fault(kind="ServiceUnavailable", message="")
BUG = Fault(kind="ValueError", message="")
BAD_INPUT = Fault(kind="InvalidInput", message="")


@pytest.mark.parametrize(
    ("profile", "fault", "against"),
    [
        ("tasks", DOWN, True),
        ("tasks", BUG, True),
        ("tasks", BAD_INPUT, False),
        ("console", DOWN, True),
        ("console", Fault(kind="X", message="", status=500), True),
        ("console", BUG, False),  # the handler's own error: no sign of an outage
        ("console", Fault(kind="X", message="", status=404), False),
        ("sync", DOWN, False),
        ("streams", DOWN, False),
    ],
)
def test_what_speaks_against_a_service(profile: str, fault: Fault, against: bool) -> None:
    assert counts_as_failure(fault, PROFILES[profile]) is against
