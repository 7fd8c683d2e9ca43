"""The bell of one process: topics and their listeners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from onward.core.contract import PeerEvents
from onward.core.task import TaskId


class LocalListener:
    def __init__(self) -> None:
        self._rung = asyncio.Event()

    async def wait(self) -> None:
        await self._rung.wait()
        self._rung.clear()

    def ring(self) -> None:
        self._rung.set()


class LocalBell:
    def __init__(self) -> None:
        self._listeners: dict[str, set[LocalListener]] = {}

    def ring(self, *topics: str) -> None:
        for topic in topics:
            for listener in self._listeners.get(topic, ()):
                listener.ring()

    def ring_for(self, queues: Iterable[str], tasks: Iterable[TaskId]) -> None:
        """These queues have new work, these tasks new events."""
        queue_topics = [f"queue:{queue}" for queue in queues]
        self.ring(*queue_topics, *[f"task:{task}" for task in tasks], "log")

    def attach(self, peer: PeerEvents) -> None:
        """There are no other servers."""

    @asynccontextmanager
    async def listen(self, *topics: str) -> AsyncIterator[LocalListener]:
        listener = LocalListener()
        for topic in topics:
            self._listeners.setdefault(topic, set()).add(listener)
        try:
            yield listener
        finally:
            for topic in topics:
                listeners = self._listeners[topic]
                listeners.discard(listener)
                if not listeners:
                    del self._listeners[topic]
