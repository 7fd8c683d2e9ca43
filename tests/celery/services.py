"""Services for the Celery processes of these tests. Each leaves a line in a file for each run."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import shared_task

from onward import Context, TryAgain


def note(path: str, word: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{word} {os.getpid()}\n")


def mark(path: str) -> str:
    note(path, "ran")
    return path


def hold(path: str) -> int:
    """Until somebody says go, or has given up."""
    note(path, "began")
    until = time.monotonic() + 20
    while not Path(f"{path}.go").exists() and time.monotonic() < until:
        time.sleep(0.01)
    note(path, "ended")
    return os.getpid()


def second_time(path: str, ctx: Context) -> int:
    note(path, "tried")
    if ctx.attempt == 1:
        raise TryAgain("not yet")
    return ctx.attempt


@shared_task(bind=True, name="shop.add", max_retries=5)
def add(self: object, x: int, y: int) -> int:
    """A task of somebody's Celery project, as it stands there."""
    return x + y
