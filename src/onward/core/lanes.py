"""What to claim first: priorities and lanes as shares, turn by turn. Pure.

A claim lists wants in order, priority by priority: first the lanes' shares that are due at this
turn, then the same lanes again without a bound, so that an empty one yields in the same trip.
Fairness holds over turns, not by a coin per task: of 21 turns high leads 16, normal 4 and low 1; of
10 turns new work leads 7, or more when many retries wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from onward.core.contract import Want
from onward.core.task import Lane, Priority

WEIGHTS = {Priority.HIGH: 16, Priority.NORMAL: 4, Priority.LOW: 1}


class RetryShare(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the slots retries may take from new work: the more of them wait, the less."""

    normal: float = 0.3
    warning: int = 1_000  # from so many waiting retries on, two thirds of it
    critical: int = 5_000  # and beyond so many, a third

    def of(self, waiting: int) -> float:
        if waiting < self.warning:
            return self.normal
        return round(self.normal * (2 if waiting <= self.critical else 1) / 3, 3)


RETRY_SHARE = RetryShare()


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
    queues: tuple[str, ...], limit: int, turn: int, retry_share: float = RETRY_SHARE.normal
) -> tuple[Want, ...]:
    """The wants of a worker with `limit` free slots at this turn (taken modulo CYCLE)."""
    leader = _PRIORITIES[_PRIORITY_TURNS[turn % len(_PRIORITY_TURNS)]]
    priorities = (leader, *(p for p in _PRIORITIES if p is not leader))
    permille = round(retry_share * 1000)
    retries = _retry_slots(limit, permille, turn)
    shares = {Lane.PRIMARY: limit - retries, Lane.RETRY: retries}
    # Who comes first matters when a higher priority has left less than both shares.
    lanes = (
        (Lane.RETRY, Lane.PRIMARY)
        if _retry_slots(1, permille, turn)
        else (Lane.PRIMARY, Lane.RETRY)
    )
    # One queue further every other turn and every round: were queues in step with the turns of the
    # priorities (21) or the lanes (10), of three the same one would lead whenever low priority
    # does, and the others' low work would starve.
    rounds, at = divmod(turn, len(_PRIORITY_TURNS))
    start = (rounds + at // 2) % len(queues) if queues else 0
    in_turn = queues[start:] + queues[:start]
    ordered: list[Want] = []
    for priority in priorities:
        ordered += [
            Want(queue, priority, lane, shares[lane])
            for queue in in_turn
            for lane in lanes
            if 0 < shares[lane] < limit
        ]
        ordered += [Want(queue, priority, lane, limit) for queue in in_turn for lane in lanes]
    return tuple(ordered)


def _retry_slots(limit: int, permille: int, turn: int) -> int:
    """How many of `limit` slots are the retries' at this turn; fractions add up over the turns."""
    permilles = limit * permille
    return (turn + 1) * permilles // 1000 - turn * permilles // 1000
