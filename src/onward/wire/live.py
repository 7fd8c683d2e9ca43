"""What is sent to a reader who stays connected."""

from __future__ import annotations

from typing import Any

from onward.wire.base import Wire


class ServerEvent(Wire, frozen=True):
    event: str
    data: Any
    id: str | None = None  # where a reader who comes back goes on
