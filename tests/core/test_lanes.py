"""Shares over turns: 16:4:1 between priorities, .7/.3 between lanes; an empty lane yields."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.core.lanes import CYCLE, WEIGHTS, RetryShare, spread, wants
from onward.core.task import Lane, Priority

Stock = Counter[tuple[str, Priority, Lane]]

queues = st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=10, unique=True).map(tuple)
limits = st.integers(1, 40)


def take(names: tuple[str, ...], limit: int, turn: int, stock: Stock, tenths: float = 3) -> Stock:
    """What a ledger gives for these wants: each in order, until the limit."""
    taken: Stock = Counter()
    for want in wants(names, limit, turn, tenths / 10):
        lane = (want.queue, want.priority, want.lane)
        got = min(want.limit, limit - taken.total(), stock[lane] - taken[lane])
        taken[lane] += got
    return +taken


def plenty(names: tuple[str, ...]) -> Stock:
    return Counter({(q, p, lane): 10**9 for q in names for p in Priority for lane in Lane})


@pytest.mark.contract("S2-11")
@given(limit=limits, tenths=st.integers(0, 10))
def test_over_a_cycle_everybody_has_exactly_their_share(limit: int, tenths: int) -> None:
    by_priority: Counter[Priority] = Counter()
    by_lane: Counter[Lane] = Counter()
    for turn in range(CYCLE):
        for (_, priority, lane), got in take(("q",), limit, turn, plenty(("q",)), tenths).items():
            by_priority[priority] += got
            by_lane[lane] += got
    total = limit * CYCLE
    assert by_priority == {p: total * weight // 21 for p, weight in WEIGHTS.items()}
    assert by_lane[Lane.RETRY] * 10 == total * tenths
    assert by_priority.total() == total


@pytest.mark.contract("S3-8", "S2-11")
@given(limit=limits, tenths=st.integers(0, 10), priority=st.sampled_from(Priority))
def test_lanes_share_within_whichever_priority_has_work(
    limit: int, tenths: int, priority: Priority
) -> None:
    stock = Counter({("q", priority, lane): 10**9 for lane in Lane})
    taken: Counter[Lane] = Counter()
    for turn in range(CYCLE):
        for (_, _, lane), got in take(("q",), limit, turn, stock, tenths).items():
            taken[lane] += got
    assert taken[Lane.RETRY] * 10 == limit * CYCLE * tenths


@given(
    names=queues,
    limit=limits,
    turn=st.integers(0, 3 * CYCLE),
    stock=st.dictionaries(
        st.tuples(st.sampled_from("abcdefghij"), st.sampled_from(Priority), st.sampled_from(Lane)),
        st.integers(0, 12),
    ),
)
def test_an_empty_lane_yields_in_the_same_trip(
    names: tuple[str, ...], limit: int, turn: int, stock: dict[tuple[str, Priority, Lane], int]
) -> None:
    there = sum(count for (queue, _, _), count in stock.items() if queue in names)
    assert take(names, limit, turn, Counter(stock)).total() == min(limit, there)


@given(names=queues, limit=limits, turn=st.integers(0, CYCLE))
def test_every_queue_appears_in_every_turn(names: tuple[str, ...], limit: int, turn: int) -> None:
    asked = {(w.queue, w.priority, w.lane) for w in wants(names, limit, turn) if w.limit == limit}
    assert asked == set(plenty(names))
    assert all(0 < want.limit <= limit for want in wants(names, limit, turn))


@given(names=queues)
def test_no_queue_starves_at_any_priority_or_lane(names: tuple[str, ...]) -> None:
    """A turn decides priority, lane and queue at once: the three must not go in step."""
    served: Counter[tuple[str, object]] = Counter()
    for turn in range(CYCLE):
        for queue, priority, lane in take(names, 1, turn, plenty(names)):
            served[queue, priority] += 1
            served[queue, lane] += 1
    assert set(served) == {(q, what) for q in names for what in (*Priority, *Lane)}


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any))
def test_turns_are_spread_as_evenly_as_the_weights_allow(weights: list[int]) -> None:
    order = spread(weights)
    assert Counter(order) == +Counter(dict(enumerate(weights)))
    led: Counter[int] = Counter()
    for at, index in enumerate(order, start=1):
        led[index] += 1
        for which, weight in enumerate(weights):
            assert abs(led[which] - at * weight / sum(weights)) < len(weights)


@pytest.mark.contract("S3-8")
@pytest.mark.parametrize(
    ("waiting", "share"),
    [(0, 0.3), (999, 0.3), (1_000, 0.2), (5_000, 0.2), (5_001, 0.1), (10**9, 0.1)],
)
def test_the_more_retries_wait_the_less_they_take_from_new_work(waiting: int, share: float) -> None:
    assert RetryShare().of(waiting) == share
    assert RetryShare(normal=0.6).of(waiting) == pytest.approx(share * 2)


@given(
    limit=limits,
    share=st.floats(0, 1),
    waiting=st.integers(0, 10_000),
    warning=st.integers(1, 5_000),
)
def test_new_work_keeps_the_rest_of_the_slots(
    limit: int, share: float, waiting: int, warning: int
) -> None:
    part = RetryShare(normal=share, warning=warning).of(waiting)
    assert 0 <= part <= share + 0.001
    retries = sum(
        got
        for turn in range(CYCLE)
        for (_, _, lane), got in take(("q",), limit, turn, plenty(("q",)), part * 10).items()
        if lane is Lane.RETRY
    )
    assert abs(retries - limit * CYCLE * part) <= limit * CYCLE * 0.0005 + 1


def test_a_worker_without_queues_wants_nothing() -> None:
    assert wants((), 1, 0) == ()
