"""A server, a Valkey, and the SDK's workers on its streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import redis.asyncio

from onward.client.http import Client, Options, TaskView
from onward.client.worker import Worker
from tests.client.conftest import served
from tests.servers import fresh_url
from tests.streams.stream_app import GROUP, TASKS
from tests.support import wait_until

OVER: Options = {"queue": "streams", "backoff_ms": [1]}


class Site:
    """A server, a Valkey, and workers on its streams."""

    agents = False  # whether they are services of agents

    def __init__(self, url: str, client: Client, redis_url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self.client = client
        self.redis_url = redis_url
        self.redis: Any = redis.asyncio.Redis.from_url(redis_url, protocol=2)
        self._stack = stack

    async def start(self, worker: Worker) -> None:
        self.serving = serving = asyncio.create_task(
            worker.serve(redis=self.redis_url, agents=self.agents)
        )

        async def stop() -> None:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

        self._stack.push_async_callback(stop)
        await wait_until(lambda: worker.connected or serving.done())
        if serving.done():
            serving.result()

    async def ended(self, type: str, payload: Any = None, **options: Any) -> TaskView:
        over = {} if self.agents else OVER
        task = await self.client.submit(type, payload or {}, **{**over, **options})
        return await self.client.wait(task.id, timeout_ms=60_000)

    async def running(self, task: str) -> None:
        await wait_until(lambda: self.client.get(task), holds=lambda it: it.phase == "running")

    async def types(self, task: str) -> list[str]:
        return [event.type for event in (await self.client.events(task)).items]

    async def declared(self, *names: str) -> None:
        async def all_known() -> bool:
            return {service.name for service in await self.client.services()} >= set(names)

        await wait_until(all_known)

    async def consumers(self) -> dict[str, int]:
        rows = await self.redis.xinfo_consumers(TASKS, GROUP)
        return {row["name"].decode(): row["pending"] for row in rows}


@asynccontextmanager
async def open_site(**settings: Any) -> AsyncIterator[Site]:
    url = fresh_url("valkey")
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(served(redis=url, drain_ms=0, **settings))
        client = await stack.enter_async_context(Client(server))
        here = Site(server, client, url, stack)
        stack.push_async_callback(here.redis.aclose)
        yield here
