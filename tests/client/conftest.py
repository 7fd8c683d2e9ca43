"""A real server in this process, and a line to it that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from onward.app import build
from onward.client.http import Client
from onward.client.worker import Worker
from onward.server import server as make_server
from onward.settings import Settings
from tests.support import wait_until


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[str]:
    """The URL of a server on a ledger in memory."""
    chosen = Settings(**{"ledger": "sqlite://", "port": 0, **settings})
    app = build(chosen)
    server = make_server(app, chosen, drain=app.drain)
    serving = asyncio.create_task(server._serve())
    await wait_until(lambda: server.started or serving.done())
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with served() as url:
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(url) as client:
        yield client


Start = Callable[[Worker], Awaitable[None]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Let a worker serve until the test is over."""
    async with AsyncExitStack() as stack:

        async def start(worker: Worker) -> None:
            serving = asyncio.create_task(worker.serve())

            async def stop() -> None:
                serving.cancel()
                await asyncio.wait([serving])

            stack.push_async_callback(stop)
            await wait_until(lambda: worker.connected or serving.done())
            if serving.done():
                serving.result()

        yield start


class Line:
    """Carries bytes to a server and back, until it is cut."""

    def __init__(self, url: str) -> None:
        self._to = int(url.rpartition(":")[2])
        self._writers: list[asyncio.StreamWriter] = []
        self.url = ""
        self.swallow_answers = 0  # so many connections end when their first answer comes,
        self.passing = 0  # after so many that do not
        self.connections = 0

    async def open(self) -> asyncio.Server:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        swallow = self.swallow_answers > 0 and not self.passing
        self.swallow_answers -= swallow
        self.passing -= self.passing > 0
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers += [writer, far_writer]

        async def there() -> None:
            while data := await reader.read(65536):
                far_writer.write(data)

        async def back() -> None:
            while data := await far_reader.read(65536):
                if swallow:
                    return
                writer.write(data)

        ways = {asyncio.create_task(there()), asyncio.create_task(back())}
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.transport.abort()
            far_writer.transport.abort()


@pytest.fixture
async def line(url: str) -> AsyncIterator[Line]:
    line = Line(url)
    server = await line.open()
    yield line
    line.cut()
    server.close()
    await server.wait_closed()


async def wait_until_put_off(client: Client, task: str) -> None:
    """Handed back by a worker that cannot do it: no attempt is burned, and `explain` says why."""
    async with asyncio.timeout(30):
        while (said := await client.explain(task)).reason != "unknown_service":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert "this worker serves no" in said.sentence
    types = [event.type for event in (await client.events(task)).items]
    assert "task.released" in types
    assert not {"task.retrying", "task.failed"} & set(types)
