"""Readings that cost much and that every open page repeats, as when thousands of tasks die.

A reading of many rows is shown again for five times as long as it took, so that such readings take
at most about a fifth of a server's time, however many pages are open. Those who ask while it is
being read share it. A reading of few rows is never kept: it is always up to date.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

MANY = 2_000  # rows; fewer are read anew each time
TIMES = 5
MOST = 64  # readings kept


class _Kept(NamedTuple, Generic[T]):
    value: T
    until: float


class SlowReads(Generic[T]):
    def __init__(self) -> None:
        self._kept: dict[Hashable, _Kept[T]] = {}
        self._reading: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, key: Hashable, read: Callable[[], Awaitable[tuple[T, int]]]) -> T:
        """`read` returns the value and how many rows it took."""
        kept = self._kept.get(key)
        if kept is not None and time.monotonic() < kept.until:
            return kept.value
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.create_task(self._read(key, read))
        return await asyncio.shield(reading)  # one caller who leaves must not take it from others

    def forget(self) -> None:
        """Something was changed here: who changed it sees it. A reading under way is not kept."""
        self._kept.clear()
        self._reading.clear()

    async def _read(self, key: Hashable, read: Callable[[], Awaitable[tuple[T, int]]]) -> T:
        began = time.monotonic()
        mine = asyncio.current_task()
        try:
            value, rows = await read()
            now = time.monotonic()
            if rows >= MANY and self._reading.get(key) is mine:
                self._kept = {other: kept for other, kept in self._kept.items() if kept.until > now}
                if len(self._kept) < MOST:
                    self._kept[key] = _Kept(value, now + TIMES * (now - began))
            return value
        finally:
            if self._reading.get(key) is mine:
                del self._reading[key]
