"""Queues that an operator has paused: nothing is claimed from them until they are resumed.

A document a queue, read by every server once a second. Work goes on being accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Documents
from onward.core.task import Instant, encode

KIND = "pause"


class QueuePause(msgspec.Struct, frozen=True, kw_only=True):
    since: Instant
    by: str | None = None
    reason: str | None = None


_decode = msgspec.json.Decoder(QueuePause).decode


class Pauses:
    def __init__(
        self, documents: Documents, clock: Clock, *, changed: Callable[[str], None]
    ) -> None:
        self._documents = documents
        self._clock = clock
        self._changed = changed
        self._paused: dict[str, QueuePause] = {}

    def paused(self) -> Mapping[str, QueuePause]:
        return self._paused

    async def pause(
        self, queue: str, *, by: str | None = None, reason: str | None = None
    ) -> QueuePause:
        """The first pause stands: a queue that is paused already keeps its reason."""
        now = self._clock.now()
        pause = QueuePause(since=now, by=by, reason=reason)
        await self._documents.put(KIND, queue, encode(pause), now=now, expect=0)
        await self.read()
        return self._paused.get(queue, pause)

    async def resume(self, queue: str) -> bool:
        gone = await self._documents.delete(KIND, queue)
        await self.read()
        return gone

    async def read(self) -> None:
        found = {
            doc.key: _decode(doc.body)
            for doc in await self._documents.list(KIND, now=self._clock.now())
        }
        before, self._paused = self._paused, found
        for queue in before.keys() ^ found.keys():
            self._changed(queue)
