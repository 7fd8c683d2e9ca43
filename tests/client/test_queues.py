"""Tasks in another queue than their type's, done by workers that claim it."""

from __future__ import annotations

import asyncio

import pytest

from onward import Worker
from tests.client.conftest import Served, wait_until_put_off


def embedder(url: str, *queues: str, name: str = "embed") -> Worker:
    worker = Worker(url, queues=queues)

    @worker.service(name=name)
    async def embed(text: str) -> int:
        return len(text)

    return worker


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
