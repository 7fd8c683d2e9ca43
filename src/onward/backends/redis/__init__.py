"""Many servers on one Redis (or Valkey), 7.0 or newer."""

from __future__ import annotations

import time
from collections.abc import Sequence

import structlog

from onward.backends.redis.bell import RedisBell
from onward.backends.redis.cells import RedisCells
from onward.backends.redis.client import Functions, connect
from onward.backends.redis.documents import RedisDocuments, RedisEffects
from onward.backends.redis.keeping import damages, weaknesses
from onward.backends.redis.sessions import RedisSessions
from onward.backends.redis.store import RedisStore

MEASURE_EVERY_S = 10.0
WORTH_MS = 5  # less is the measuring itself
LONGEST_TRIP_S = 0.2  # a time that came later is off by as much as half of that

log = structlog.get_logger("onward.redis")


class RedisBackend:
    def __init__(self, url: str, *, prefix: str = "", volatile: bool = False) -> None:
        """`volatile`: that this Redis may lose its tasks is known, and wanted."""
        self._redis = connect(url, timeout_s=None)  # a listener waits for as long as it takes
        self.functions = Functions(self._redis, prefix)
        self.tasks = RedisStore(self.functions)
        self.documents = RedisDocuments(self.functions)
        self.effects = RedisEffects(self.functions)
        self.sessions = RedisSessions(self.functions)
        self.bell = RedisBell(self.functions, self._redis, self.tasks)
        self.cells = [RedisCells(self.functions, self.tasks)]

        self.ahead_ms = 0
        self.warnings: Sequence[str] = ()
        self._volatile = volatile
        self._measure_at = 0.0

    async def maintain(self) -> None:
        await self.functions.prepare()
        await self.functions.recognise()
        if time.monotonic() >= self._measure_at:
            self.ahead_ms = await self._measure()
            await self._look()
            self._measure_at = time.monotonic() + MEASURE_EVERY_S
        if await self.bell.hears():
            self.functions.board.doubt()

    async def _measure(self) -> int:
        """Redis said its time somewhere between asking and hearing: in the middle, we assume."""
        asked, began = time.time(), time.monotonic()
        seconds, microseconds = await self.functions.command("TIME")
        if time.monotonic() - began > LONGEST_TRIP_S:
            return self.ahead_ms  # as last measured
        said = int(seconds) + int(microseconds) / 1e6
        ahead_ms = round((said - (asked + time.time()) / 2) * 1000)
        return ahead_ms if abs(ahead_ms) >= WORTH_MS else 0

    async def _look(self) -> None:
        found = list(await damages(self.functions))
        if not self._volatile:
            found += await weaknesses(self.functions)
        for warning in found:
            if warning not in self.warnings:
                log.warning("the ledger needs attention", reason=warning, hint="onward doctor")
        self.warnings = found

    async def close(self) -> None:
        await self.bell.close()
        await self.functions.close()
        await self._redis.aclose()
