"""How much of a service may run: at once, and by time. Pure; a ledger applies it where it claims.

A `Bound` is one limit as a claim needs it. What runs is counted by queue, type and partition, which
never change in a task's life, so a bound holds from the first claim that it comes with, also for
what ran before. By time there is one instant for each bound and partition, as in GCRA.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

Instant: TypeAlias = int  # epoch milliseconds
Micros: TypeAlias = int  # epoch microseconds: a rate may be of more than 1,000 a second


class Rate(msgspec.Struct, frozen=True):
    """In any window of `per_ms`, what starts costs at most `count` and `burst` together."""

    count: int
    per_ms: int
    burst: int = 1

    @property
    def step(self) -> Micros:
        """What a cost of 1 takes. Rounded up: a window never holds more than it may."""
        return -(-self.per_ms * 1_000 // self.count)

    def start_at(self, paid_at: Micros, cost: int) -> Micros:
        """When a start of this cost may be made at the earliest.

        `paid_at` is when all that has started is paid off. A cost of more than `burst` and one
        waits until that much more is paid, and is then paid off itself: so neither a window that
        ends with it nor one that begins with it holds too much.
        """
        return paid_at + (cost - self.burst - 1) * self.step

    def paid_at(self, paid_at: Micros, cost: int, now: Instant) -> Micros:
        """The same after a start of this cost now."""
        return max(paid_at, now * 1_000) + cost * self.step

    def owed(self, start_at: Instant, now: Instant) -> int:
        """How much of it is used up, if the next start of cost 1 may be made at `start_at`."""
        owed = -((now - start_at) * 1_000 // self.step) + self.burst
        return max(0, min(owed, self.count))


class Bound(msgspec.Struct, frozen=True):
    """One limit. It holds for the tasks on its queues, and for those of its types elsewhere."""

    name: str
    each: bool  # of every partition by itself; False: of all together
    most: int | None  # how many may run at once
    rate: Rate | None
    queues: tuple[str, ...]
    types: tuple[str, ...] = ()

    def covers(self, queue: str, type_: str) -> bool:
        return queue in self.queues or type_ in self.types


class Usage(msgspec.Struct, frozen=True):
    """How far a bound is used up."""

    used: int  # how many run, or are offered
    start_at: Instant | None  # by its rate: when the next start of cost 1 may be made


def costs_of(costs: str | None) -> Mapping[str, int]:
    """What a start of this task costs, by the name of the bound; where it is not there, 1."""
    return {} if costs is None else _decode(costs)


_decode = msgspec.json.Decoder(dict[str, int]).decode


def whole(bounds: Sequence[Bound], queue: str) -> tuple[Bound, ...]:
    """Those of these that hold for all that is on this queue."""
    return tuple(bound for bound in bounds if queue in bound.queues)
