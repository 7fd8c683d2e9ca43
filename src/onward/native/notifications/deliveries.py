"""How many notices were told, by which way, and how long after what they tell of (S2-6, S2-10)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from onward.core.task import Instant

if TYPE_CHECKING:
    from onward.native.notifications.notices import Kept

WAYS = ("websocket", "sse", "poll", "webhook", "interaction")
DELAYS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600)


class Deliveries(Collector):
    """How many were told, by which way, and how long after it happened."""

    def __init__(self, types: Iterable[str]) -> None:
        self._written = Counter(
            "onward_notifications", "Notices written here", ["type"], registry=None
        )
        self._delivered = Counter(
            "onward_notifications_delivered", "Notices handed over here", ["how"], registry=None
        )
        self._reached = Counter(
            "onward_notifications_reached", "Notices handed over for the first time", registry=None
        )
        self._read = Counter("onward_notifications_read", "Notices read here", registry=None)
        self._delay = Histogram(
            "onward_notification_delay_seconds",
            "From what happened to the notice written, handed over as it came, first handed over"
            " at all, or read",
            ["until"],
            buckets=DELAYS_S,
            registry=None,
        )
        # There from the start: a rate over a series that begins with its first event misses it.
        for word in types:
            self._written.labels(word)
        for word in WAYS:
            self._delivered.labels(word)
        for word in ("written", "websocket", "sse", "webhook", "reached", "read"):
            self._delay.labels(word)

    def wrote(self, kept: Kept) -> None:
        self._written.labels(kept.notice.type).inc()
        self._delay.labels("written").observe((kept.written_at - kept.at) / 1000)

    def told(self, how: str, count: int = 1) -> None:
        """`how` is one of WAYS."""
        if count:
            self._delivered.labels(how).inc(count)

    def pushed(self, how: str, kept: Kept, now: Instant) -> None:
        """Told as it came: what waited for somebody to ask would say nothing about us."""
        self.told(how)
        self._delay.labels(how).observe(max(0, now - kept.at) / 1000)

    def reached(self, kept: Kept, now: Instant) -> None:
        """Once a notice, by whichever way and however often: what a share is taken of."""
        self._reached.inc()
        self._delay.labels("reached").observe(max(0, now - kept.at) / 1000)

    def read(self, kept: Kept, now: Instant) -> None:
        self._read.inc()
        self._delay.labels("read").observe(max(0, now - kept.at) / 1000)

    def collect(self) -> Iterable[Metric]:
        for metric in (self._written, self._delivered, self._reached, self._read, self._delay):
            yield from metric.collect()
