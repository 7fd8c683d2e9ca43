"""Workers: how each is reached, which queues it serves, and whether it is draining."""

from __future__ import annotations

from onward.wire.base import Instant, Wire


class WorkerView(Wire, frozen=True):
    """A worker that is connected."""

    id: str
    transport: str
    queues: tuple[str, ...]
    slots: int
    connected_at: Instant
    stand_in: bool  # serves a queue only while no other worker does
    draining: bool  # takes no more work, and finishes what it has
    busy: int | None  # None: it works for another server, or by itself
