"""Many servers on one Redis (or Valkey), 7.0 or newer."""

from __future__ import annotations

import time
from collections.abc import Sequence

import structlog

from onward.core.clock import measured, wall_ahead_ms
from onward.core.contract import Enqueued, Gauge
from onward.ledgers.redis.bell import RedisBell
from onward.ledgers.redis.client import Functions, connect
from onward.ledgers.redis.documents import RedisDocuments, RedisEffects, RedisSessions
from onward.ledgers.redis.keeping import damages, weaknesses
from onward.ledgers.redis.sealed_texts import RedisSealedTexts
from onward.ledgers.redis.store import RedisStore

LOOK_EVERY_S = 10.0

log = structlog.get_logger("onward.redis")


class RedisBackend:
    shared = True
    enqueued: Enqueued | None = None

    def __init__(self, url: str, *, prefix: str = "", volatile: bool = False) -> None:
        """`volatile`: that this Redis may lose its tasks is known, and wanted."""
        self.redis: str | None = url
        self._redis = connect(url, timeout_s=None)  # a listener waits for as long as it takes
        self.functions = Functions(self._redis, prefix)
        self.tasks = RedisStore(self.functions)
        self.documents = RedisDocuments(self.functions)
        self.effects = RedisEffects(self.functions)
        self.sessions = RedisSessions(self.functions)
        self.bell = RedisBell(self.functions, self._redis)
        self.sealed_texts = [RedisSealedTexts(self.functions, self.tasks)]

        self.ahead_ms = wall_ahead_ms()  # until it is measured
        self.warnings: Sequence[str] = ()
        self._volatile = volatile
        self._look_at = 0.0

    def gauges(self) -> Sequence[Gauge]:
        return ()

    async def maintain(self) -> None:
        await self.functions.prepare()
        await self.functions.recognise()
        self.ahead_ms = await measured(self._time_ms, self.ahead_ms)
        if time.monotonic() >= self._look_at:
            await self._look()
            self._look_at = time.monotonic() + LOOK_EVERY_S
        await self.bell.check()

    async def _time_ms(self) -> float:
        seconds, microseconds = await self.functions.command("TIME")
        return int(seconds) * 1000 + int(microseconds) / 1000

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
