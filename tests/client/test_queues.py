"""Tasks in another queue than their type's, done by workers that claim it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from onward import Worker
from onward.client.http import Client
from onward.client.worker import Transport
from onward.services.function import Service
from onward.settings import Settings
from onward.wire.frames import RegisterFrame
from onward.workers.ledger.pull import LedgerTransport
from tests.client.conftest import served, wait_until_put_off
from tests.servers import fresh_url
from tests.support import wait_until


def embedder(url: str, *queues: str, name: str = "embed") -> Worker:
    worker = Worker(url, queues=queues)

    @worker.service(name=name)
    async def embed(text: str) -> int:
        return len(text)

    return worker


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


@pytest.mark.contract("R-1")
@pytest.mark.parametrize("name", ["embed", "emb.c0"])
async def test_a_worker_does_a_type_in_another_queue_that_it_claims(
    site: Served, name: str
) -> None:
    """By the function that the type names, or else the queue."""
    serving = await site.start(embedder(site.url, "emb.c0", name=name))
    task = await site.client.submit("embed", {"text": "four"}, queue="emb.c0")
    ended = await site.client.wait(task.id, timeout_ms=30_000)
    assert (ended.state, ended.result, ended.attempt) == ("succeeded", 4, 1)
    serving.cancel()
    await asyncio.wait([serving])


@pytest.mark.contract("R-1")
async def test_a_task_that_its_worker_cannot_do_burns_nothing_and_is_done_by_another(
    site: Served,
) -> None:
    wrong = await site.start(embedder(site.url, "emb.c0", name="other"))
    task = await site.client.submit("embed", {"text": "four"}, queue="emb.c0", max_retries=0)
    await wait_until_put_off(site.client, task.id)
    wrong.cancel()
    await asyncio.wait([wrong])
    right = await site.start(embedder(site.url, "emb.c0"))
    ended = await site.client.wait(task.id, timeout_ms=60_000)
    assert (ended.state, ended.result, ended.attempt, ended.error) == ("succeeded", 4, 1, None)
    right.cancel()
    await asyncio.wait([right])


def test_over_streams_there_are_no_queues_to_claim() -> None:
    worker = embedder("http://127.0.0.1:1", "emb.c0")
    with pytest.raises(ValueError, match="queues need a socket"):
        asyncio.run(worker.serve(redis="redis://127.0.0.1:1"))
