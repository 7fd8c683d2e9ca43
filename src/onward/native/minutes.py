"""What was done in the last day, by minute and service: counted in memory, kept in the ledger.

Each server writes what it has done itself, once a minute, into a document that ten minutes share;
a reader adds up the servers' documents. They expire after a day, so that the series never grows.
Never an answer to anything but "how does it look?": a server that is killed loses a minute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import structlog

from onward.core.dispatch import Dispatcher
from onward.core.measures import Histogram, ServiceMeasures
from onward.core.task import Instant, State
from onward.errors import OnwardError
from onward.native.slow_reads import SlowReads
from onward.wire.series import DAY_MS

log = structlog.get_logger("onward.series")

KIND = "series"
MINUTE_MS = 60_000
CHUNK_MS = 10 * MINUTE_MS  # a document
QUEUES = 100  # whose depth is kept: the fullest ones

ENDED = (State.SUCCEEDED, State.FAILED, State.DEAD, State.CANCELED)
_SUBMITTED = "task.created"
_Buckets = dict[int, int]  # by number, those that are not empty


class Served(msgspec.Struct, frozen=True, array_like=True):
    """What one service did in one minute."""

    ended: tuple[int, int, int, int]  # in the order of ENDED
    retried: int
    waited: _Buckets
    ran: _Buckets


class Minute(msgspec.Struct, frozen=True, array_like=True):
    at: Instant
    submitted: int
    services: dict[str, Served]
    depths: dict[str, tuple[int, int]]  # by queue: queued, running; the same on every server


class Counted(msgspec.Struct, frozen=True):
    """The counters of this process, as they were at one moment."""

    submitted: int
    services: Mapping[str, Served]

    @staticmethod
    def of(dispatcher: Dispatcher) -> Counted:
        measures = dispatcher.measures.by_service()
        services = {name: _served(one) for name, one in measures.items()}
        return Counted(dispatcher.tally.get(_SUBMITTED, 0), services)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Minute]).decode


class Minutes:
    def __init__(self, dispatcher: Dispatcher, server: str) -> None:
        self._dispatcher = dispatcher
        self._documents = dispatcher.backend.documents
        self._server = server
        self._chunk: Sequence[Minute] = ()  # of the document that is being written
        self._before = Counted.of(dispatcher)
        self._at = _minute(dispatcher.clock.now())  # the minute that is being counted
        self._reads: SlowReads[Sequence[Minute]] = SlowReads()

    async def sample(self) -> None:
        """Called each second: a minute that is over is written, with what was done in it."""
        if _minute(self._dispatcher.clock.now()) > self._at:
            await self._write()

    async def _write(self) -> None:
        now, begun = self._dispatcher.clock.now(), _chunk(self._at)
        after = Counted.of(self._dispatcher)
        chunk = [one for one in self._chunk if one.at >= begun]
        chunk.append(await self._since_before(after))
        await self._documents.put(
            KIND,
            f"{begun}.{self._server}",
            _encode(chunk).decode(),
            now=now,
            expires_at=begun + CHUNK_MS + DAY_MS,
        )
        # Only now: what could not be written is written a second later, into the same minute.
        self._chunk, self._before, self._at = chunk, after, _minute(now)

    async def close(self) -> None:
        """The last part of a minute."""
        try:
            await self._write()
        except OnwardError as error:
            log.warning("the last minute of the series is lost", error=repr(error))

    async def read(self, now: Instant) -> Sequence[Minute]:
        """Of all servers, in no order; and what this one did since its last minute."""
        open_minute = await self._since_before(Counted.of(self._dispatcher))
        return [*await self._kept(now), open_minute]

    async def _kept(self, now: Instant) -> Sequence[Minute]:
        async def read() -> tuple[Sequence[Minute], int]:
            found = await self._documents.list(KIND, now=now)
            minutes = [minute for document in found for minute in _decode(document.body)]
            return minutes, sum(len(minute.services) for minute in minutes)

        return await self._reads.get(KIND, read)

    async def _since_before(self, after: Counted) -> Minute:
        depths: dict[str, list[int]] = {}
        for (queue, _, state), count in (await self._dispatcher.backend.tasks.counts()).items():
            if count and state in (State.QUEUED, State.RUNNING):
                depths.setdefault(queue, [0, 0])[state is State.RUNNING] += count
        fullest = sorted(depths, key=lambda queue: (-sum(depths[queue]), queue))[:QUEUES]
        before = self._before
        return Minute(
            at=self._at,
            submitted=after.submitted - before.submitted,
            services={
                name: _since(counted, before.services.get(name))
                for name, counted in after.services.items()
                if counted != before.services.get(name)
            },
            depths={queue: (depths[queue][0], depths[queue][1]) for queue in fullest},
        )


def _minute(now: Instant) -> Instant:
    return now // MINUTE_MS * MINUTE_MS


def _chunk(now: Instant) -> Instant:
    return now // CHUNK_MS * CHUNK_MS


def _served(measures: ServiceMeasures) -> Served:
    succeeded, failed, dead, canceled = (measures.endings[state] for state in ENDED)
    return Served(
        ended=(succeeded, failed, dead, canceled),
        retried=measures.retries,
        waited=_buckets(measures.waited),
        ran=_buckets(measures.ran),
    )


def _buckets(histogram: Histogram) -> _Buckets:
    return {place: count for place, count in enumerate(histogram.counts) if count}


def _since(after: Served, before: Served | None) -> Served:
    if before is None:
        return after
    pairs = zip(after.ended, before.ended, strict=True)
    succeeded, failed, dead, canceled = (one - other for one, other in pairs)
    return Served(
        ended=(succeeded, failed, dead, canceled),
        retried=after.retried - before.retried,
        waited=dict(Counter(after.waited) - Counter(before.waited)),
        ran=dict(Counter(after.ran) - Counter(before.ran)),
    )
