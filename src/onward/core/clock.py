"""Where `now` comes from. Nothing else in core, flow or the stores reads a clock.

Between two instants as much passes as the machine has been up, asleep included: one bad look at the
reference moves `now` by a fiftieth of that at most. The reference is the ledger's time, or the wall
clock where the ledger has none. Found far behind it several times in a row, `now` steps forward.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from onward.core.task import Instant

log = structlog.get_logger("onward.clock")

SYNC_MS = 1_000  # between two looks at the reference
SLEW = 50  # so many milliseconds pass while `now` is corrected by one
FAR_MS = 5_000  # less is only slewed
LOOKS = 3  # so many in a row must find `now` far behind before it steps

WORTH_MS = 5  # of a difference between two clocks: less is the measuring itself
LONGEST_TRIP_S = 0.2  # a time that came later is off by as much as half of that

# Linux stops CLOCK_MONOTONIC while it is suspended, and has a clock that goes on.
_UPTIME = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def uptime_ms() -> int:
    """Never set, never slewed by us; only differences mean anything."""
    ns = time.monotonic_ns() if _UPTIME is None else time.clock_gettime_ns(_UPTIME)
    return ns // 1_000_000


def wall_ms() -> Instant:
    return time.time_ns() // 1_000_000


def wall_ahead_ms() -> int:
    """How far the wall clock is ahead of the uptime."""
    return wall_ms() - uptime_ms()


async def measured(read_ms: Callable[[], Awaitable[float]], before: int) -> int:
    """How far a ledger's own clock is ahead of the uptime, measured over a connection.

    It read its clock somewhere between question and answer: in the middle, we assume. Against the
    uptime, so that a wall clock that is set between two measurements is not seen. `before`: as last
    measured.
    """
    asked, began = uptime_ms(), time.monotonic()
    ledger_ms = await read_ms()
    if time.monotonic() - began > LONGEST_TRIP_S:
        return before
    ahead_ms, wall = round(ledger_ms - (asked + uptime_ms()) / 2), wall_ahead_ms()
    return ahead_ms if abs(ahead_ms - wall) >= WORTH_MS else wall


class Clock(Protocol):
    @property
    def steps(self) -> int:
        """How often `now` has stepped forward: leases may look lapsed with no worker lost."""
        ...

    def now(self) -> Instant: ...


class SharedClock:
    """This machine's uptime set right by the ledger's time, so that servers on one ledger agree.

    `ahead_ms`: how far the reference is ahead of the uptime.
    """

    def __init__(
        self, ahead_ms: Callable[[], int], *, uptime_ms: Callable[[], int] = uptime_ms
    ) -> None:
        self.steps = 0
        self._ahead_ms = ahead_ms
        self._uptime_ms = uptime_ms
        self._base: int | None = None  # what is added to the uptime
        self._synced = 0
        self._last: Instant = 0
        self._behind = 0  # looks in a row that found `now` far behind
        self._ahead = False  # `now` is far ahead of the reference

    def now(self) -> Instant:
        up = self._uptime_ms()
        if self._base is None:
            self._base, self._synced = self._ahead_ms(), up
        elif up - self._synced >= SYNC_MS:
            self._base += self._correction(self._ahead_ms() - self._base, up - self._synced)
            self._synced = up
        self._last = max(self._last, up + self._base)
        return self._last

    def adopt(self) -> None:
        """Take the ledger's time over at once. For a start: no task is held here yet."""
        self._base = None
        self._last = 0

    def _correction(self, wrong_ms: int, passed_ms: int) -> int:
        # Behind: the uptime stood still (a virtual machine that was paused, or went on from a
        # snapshot), and to other servers our leases look lapsed. Never backwards: what has
        # happened would come before its cause.
        self._behind = self._behind + 1 if wrong_ms > FAR_MS else 0
        if self._behind == LOOKS:
            self._behind = 0
            self.steps += 1
            log.warning("time steps forward to the reference clock", by_s=wrong_ms // 1000)
            return wrong_ms
        ahead = wrong_ms < -FAR_MS
        if ahead and not self._ahead:
            log.warning(
                "the reference clock was set back; it is followed slowly",
                off_s=wrong_ms // 1000,
                hint="restart the servers to follow at once",
            )
        self._ahead = ahead
        most_ms = passed_ms // SLEW
        return max(-most_ms, min(wrong_ms, most_ms))


class SystemClock(SharedClock):
    def __init__(self) -> None:
        super().__init__(wall_ahead_ms)


class ManualClock:
    """A clock that stands still until a test moves it."""

    steps = 0

    def __init__(self, at: Instant = 1_700_000_000_000) -> None:
        self._at = at

    def now(self) -> Instant:
        return self._at

    def advance(self, ms: int) -> None:
        self._at += ms
