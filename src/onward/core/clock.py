"""Where `now` comes from. Nothing else in core, flow or the stores reads a clock.

Between two instants as much passes as the machine has been up, asleep included: a wall clock that
is set, or one bad measurement of the ledger's, moves `now` by a fiftieth of that at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import structlog

from onward.core.task import Instant

log = structlog.get_logger("onward.clock")

SYNC_MS = 1_000  # between two looks at the wall clock
SLEW = 50  # so many milliseconds pass while `now` is corrected by one
FAR_MS = 60_000  # so far off, somebody should know

# Linux stops CLOCK_MONOTONIC while it is suspended, and has a clock that goes on.
_UPTIME = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def uptime_ms() -> int:
    """Never set, never slewed by us; only differences mean anything."""
    ns = time.monotonic_ns() if _UPTIME is None else time.clock_gettime_ns(_UPTIME)
    return ns // 1_000_000


def wall_ms() -> Instant:
    return time.time_ns() // 1_000_000


class Clock(Protocol):
    def now(self) -> Instant: ...


class SharedClock:
    """This machine's clock set right by the ledger's, so that servers on one ledger agree."""

    def __init__(
        self,
        ahead_ms: Callable[[], int],
        *,
        wall_ms: Callable[[], Instant] = wall_ms,
        uptime_ms: Callable[[], int] = uptime_ms,
    ) -> None:
        self._ahead_ms = ahead_ms
        self._wall_ms = wall_ms
        self._uptime_ms = uptime_ms
        self._base: int | None = None  # what is added to the uptime
        self._synced = 0
        self._last: Instant = 0
        self._far = False

    def now(self) -> Instant:
        up = self._uptime_ms()
        if self._base is None:
            self._base, self._synced = self._wanted(up), up
        elif up - self._synced >= SYNC_MS:
            self._base += self._correction(up, self._base)
            self._synced = up
        self._last = max(self._last, up + self._base)
        return self._last

    def adopt(self) -> None:
        """Take the ledger's time over at once. For a start: nobody holds anything yet."""
        self._base = None
        self._last = 0

    def _wanted(self, up: int) -> int:
        return self._wall_ms() + self._ahead_ms() - up

    def _correction(self, up: int, base: int) -> int:
        wrong_ms = self._wanted(up) - base
        most_ms = (up - self._synced) // SLEW
        far = abs(wrong_ms) > FAR_MS
        if far and not self._far:
            log.warning(
                "the clock of this machine was set; its servers follow slowly",
                off_s=wrong_ms // 1000,
                hint="restart them to follow at once",
            )
        self._far = far
        return max(-most_ms, min(wrong_ms, most_ms))


class SystemClock(SharedClock):
    def __init__(self) -> None:
        super().__init__(lambda: 0)


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, at: Instant = 1_700_000_000_000) -> None:
        self._at = at

    def now(self) -> Instant:
        return self._at

    def advance(self, ms: int) -> None:
        self._at += ms
