"""What a worker reports of a task while it runs: progress, parts of the output, effects.

Each request quotes the fence of its attempt: one that has lost the task is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from onward.wire.base import Body, Number, Query, Wire


class ProgressReport(Body, frozen=True):
    fence: Number
    progress: Annotated[float, Meta(ge=0, le=1)]
    message: str | None = None


class ChunkReport(Body, frozen=True):
    fence: Number
    data: Any = None


class BeginEffect(Body, frozen=True):
    fence: Number


class FinishEffect(Body, frozen=True):
    fence: Number
    value: Any = None


class UndoEffect(Query, frozen=True):
    fence: Number


class EffectView(Wire, frozen=True):
    """`unknown`: an attempt began it and never reported whether it happened."""

    state: Literal["begun", "done", "unknown"]
    value: Any | msgspec.UnsetType = msgspec.UNSET  # done
    fence: int | msgspec.UnsetType = msgspec.UNSET  # unknown: of the attempt that began it
    own: bool | msgspec.UnsetType = msgspec.UNSET  # unknown: that is this very attempt
