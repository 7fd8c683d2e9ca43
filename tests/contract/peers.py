"""Other servers on the same ledger, as far as it can tell."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from onward.core.contract import Backend
from onward.core.task import Ending, TaskId
from onward.ledgers import open_backend
from onward.ledgers.redis import RedisBackend
from tests.servers import fresh_url, postgres_ledger_url, shared
from tests.support import wait_until

SHARED = ("redis7", "postgres15", "postgres18")


@asynccontextmanager
async def two_servers(name: str) -> AsyncIterator[tuple[Backend, Backend]]:
    """One ledger, opened twice."""
    url = fresh_url(name) if name.startswith("redis") else postgres_ledger_url(name)
    one, other = open_backend(url), open_backend(url)
    yield one, other
    await one.close()
    await other.close()


class Peer:
    """Another server, and what it hears."""

    def __init__(self) -> None:
        self.queues: list[str] = []
        self.tasks: list[TaskId] = []
        self.endings: list[Mapping[TaskId, Ending | None]] = []

    @property
    def ended(self) -> dict[TaskId, Ending | None]:
        return {task: ending for ended in self.endings for task, ending in ended.items()}

    def on_news(
        self, queues: Sequence[str], tasks: Sequence[TaskId], ended: Mapping[TaskId, Ending | None]
    ) -> None:
        self.queues += queues
        self.tasks += tasks
        self.endings.append(ended)


@asynccontextmanager
async def listening(
    flavour: str, *peers: Peer, to: RedisBackend | None = None
) -> AsyncIterator[None]:
    """Each peer is a server of its own, unless it is to be that of a given one."""
    backends = [to or RedisBackend(shared(flavour).url) for _ in peers]
    for backend, peer in zip(backends, peers, strict=True):
        backend.bell.attach(peer)
    await wait_until(lambda: all(backend.functions.server for backend in backends))
    yield
    for backend in backends:
        if backend is not to:
            await backend.close()
