"""Whole ledgers: copied into others, backed up into files, restored and checked."""

from __future__ import annotations

from pathlib import Path

from onward.core.errors import Invalid
from onward.ledgers.portable.file import BackupFile
from onward.ledgers.portable.records import Portable
from onward.urls import shown


def open_portable(place: str, *, prefix: str = "") -> Portable:
    """By its URL; without a scheme it is a file."""
    scheme, _, _ = place.partition("://")
    if "://" not in place:
        return BackupFile(Path(place))
    if scheme in ("redis", "rediss", "unix"):
        from onward.ledgers.redis.portable import RedisPortable

        return RedisPortable(place, prefix)
    if scheme == "sqlite":
        from onward.ledgers.sqlite.portable import sqlite_portable

        return sqlite_portable(place.removeprefix("sqlite:///"))
    if scheme in ("postgresql", "postgres"):
        from onward.ledgers.postgres.portable import postgres_portable

        return postgres_portable(place)
    raise Invalid(f"no ledger is known for {shown(place)!r}")
