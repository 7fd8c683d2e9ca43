"""Where `now` comes from. Nothing else in core, flow or the stores reads a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from onward.core.task import Instant


class Clock(Protocol):
    def now(self) -> Instant: ...


class SystemClock:
    def now(self) -> Instant:
        return time.time_ns() // 1_000_000


class SharedClock:
    """This machine's clock set right by the ledger's, so that servers on one ledger agree."""

    def __init__(self, ahead_ms: Callable[[], int]) -> None:
        self._ahead_ms = ahead_ms

    def now(self) -> Instant:
        return time.time_ns() // 1_000_000 + self._ahead_ms()


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, at: Instant = 1_700_000_000_000) -> None:
        self._at = at

    def now(self) -> Instant:
        return self._at

    def advance(self, ms: int) -> None:
        self._at += ms
