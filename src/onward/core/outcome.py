"""What an executor may answer when it has been handed a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from onward.core.task import Fault, Instant, Json, Note, Task


class Succeeded(msgspec.Struct, frozen=True):
    result: Json
    journal: Json | None = None
    notes: tuple[Note, ...] = ()  # events that belong to this step, before the one that ends it


class Failed(msgspec.Struct, frozen=True):
    fault: Fault
    journal: Json | None = None
    notes: tuple[Note, ...] = ()


class Canceled(msgspec.Struct, frozen=True):
    """It was asked to stop, and has put its things in order."""

    journal: Json | None = None
    notes: tuple[Note, ...] = ()


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """Waits for letters or for an instant; holds no worker meanwhile."""

    seen: int  # letters that came with the claim; if more have come since, it is queued instead
    journal: Json
    waiting_for: str
    until: Instant | None = None
    spawn: Sequence[Task] = ()  # children; the Dispatcher sees to their birth
    notes: tuple[Note, ...] = ()


class Released(msgspec.Struct, frozen=True):
    """Handed back untouched: a shutdown, not a failure.

    With a fault, the worker cannot do it at all: put off a while, or it would be claimed again at
    once by the same worker.
    """

    fault: Fault | None = None


class Lost(msgspec.Struct, frozen=True):
    """The worker went away with it."""

    detail: Json | None = None  # what the log should say of it, if more than which worker it was


Outcome: TypeAlias = Succeeded | Failed | Canceled | Parked | Released | Lost
