"""How many notifications were delivered, how, and how long after their event (S2-6, S2-10)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, get_args

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from onward.core.task import Instant
from onward.wire.notifications import Delivery

if TYPE_CHECKING:
    from onward.native.notifications.store import StoredNotification

DELAYS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600)


class Deliveries(Collector):
    def __init__(self, types: Iterable[str]) -> None:
        self._written = Counter(
            "onward_notifications", "Notifications written here", ["type"], registry=None
        )
        self._delivered = Counter(
            "onward_notifications_delivered", "Notifications delivered here", ["how"], registry=None
        )
        self._reached = Counter(
            "onward_notifications_reached",
            "Notifications first delivered here",
            registry=None,
        )
        self._read = Counter("onward_notifications_read", "Notifications read here", registry=None)
        self._delay = Histogram(
            "onward_notification_delay_seconds",
            "From the event to the notification written, pushed to a listener, first delivered in"
            " any way, or read",
            ["until"],
            buckets=DELAYS_S,
            registry=None,
        )
        # There from the start: a rate over a series that begins with its first event misses it.
        for word in types:
            self._written.labels(word)
        for word in get_args(Delivery):
            self._delivered.labels(word)
        for word in ("written", "websocket", "sse", "webhook", "reached", "read"):
            self._delay.labels(word)

    def wrote(self, stored: StoredNotification) -> None:
        self._written.labels(stored.notification.type).inc()
        self._delay.labels("written").observe((stored.written_at - stored.at) / 1000)

    def delivered(self, how: Delivery, count: int = 1) -> None:
        if count:
            self._delivered.labels(how).inc(count)

    def pushed(self, how: Delivery, stored: StoredNotification, now: Instant) -> None:
        """Sent as it came. Of others the delay is the reader's: it polls when it likes."""
        self.delivered(how)
        self._delay.labels(how).observe(max(0, now - stored.at) / 1000)

    def reached(self, stored: StoredNotification, now: Instant) -> None:
        """Once for each notification, however often it is delivered: the base of a success rate."""
        self._reached.inc()
        self._delay.labels("reached").observe(max(0, now - stored.at) / 1000)

    def read(self, stored: StoredNotification, now: Instant) -> None:
        self._read.inc()
        self._delay.labels("read").observe(max(0, now - stored.at) / 1000)

    def collect(self) -> Iterable[Metric]:
        for metric in (self._written, self._delivered, self._reached, self._read, self._delay):
            yield from metric.collect()
