"""Readers of the event log: how far each has read."""

from __future__ import annotations

from onward.wire.base import Instant, Wire


class ReaderView(Wire, frozen=True):
    name: str
    cursor: str
    behind_ms: int  # since the first event was written that it has not read; 0: it has read all
    seen_at: Instant | None
    silent_ms: int
    retired: bool  # finished tasks no longer wait for it
