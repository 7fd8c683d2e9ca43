"""Where `now` comes from. Nothing else in core, flow or the stores reads a clock."""

from __future__ import annotations

import time
from typing import Protocol

from onward.core.task import Instant


class Clock(Protocol):
    def now(self) -> Instant: ...


class SystemClock:
    def now(self) -> Instant:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, at: Instant = 1_700_000_000_000) -> None:
        self._at = at

    def now(self) -> Instant:
        return self._at

    def advance(self, ms: int) -> None:
        self._at += ms
