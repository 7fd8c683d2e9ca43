"""A real server in this process, and a line to it that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from onward.client.http import Client
from onward.client.service import Service
from onward.client.worker import Transport, Worker
from onward.settings import Settings
from onward.testing.sandbox import serving
from onward.wire.frames import RegisterFrame
from onward.workers.ledger.pull import LedgerTransport
from tests.servers import fresh_url
from tests.support import wait_until


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[str]:
    """The URL of a server on a ledger in memory."""
    chosen = Settings(**{"ledger": "sqlite://", "port": 0, **settings})
    async with serving(chosen) as (_, url):
        yield url


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
        self.refused = 0  # so many end before anything is passed on
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
        if self.refused:
            self.refused -= 1
            writer.transport.abort()
            return
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
    said = await wait_until(
        lambda: client.explain(task), holds=lambda said: said.reason == "unknown_service"
    )
    assert "this worker serves no" in said.sentence
    types = [event.type for event in (await client.events(task)).items]
    assert "task.released" in types
    assert not {"task.retrying", "task.failed"} & set(types)


class Served:
    """A server, and a worker on it by one of the transports."""

    def __init__(self, url: str, client: Client, serving: dict[str, Any]) -> None:
        self.url = url
        self.client = client
        self._serving = serving

    async def start(self, worker: Worker) -> asyncio.Task[None]:
        task = asyncio.create_task(worker.serve(**self._serving))
        await wait_until(lambda: worker.connected or task.done())
        return task


@pytest.fixture(params=["socket", "http", "ledger"])
async def site(request: pytest.FixtureRequest) -> Any:
    ledger = fresh_url("valkey") if request.param == "ledger" else "sqlite://"
    settings = Settings(ledger=ledger)

    def make(
        me: RegisterFrame, services: Mapping[str | None, Service], on_drain: Callable[[], None]
    ) -> Transport:
        return LedgerTransport(
            settings,
            name=str(me.worker_id),
            most={},
            slots=1,
            services={name: service for name, service in services.items() if name is not None},
            groups={},
            queues=me.services,
            on_drain=on_drain,
        )

    ways: dict[str, Any] = {
        "socket": {},
        "http": {"listen": "http://127.0.0.1:0"},
        "ledger": {"transport": make},
    }
    async with served(ledger=ledger) as url, Client(url) as client:
        yield Served(url, client, ways[request.param])
