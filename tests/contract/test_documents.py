"""The small things beside the tasks: documents and the bell."""

from __future__ import annotations

import asyncio

from onward.core.contract import Backend, Document
from tests.support import NOW, wait_until


async def test_a_document_is_kept_under_its_kind_and_key(backend: Backend) -> None:
    docs = backend.documents
    assert await docs.get("service", "a", now=NOW) is None
    assert await docs.put("service", "b", '{"n":1}', now=NOW) == Document("b", '{"n":1}', 1)
    assert await docs.put("service", "a", "{}", now=NOW) == Document("a", "{}", 1)
    assert await docs.put("service", "b", '{"n":2}', now=NOW) == Document("b", '{"n":2}', 2)
    assert await docs.get("service", "b", now=NOW) == Document("b", '{"n":2}', 2)
    assert await docs.get("worker", "b", now=NOW) is None
    assert [doc.key for doc in await docs.list("service", now=NOW)] == ["a", "b"]
    assert await docs.list("worker", now=NOW) == []


async def test_a_document_is_deleted_once(backend: Backend) -> None:
    await backend.documents.put("service", "a", "{}", now=NOW)
    assert await backend.documents.delete("service", "a") is True
    assert await backend.documents.delete("service", "a") is False
    assert await backend.documents.get("service", "a", now=NOW) is None


async def test_a_write_on_an_old_version_is_refused(backend: Backend) -> None:
    docs = backend.documents
    assert await docs.put("service", "a", "0", now=NOW, expect=1) is None
    assert await docs.put("service", "a", "1", now=NOW, expect=0) == Document("a", "1", 1)
    assert await docs.put("service", "a", "x", now=NOW, expect=0) is None
    assert await docs.put("service", "a", "2", now=NOW, expect=1) == Document("a", "2", 2)
    assert await docs.put("service", "a", "x", now=NOW, expect=1) is None
    assert await docs.get("service", "a", now=NOW) == Document("a", "2", 2)


async def test_of_racing_writers_one_wins(backend: Backend) -> None:
    calls = [backend.documents.put("lock", "a", f"{n}", now=NOW, expect=0) for n in range(10)]
    written = [doc for doc in await asyncio.gather(*calls) if doc is not None]
    assert len(written) == 1
    assert await backend.documents.get("lock", "a", now=NOW) == written[0]


async def test_a_document_past_its_time_is_not_there(backend: Backend) -> None:
    docs = backend.documents
    await docs.put("server", "a", "{}", now=NOW, expires_at=NOW + 10_000)
    await docs.put("server", "b", "{}", now=NOW)
    assert await docs.get("server", "a", now=NOW + 9_999) is not None
    assert await docs.get("server", "a", now=NOW + 10_000) is None
    assert [doc.key for doc in await docs.list("server", now=NOW + 10_000)] == ["b"]
    assert await docs.put("server", "a", "{}", now=NOW + 10_000, expect=0) is not None


async def test_a_document_written_again_lives_on(backend: Backend) -> None:
    docs = backend.documents
    await docs.put("server", "a", "{}", now=NOW, expires_at=NOW + 10_000)
    await docs.put("server", "a", "{}", now=NOW + 5_000, expires_at=NOW + 15_000)
    assert await docs.get("server", "a", now=NOW + 14_999) is not None
    await docs.put("server", "a", "{}", now=NOW + 14_999)
    assert await docs.get("server", "a", now=NOW + 10**9) is not None


# The bell.


async def heard(backend: Backend, *topics: str, ring: tuple[str, ...]) -> bool:
    rung = asyncio.Event()

    async def listen(ready: asyncio.Event) -> None:
        async with backend.bell.listen(*topics) as listener:
            ready.set()
            await listener.wait()
            rung.set()

    ready = asyncio.Event()
    listening = asyncio.create_task(listen(ready))
    await ready.wait()
    backend.bell.ring(*ring)
    # The end of the log is rung last: whoever hears that has been passed by everything before it.
    async with backend.bell.listen("last") as last:
        backend.bell.ring("last")
        async with asyncio.timeout(30):
            await last.wait()
    await asyncio.wait([listening], timeout=0)
    listening.cancel()
    await asyncio.wait([listening])
    return rung.is_set()


async def test_a_bell_reaches_the_listeners_of_its_topic(backend: Backend) -> None:
    assert await heard(backend, "queue:a", "log", ring=("queue:a",))
    assert await heard(backend, "queue:a", "log", ring=("x", "log"))
    assert not await heard(backend, "queue:a", ring=("queue:b", "log"))
    assert not await heard(backend, "queue:a", ring=())


async def test_a_ring_between_two_waits_is_not_lost(backend: Backend) -> None:
    async with backend.bell.listen("log") as listener:
        backend.bell.ring("log")
        backend.bell.ring("log")
        async with asyncio.timeout(30):
            await listener.wait()


async def test_every_listener_hears_it(backend: Backend) -> None:
    count = 0

    async def listen() -> None:
        nonlocal count
        async with backend.bell.listen("log") as listener:
            waiting.append(None)
            await listener.wait()
            count += 1

    waiting: list[None] = []
    listeners = [asyncio.create_task(listen()) for _ in range(3)]
    await wait_until(lambda: len(waiting) == 3)
    backend.bell.ring("log")
    await wait_until(lambda: count == 3)
    await asyncio.gather(*listeners)


async def test_a_bell_without_listeners_does_no_harm(backend: Backend) -> None:
    async with backend.bell.listen("log"):
        pass
    backend.bell.ring("log", "queue:nobody")
    await backend.maintain()
