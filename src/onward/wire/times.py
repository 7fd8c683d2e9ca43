"""Instants as the seeds' clients read them; everything of ours is epoch milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(at: int) -> str:
    moment = datetime.fromtimestamp(at / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
