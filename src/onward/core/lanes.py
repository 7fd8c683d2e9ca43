"""What to claim first: priorities and lanes as shares, turn by turn. Pure.

A claim lists wants in order: first the shares that are due at this turn, then the same lanes again
without a bound, so that an empty lane yields in the same trip. Fairness holds over turns, not by a
coin per task: of 21 turns high leads 16, normal 4 and low 1; of 10 turns new work leads 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from onward.core.contract import Want
from onward.core.task import Lane, Priority

WEIGHTS = {Priority.HIGH: 16, Priority.NORMAL: 4, Priority.LOW: 1}
RETRY_SHARE = 0.3


def spread(weights: Sequence[int]) -> tuple[int, ...]:
    """Which index leads at each turn of one cycle, as evenly spaced as the weights allow."""
    total = sum(weights)
    credit = [0] * len(weights)
    order: list[int] = []
    for _ in range(total):
        credit = [have + weight for have, weight in zip(credit, weights, strict=True)]
        lead = credit.index(max(credit))
        credit[lead] -= total
        order.append(lead)
    return tuple(order)


_PRIORITIES = tuple(WEIGHTS)
_PRIORITY_TURNS = spread(tuple(WEIGHTS.values()))
CYCLE = len(_PRIORITY_TURNS) * 10


@lru_cache(maxsize=65_536)  # a few queues, some limits, every turn
def wants(
    queues: tuple[str, ...], limit: int, turn: int, retry_tenths: int = int(RETRY_SHARE * 10)
) -> tuple[Want, ...]:
    """The wants of a worker with `limit` free slots at this turn (taken modulo CYCLE)."""
    leader = _PRIORITIES[_PRIORITY_TURNS[turn % len(_PRIORITY_TURNS)]]
    priorities = (leader, *(p for p in _PRIORITIES if p is not leader))
    shares = _shares(limit, retry_tenths, turn % 10)
    retry_leads = shares[Lane.RETRY] * 10 > limit * retry_tenths or not shares[Lane.PRIMARY]
    ordered_lanes = (Lane.RETRY, Lane.PRIMARY) if retry_leads else (Lane.PRIMARY, Lane.RETRY)
    # One queue further every other turn and every round: were queues in step with the turns of the
    # priorities (21) or the lanes (10), of three the same one would lead whenever low priority
    # does, and the others' low work would starve.
    rounds, at = divmod(turn, len(_PRIORITY_TURNS))
    start = (rounds + at // 2) % len(queues) if queues else 0
    in_turn = queues[start:] + queues[:start]
    bounded = tuple(
        Want(queue, leader, lane, shares[lane])
        for queue in in_turn
        for lane in ordered_lanes
        if shares[lane] and shares[lane] < limit
    )
    unbounded = tuple(
        Want(queue, priority, lane, limit)
        for priority in priorities
        for queue in in_turn
        for lane in ordered_lanes
    )
    return bounded + unbounded


def _shares(limit: int, retry_tenths: int, turn: int) -> dict[Lane, int]:
    """How many of `limit` slots each lane may take before the other has had its part."""
    # What is owed after this turn less what was owed before it: fractions add up over ten turns.
    tenths = limit * retry_tenths
    retry = (turn + 1) * tenths // 10 - turn * tenths // 10
    return {Lane.PRIMARY: limit - retry, Lane.RETRY: retry}
