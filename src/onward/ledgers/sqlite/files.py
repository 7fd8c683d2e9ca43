"""The files of a ledger: their permissions, and the lock that keeps them to one process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

import structlog

from onward.core.errors import LedgerUnavailable

log = structlog.get_logger("onward.sqlite")

PRIVATE = 0o600  # payloads and webhooks' secrets are for the server's user alone
MAC_FLUSH = getattr(fcntl, "F_FULLFSYNC", None)


def create_private(path: str) -> None:
    """Make the file unless it is there. SQLite gives -wal and -shm the same mode.

    The mode of a file that is there stays: it may be open to a group on purpose.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # Never one that is there: closing it would let go of the locks that SQLite holds on it here.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE))
    if Path(path).is_file() and Path(path).stat().st_mode & 0o007:
        log.warning(
            "every user of this machine can open a file of the ledger: chmod o-rwx", path=path
        )


def take(path: str) -> IO[str]:
    """Make the file unless it is there, and lock it for this process alone."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        lock = _own(path)
        try:
            create_private(path)
            _refuse_second_name(path)
        except BaseException:
            lock.close()
            raise
    except OSError as error:
        raise cannot_open(path, error) from error
    return lock


def cannot_open(path: str, error: BaseException) -> LedgerUnavailable:
    return LedgerUnavailable(f"{path} cannot be opened: {error}", hint="onward doctor shows why")


class InUse(LedgerUnavailable):
    """Another process has the file."""


def _own(path: str) -> IO[str]:
    """One server a file: two would each trust its own counters."""
    # Private as well: a user who can open it can lock it, and then no server starts.
    handle = os.open(f"{path}.lock", os.O_RDWR | os.O_APPEND | os.O_CREAT, PRIVATE)
    lock = os.fdopen(handle, "a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        owner = lock.read().strip() or "another process"
        lock.close()
        raise InUse(
            f"{path} is in use by {owner}",
            hint="stop it, or name another file with --ledger sqlite:///other.db",
        ) from None
    lock.truncate(0)
    lock.write(f"process {os.getpid()}")
    lock.flush()
    return lock


def _refuse_second_name(path: str) -> None:
    """Lock and write-ahead log are found by the file's name. Under a second name (a hard link)
    another server would have a lock and a log of its own, and the two would ruin the file.
    """
    if Path(path).is_file() and Path(path).stat().st_nlink > 1:
        raise LedgerUnavailable(
            f"{path} has a second name (a hard link)",
            hint=f"remove the other name (find it by: find / -samefile {path}), or make it a copy",
        )


def flusher(file: int) -> Callable[[int], object]:
    """What puts a file's data on disk for sure on this system."""
    if MAC_FLUSH is not None:  # there fsync leaves the data in the drive's own memory
        flush = partial(fcntl.fcntl, cmd=MAC_FLUSH)
        try:
            flush(file)
        except OSError:
            return os.fsync  # a file system that does not know it
        return flush
    return getattr(os, "fdatasync", os.fsync)
