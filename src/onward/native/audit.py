"""The audit: who did what (K-8). Entries are documents, those of a day under one kind, for 90 days.

Also counts and reports refusals. Never holds a token, nor what a task holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.task import Instant, encode, new_id
from onward.errors import OnwardError
from onward.native.caller import Action, Caller, Scope, needs
from onward.wire.base import Page
from onward.wire.keys import AuditEntry, AuditQuery

log = structlog.get_logger("onward.audit")

DAY_MS = 86_400_000
KEPT_DAYS = 90
MOST_A_DAY = 20_000  # entries about tasks that one server writes; beyond it they are only logged
REASONS = ("no_token", "unknown", "expired", "revoked", "scope", "rate", "own_approval")
REPORT_MS = 1_000  # between two log lines about refusals for one reason
# What any key can do without end.
BOUNDED = frozenset({Action.TASK_CANCEL, Action.TASK_REPLAY, Action.TASK_ABANDON, Action.LOGIN})

_decode = msgspec.json.Decoder(AuditEntry).decode


class AuditTrail(Collector):
    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._documents = backend.documents
        self._clock = clock
        self._today = ""
        self._written = 0  # today, about tasks
        # There from the start: a rate over a series that begins with its first call misses it.
        self.refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._reported: dict[str, tuple[Instant, int]] = {}

    async def write(
        self, by: str | None, action: Action, target: str, detail: Mapping[str, Any]
    ) -> None:
        now = self._clock.now()
        if not self._has_room(action, now):
            log.warning("audited in the log alone", by=by, action=action, target=target)
            return
        entry = AuditEntry(at=now, by=by, action=action.value, target=target, detail=detail)
        expires_at = now + KEPT_DAYS * DAY_MS
        try:
            await self._documents.put(
                _kind(now), new_id(), encode(entry), now=now, expires_at=expires_at
            )
        except OnwardError as error:
            # What is audited has happened: its caller must not be answered that it failed.
            log.error("not audited", by=by, action=action, target=target, error=repr(error))

    def _has_room(self, action: Action, now: Instant) -> bool:
        """A caller that cancels without end must not fill the ledger; other acts are few."""
        if action not in BOUNDED:
            return True
        if self._today != (today := _kind(now)):
            self._today, self._written = today, 0
        self._written += 1
        return self._written <= MOST_A_DAY

    def refuse(self, reason: str, key: str | None) -> None:
        """Counts every refusal, and logs at most one a second for each reason."""
        self.refused[reason] += 1
        now, count = self._clock.now(), self.refused[reason]
        last, before = self._reported.get(reason, (-REPORT_MS, 0))
        if now - last >= REPORT_MS:
            self._reported[reason] = (now, count)
            log.warning("refused", reason=reason, key=key, count=count - before)

    def collect(self) -> Iterable[Metric]:
        refused = CounterMetricFamily(
            "onward_refused", "Calls refused: no key, no scope, or too many", labels=["reason"]
        )
        for reason, count in sorted(self.refused.items()):
            refused.add_metric([reason], count)
        return [refused]


class Audit:
    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._documents = backend.documents
        self._clock = clock

    @needs(Scope.ADMIN)
    async def list(self, caller: Caller, query: AuditQuery) -> Page[AuditEntry]:
        """Newest first."""
        now = self._clock.now()
        found: list[tuple[str, AuditEntry]] = []
        for back in range(KEPT_DAYS + 1):
            day = now - back * DAY_MS
            if day < query.since - DAY_MS or len(found) > query.limit:
                break
            found += await self._day(day, query, now)
        items = found[: query.limit]
        more = items[-1][0] if len(found) > query.limit else None
        return Page(items=tuple(entry for _, entry in items), next=more)

    async def _day(
        self, day: Instant, query: AuditQuery, now: Instant
    ) -> Sequence[tuple[str, AuditEntry]]:
        """Keys are in the order of time, also over several days: the cursor is one of them."""
        documents = sorted(
            await self._documents.list(_kind(day), now=now), key=lambda one: one.key, reverse=True
        )
        entries = [(one.key, _decode(one.body)) for one in documents]
        return [
            (key, entry)
            for key, entry in entries
            if (query.cursor is None or key < query.cursor)
            and entry.at >= query.since
            and query.by in (None, entry.by)
            and query.action in (None, entry.action)
        ]


def _kind(at: Instant) -> str:
    return f"audit:{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d}"
