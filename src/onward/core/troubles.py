"""What fails again and again: one list for all background jobs.

Each repeated job reports how each round went. A job that has failed several rounds in a row, for a
while, is in trouble until a round goes well. Read by /health; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from onward.core.clock import uptime_ms
from onward.errors import OnwardError

TIMES = 5  # in a row
LONG_MS = 10_000


class _Failing(msgspec.Struct):
    since_ms: int
    times: int
    error: str


class Troubles:
    def __init__(self, uptime_ms: Callable[[], int] = uptime_ms) -> None:
        self._uptime_ms = uptime_ms
        self._failing: dict[str, _Failing] = {}

    def failed(self, job: str, error: BaseException) -> None:
        # Of errors that are not ours only the name: what they quote is not public.
        text = str(error) if isinstance(error, OnwardError) else type(error).__name__
        found = self._failing.get(job)
        if found is None:
            self._failing[job] = _Failing(self._uptime_ms(), 1, text)
        else:
            found.times += 1
            found.error = text

    def ended(self, job: str, error: BaseException) -> None:
        """It will not be tried again: in trouble at once, until a restart."""
        self._failing[job] = _Failing(self._uptime_ms() - LONG_MS, TIMES, type(error).__name__)

    def went_well(self, job: str) -> None:
        self._failing.pop(job, None)

    def in_trouble(self) -> Mapping[str, str]:
        """The jobs that fail, and what each fails with."""
        now_ms = self._uptime_ms()
        return {
            job: f"failed {found.times} times in a row: {found.error}"
            for job, found in self._failing.items()
            if found.times >= TIMES and now_ms - found.since_ms >= LONG_MS
        }
