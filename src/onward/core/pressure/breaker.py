"""A service that is down is left alone: nothing is claimed for it, so no attempt is lost.

One breaker a queue. It opens when too many of the calls of the last minute failed, lets one task
through after a pause, and closes on its success; then the work that waited goes out in waves. No
task moves: an open breaker is a bound on what may be claimed. What one server finds out the others
learn from a document, and the first to write HALF_OPEN into it has the probe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Document, Documents
from onward.core.task import Instant, encode, new_id

KIND = "breaker"
WINDOW_MS = 60_000
WAVE_MS = 1_000  # after closing, each wave may be twice as big as the one before
WAVES = 10


class Circuit(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerRules(msgspec.Struct, frozen=True, kw_only=True):
    failure_share: float = 0.5
    volume: int = 10  # fewer calls than this do not open it
    pause_ms: int = 60_000


class BreakerReading(msgspec.Struct, frozen=True, kw_only=True):
    """What every server knows of a service that fails, or did so a moment ago."""

    state: Circuit
    since: Instant  # when it came into this state
    until: Instant  # open: no probe before; half-open: the probe's end; closed: no more waves
    by: str  # the server that wrote it, and has the probe
    failures: int = 0
    calls: int = 0


_decode = msgspec.json.Decoder(BreakerReading).decode


class Window:
    """Calls and failures of the last minute, second by second."""

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()  # [second, calls, failures]
        self.calls = self.failures = 0

    def add(self, calls: int, failures: int, now: Instant) -> None:
        second = now // 1000
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0, 0])
            self._forget(second - WINDOW_MS // 1000)
        last = self._seconds[-1]
        last[1] += calls
        last[2] += failures
        self.calls += calls
        self.failures += failures

    def old(self, now: Instant) -> bool:
        return self._seconds[-1][0] <= (now - WINDOW_MS) // 1000

    def _forget(self, second: int) -> None:
        while self._seconds[0][0] <= second:
            _, calls, failures = self._seconds.popleft()
            self.calls -= calls
            self.failures -= failures


class Breakers:
    def __init__(
        self,
        documents: Documents,
        clock: Clock,
        rules: BreakerRules,
        *,
        bound: Callable[[str, int | None], None],  # (queue, how many at once): None is no bound
        serves: Callable[[str], bool],  # whether a worker here could take the probe
    ) -> None:
        self._documents = documents
        self._clock = clock
        self._rules = rules
        self._bound = bound
        self._serves = serves
        self._me = new_id()
        self._windows: dict[str, Window] = {}
        self._readings: dict[str, BreakerReading] = {}
        self._versions: dict[str, int] = {}  # of the document that a reading was last seen in
        self._unwritten: set[str] = set()  # readings that the others do not have yet
        self.opened: dict[str, int] = {}  # how often, by queue, as seen from here

    def readings(self) -> Mapping[str, BreakerReading]:
        """By queue. A service that has none here is well."""
        return self._readings

    def shut(self, queue: str) -> BreakerReading | None:
        """The reading of a service to which no work goes right now."""
        reading = self._readings.get(queue)
        return None if reading is None or reading.state is Circuit.CLOSED else reading

    def record(self, queue: str, calls: int, failures: int) -> None:
        """So many calls of this service have ended, and so many of them count as its failures."""
        now = self._clock.now()
        reading = self._readings.get(queue)
        if reading is not None and reading.state is not Circuit.CLOSED:
            # Calls that were under way when it opened are not counted; only the probe is.
            if reading.state is Circuit.HALF_OPEN and reading.by == self._me:
                self._probed(queue, failures == 0, now)
            return
        window = self._windows.get(queue)
        if window is None:
            window = self._windows[queue] = Window()
        window.add(calls, failures, now)
        enough = window.calls >= self._rules.volume
        if failures and enough and window.failures >= self._rules.failure_share * window.calls:
            self._open(queue, now, window.failures, window.calls)

    async def tend(self) -> None:
        """Once a second: write what is new, read what the others wrote, and begin due probes."""
        now = self._clock.now()
        found = {doc.key: doc for doc in await self._documents.list(KIND, now=now)}
        for queue in [q for q, window in self._windows.items() if window.old(now)]:
            del self._windows[queue]
        wrote = {queue for queue in list(self._unwritten) if await self._write(queue, found, now)}
        self._take_over({queue: doc for queue, doc in found.items() if queue not in wrote}, wrote)
        for queue, reading in list(self._readings.items()):
            if reading.state is not Circuit.CLOSED and reading.until <= now:
                if self._serves(queue):
                    await self._probe(queue, reading, now)
            elif reading.state is Circuit.CLOSED:
                await self._ramp(queue, reading, now)

    def _open(self, queue: str, now: Instant, failures: int, calls: int) -> None:
        self.opened[queue] = self.opened.get(queue, 0) + 1
        self._set(queue, Circuit.OPEN, now, self._rules.pause_ms, failures, calls)

    def _probed(self, queue: str, well: bool, now: Instant) -> None:
        if not well:
            self._open(queue, now, 1, 1)
            return
        self._windows.pop(queue, None)
        self._set(queue, Circuit.CLOSED, now, WAVE_MS * WAVES)

    def _set(
        self, queue: str, state: Circuit, now: Instant, ms: int, failures: int = 0, calls: int = 0
    ) -> None:
        self._unwritten.add(queue)
        self._read(
            queue,
            BreakerReading(
                state=state,
                since=now,
                until=now + ms,
                by=self._me,
                failures=failures,
                calls=calls,
            ),
        )

    def _read(self, queue: str, reading: BreakerReading) -> None:
        self._readings[queue] = reading
        match reading.state:
            case Circuit.OPEN:
                self._bound(queue, 0)
            case Circuit.HALF_OPEN:
                self._bound(queue, 1 if reading.by == self._me else 0)
            case Circuit.CLOSED:
                self._windows.pop(queue, None)
                self._bound(queue, wave(reading, self._clock.now()))

    async def _write(self, queue: str, found: Mapping[str, Document], now: Instant) -> bool:
        """For the others, unless one of them has written since we last read."""
        self._unwritten.discard(queue)
        there = found[queue].version if queue in found else 0
        if there != self._versions.get(queue, 0):
            return False
        body = encode(self._readings[queue])
        put = await self._documents.put(KIND, queue, body, now=now, expect=there)
        if put is not None:
            self._versions[queue] = put.version
        return put is not None

    def _take_over(self, found: Mapping[str, Document], wrote: set[str]) -> None:
        """What the others wrote."""
        for queue, doc in found.items():
            if self._versions.get(queue) != doc.version:
                self._versions[queue] = doc.version
                self._read(queue, _decode(doc.body))
        for queue in self._versions.keys() - found.keys() - wrote:
            # Deleted by the server that wrote it: the service has been well for a while.
            del self._versions[queue]
            self._forget(queue)

    def _forget(self, queue: str) -> None:
        if self._readings.pop(queue, None) is not None:
            self._bound(queue, None)

    async def _probe(self, queue: str, reading: BreakerReading, now: Instant) -> None:
        """Its pause is over, or the server with the probe is silent: one of all servers gets it."""
        probing = msgspec.structs.replace(
            reading,
            state=Circuit.HALF_OPEN,
            since=now,
            until=now + self._rules.pause_ms,
            by=self._me,
        )
        put = await self._documents.put(
            KIND, queue, encode(probing), now=now, expect=self._versions.get(queue, 0)
        )
        if put is not None:
            self._versions[queue] = put.version
            self._read(queue, probing)

    async def _ramp(self, queue: str, reading: BreakerReading, now: Instant) -> None:
        if now < reading.until:
            self._bound(queue, wave(reading, now))
            return
        self._forget(queue)
        if reading.by == self._me:
            self._versions.pop(queue, None)
            await self._documents.delete(KIND, queue)


def wave(reading: BreakerReading, now: Instant) -> int:
    """How many may be under way at once, so shortly after closing."""
    return int(2 ** (1 + (now - reading.since) // WAVE_MS))
