"""Many servers on one Redis (or Valkey), 7.0 or newer."""

from __future__ import annotations

from onward.backends.redis.bell import RedisBell
from onward.backends.redis.client import Functions, connect
from onward.backends.redis.documents import RedisDocuments, RedisEffects
from onward.backends.redis.store import RedisStore


class RedisBackend:
    def __init__(self, url: str, *, prefix: str = "") -> None:
        self.redis = connect(url)
        self._listening = connect(url, timeout_s=None)
        self.functions = Functions(self.redis, prefix)
        self.tasks = RedisStore(self.functions)
        self.documents = RedisDocuments(self.functions)
        self.effects = RedisEffects(self.functions)
        self.bell = RedisBell(self.redis, self._listening, prefix)

    async def maintain(self) -> None:
        pass

    async def close(self) -> None:
        await self.bell.close()
        await self.redis.aclose()
        await self._listening.aclose()
