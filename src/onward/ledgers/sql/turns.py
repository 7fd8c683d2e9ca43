"""Who is next in a lane: its partitions in turn, as far as its bounds let them. Pure.

A ledger gives the heads of partitions in the order of their turns, and knows what is used up.
Within a partition nothing passes what waits for a bound of the whole queue. A bound by type holds
up the tasks of its types alone. What a bound of all partitions holds up keeps its turn: a start
that costs much would otherwise wait for ever behind others that cost little.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from onward.core.contract import Want
from onward.core.limits import Bound, Instant, Micros, Rate, Usage, costs_of

SEPARATOR = "\x1f"  # of the types that are passed over, in SQL
RateKey = tuple[str, int, str]  # a bound's name, whether it is of each partition, that partition


class Head(NamedTuple):
    """A queued task near the front of its partition."""

    tid: int
    type: str
    costs: str | None


class WaitingFor(NamedTuple):
    """What a task waits for: an instant, or the end of another task."""

    until: Instant | None


FOR_AN_END = WaitingFor(None)


class LaneBounds(NamedTuple):
    """The bounds of a want that hold on its queue."""

    total: tuple[Bound, ...]  # for all of it
    each: tuple[Bound, ...]  # for each of its partitions
    typed: tuple[Bound, ...]  # for the tasks of some types


NO_BOUNDS = LaneBounds((), (), ())


@lru_cache(maxsize=4_096)
def lane_bounds(bounds: tuple[Bound, ...], queue: str) -> LaneBounds:
    whole = [bound for bound in bounds if queue in bound.queues]
    return LaneBounds(
        tuple(bound for bound in whole if not bound.each),
        tuple(bound for bound in whole if bound.each),
        tuple(bound for bound in bounds if queue not in bound.queues and bound.types),
    )


class Room(ABC):
    """How much is left of some bounds at this instant. It may be more than the tasks find."""

    def __init__(self, now: Instant) -> None:
        self.now = now

    @abstractmethod
    def used(self, bound: Bound, partition: str) -> int:
        """How many run, or are offered."""

    @abstractmethod
    def paid_at(self, key: RateKey) -> Micros:
        """When all that has started under this rate is paid off."""

    @abstractmethod
    def start(self, queue: str, partition: str, head: Head, bounds: LaneBounds) -> None:
        """It is claimed."""

    def wait(self, bound: Bound, partition: str, cost: int = 1) -> WaitingFor | None:
        """What a start waits for under this bound; None: nothing."""
        if bound.most is not None and self.used(bound, partition) >= bound.most:
            return FOR_AN_END
        if bound.rate is not None:
            start_at = bound.rate.start_at(self.paid_at(rate_key(bound, partition)), cost)
            if start_at > self.now * 1_000:
                return WaitingFor(_ms(start_at))
        return None

    def paid(self, bound: Bound, rate: Rate, partition: str, costs: str | None) -> Micros:
        """The instant of its rate after a start."""
        before = self.paid_at(rate_key(bound, partition))
        return rate.paid_at(before, cost_of(bound, costs), self.now)

    def most_of(self, partition: str, bounds: LaneBounds) -> int | WaitingFor:
        """How many of this partition may start at once at the most, by the bounds of each."""
        most = 2**31
        for bound in bounds.each:
            waits = self.wait(bound, partition)
            if waits is not None:
                return waits
            if bound.most is not None:
                most = min(most, bound.most - self.used(bound, partition))
        return most

    def held_up(self, partition: str, bounds: LaneBounds) -> str:
        """The types that may not start in this partition now, as SQL passes them over."""
        types = {
            type_
            for bound in bounds.typed
            if self.wait(bound, partition) is not None
            for type_ in bound.types
        }
        return SEPARATOR.join(("", *sorted(types), "")) if types else ""

    def usage(self, bound: Bound, partition: str) -> Usage:
        used = self.used(bound, partition)
        if bound.rate is None:
            return Usage(used, None)
        start_at = bound.rate.start_at(self.paid_at(rate_key(bound, partition)), 1)
        return Usage(used, max(self.now, _ms(start_at)))


def rate_key(bound: Bound, partition: str) -> RateKey:
    return (bound.name, 1, partition) if bound.each else (bound.name, 0, "")


def forget_at(rate: Rate, paid_at: Micros) -> Instant:
    """When the instant makes no difference any more, whatever a start costs."""
    return _ms(paid_at + (rate.count + rate.burst) * rate.step)


def cost_of(bound: Bound, costs: str | None) -> int:
    return 1 if costs is None else costs_of(costs).get(bound.name, 1)


def _ms(at: Micros) -> Instant:
    return -(-at // 1_000)


class LaneChoice:
    """What a claim may take of one lane, and what waits there."""

    def __init__(self) -> None:
        self.heads: list[tuple[str, Head]] = []  # by turn
        self.waits: dict[str, WaitingFor] = {}  # partitions that wait as a whole
        self.passed: dict[
            str, list[WaitingFor]
        ] = {}  # of those whose heads were passed over by type
        self.stopped: WaitingFor | None = None  # all that is left waits

    @property
    def partitions(self) -> Iterable[str]:
        return (partition for partition, _ in self.heads)


def choose(
    lines: Mapping[str, Sequence[Head]],
    limit: int,
    room: Room,
    queue: str,
    bounds: LaneBounds,
    *,
    start: bool = True,
) -> LaneChoice:
    """One of each partition, in the order of `lines`, then the next of each, up to `limit`."""
    chosen = LaneChoice()
    turns = deque((partition, iter(line)) for partition, line in lines.items())
    while turns and len(chosen.heads) < limit:
        partition, line = turns.popleft()
        for head in line:
            typed = (_waits(room, bound, partition, head) for bound in _typed(bounds, head))
            if passed := [waits for waits in typed if waits is not None]:
                chosen.passed.setdefault(partition, []).extend(passed)
                continue
            if stops := _first(room, bounds.total, partition, head):
                chosen.stopped = stops
                return chosen
            if waits_ := _first(room, bounds.each, partition, head):
                chosen.waits[partition] = waits_
                break
            if start:
                room.start(queue, partition, head, bounds)
            chosen.heads.append((partition, head))
            turns.append((partition, line))
            break
    return chosen


def _typed(bounds: LaneBounds, head: Head) -> Iterable[Bound]:
    return (bound for bound in bounds.typed if head.type in bound.types)


def _waits(room: Room, bound: Bound, partition: str, head: Head) -> WaitingFor | None:
    return room.wait(bound, partition, cost_of(bound, head.costs))


def _first(room: Room, bounds: Sequence[Bound], partition: str, head: Head) -> WaitingFor | None:
    for bound in bounds:
        waits = _waits(room, bound, partition, head)
        if waits is not None:
            return waits
    return None


def applying(bounds: LaneBounds, type_: str) -> Iterable[Bound]:
    """Those under which a task of this type starts."""
    return (
        *bounds.total,
        *bounds.each,
        *(bound for bound in bounds.typed if type_ in bound.types),
    )


class Waiting:
    """What queued tasks wait for, by queue: for `start_at`."""

    def __init__(self) -> None:
        self._ready: set[str] = set()
        self._until: dict[str, Instant] = {}

    def ready(self, queue: str) -> None:
        self._ready.add(queue)

    def add(self, queue: str, waits: WaitingFor | None) -> None:
        if waits is not None and waits.until is not None:
            self._until[queue] = min(waits.until, self._until.get(queue, waits.until))

    def knows(self, want: Want) -> bool:
        return want.queue in self._ready

    @property
    def start_at(self) -> Mapping[str, Instant]:
        return {queue: at for queue, at in self._until.items() if queue not in self._ready}
