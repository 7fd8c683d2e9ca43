"""Many servers on one Redis (or Valkey), 7.0 or newer."""

from __future__ import annotations

import time
from collections.abc import Sequence

from onward.backends.redis.bell import RedisBell
from onward.backends.redis.cells import RedisCells
from onward.backends.redis.client import Functions, connect
from onward.backends.redis.documents import RedisDocuments, RedisEffects
from onward.backends.redis.sessions import RedisSessions
from onward.backends.redis.store import RedisStore
from onward.core.contract import Gauge

MEASURE_EVERY_S = 10.0
WORTH_MS = 5  # less is the measuring itself


class RedisBackend:
    def __init__(self, url: str, *, prefix: str = "") -> None:
        self._redis = connect(url, timeout_s=None)  # a listener waits for as long as it takes
        self.functions = Functions(self._redis, prefix)
        self.tasks = RedisStore(self.functions)
        self.documents = RedisDocuments(self.functions)
        self.effects = RedisEffects(self.functions)
        self.sessions = RedisSessions(self.functions)
        self.bell = RedisBell(self.functions, self._redis, self.tasks)
        self.cells = [RedisCells(self.functions, self.tasks)]

        self.ahead_ms = 0
        self._measure_at = 0.0

    def gauges(self) -> Sequence[Gauge]:
        return ()

    async def maintain(self) -> None:
        await self.functions.prepare()
        if time.monotonic() >= self._measure_at:
            self.ahead_ms = await self._measure()
            self._measure_at = time.monotonic() + MEASURE_EVERY_S
        if await self.bell.hears():
            self.functions.board.doubt()

    async def _measure(self) -> int:
        """Redis said its time somewhere between asking and hearing: in the middle, we assume."""
        asked = time.time()
        seconds, microseconds = await self.functions.command("TIME")
        said = int(seconds) + int(microseconds) / 1e6
        ahead_ms = round((said - (asked + time.time()) / 2) * 1000)
        return ahead_ms if abs(ahead_ms) >= WORTH_MS else 0

    async def close(self) -> None:
        await self.bell.close()
        await self.functions.close()
        await self._redis.aclose()
