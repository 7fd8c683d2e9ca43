"""What needs a person now: each rule once, for the page, the API, the command line and alerts.

Reads counts that are kept, the heads of queues and an index of open approvals, so that it costs the
same however much work waits. Decides what is listed; who is notified of it is in alerts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import get_args
from urllib.parse import quote, urlencode

import msgspec

from onward.core.dispatch import Dispatcher
from onward.core.pressure.breaker import Circuit
from onward.core.task import Instant, State
from onward.native.caller import SEES_ALL, Caller, needs
from onward.native.explain import span
from onward.native.scheduling.timetable import Timetable
from onward.wire.attention import AttentionItem, Rule
from onward.wire.base import Page
from onward.workers.roster import Roster, group_of, is_service

MOST = 100  # items of one rule; beyond that the worst are listed
ASKED = 100  # open approvals that are looked at

Counts = Mapping[str, int]  # by queue


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """From when on something needs a person; 0: never for this reason."""

    dead: int
    waiting_ms: int
    approval_ms: int


class AttentionRules:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        timetable: Timetable,
        thresholds: Thresholds,
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._timetable = timetable
        self._thresholds = thresholds

    async def read(self) -> Sequence[AttentionItem]:
        """The worst rule first, and of one rule by name."""
        now = self._dispatcher.clock.now()
        queued: dict[str, int] = {}
        dead: dict[str, int] = {}
        for (queue, _, state), count in (await self._dispatcher.backend.tasks.counts()).items():
            if state in (State.QUEUED, State.DEAD):
                into = queued if state is State.QUEUED else dead
                into[queue] = into.get(queue, 0) + count
        most = _largest(queued)
        since = await self._dispatcher.backend.tasks.oldest(most)
        held = self._held(most, since, now)
        late = {queue: most[queue] for queue in most if queue not in {one.target for one in held}}
        found = [
            *held,
            *self._dead(dead),
            *self._waiting(late, since, now),
            *await self._approvals(now),
            *self._refused(now),
        ]
        order = {rule: place for place, rule in enumerate(get_args(Rule))}
        return sorted(found, key=lambda one: (order[one.rule], one.target))

    def _held(
        self, queued: Counts, since: Mapping[str, Instant], now: Instant
    ) -> Sequence[AttentionItem]:
        """Queues whose tasks are not handed out, and why; one reason for each."""
        pauses, breakers = self._dispatcher.pressure.pauses, self._dispatcher.pressure.breakers
        found: dict[str, AttentionItem] = {}
        for queue, reading in islice(breakers.readings().items(), MOST):
            if reading.state is not Circuit.CLOSED:
                failed = f"{reading.failures} of {reading.calls} calls failed"
                again = f"is tried again in {span(reading.until, now)}"
                if reading.state is Circuit.HALF_OPEN:
                    again = "one task is trying whether it is back"
                text = f"{queue}: its circuit breaker is open, {failed}; {again}"
                found[queue] = _of_queue("breaker_open", queue, reading.since, text)
        for queue, pause in pauses.paused().items():
            if queued.get(queue):
                by = f" by {pause.by}" if pause.by else ""
                why = f": {pause.reason}" if pause.reason else ""
                text = f"{queue}: paused{by}{why} ({_tasks(queued[queue])} queued)"
                found[queue] = _of_queue("queue_paused", queue, pause.since, text)
        for queue, count in queued.items():
            # Without a head, all of them are on a stream: its readers are no workers of a server.
            if queue not in found and queue in since and not self._served(queue):
                waits = "waits" if count == 1 else "wait"
                text = f"{queue}: {_tasks(count)} {waits} and no worker serves the queue"
                found[queue] = _of_queue("no_worker", queue, since[queue], text)
        return list(found.values())

    def _served(self, queue: str) -> bool:
        if not is_service(queue) and group_of(queue) is None:
            return True  # the server's own: runs of flows, webhooks
        serving = (queue in one.queues and not one.draining for one in self._roster.members())
        return self._dispatcher.slots.served(queue) or any(serving)

    def _dead(self, dead: Counts) -> Iterator[AttentionItem]:
        least = self._thresholds.dead
        for queue, count in _largest(dead).items():
            if least and count >= least:
                letters = "dead letter" if count == 1 else "dead letters"
                yield AttentionItem(
                    rule="dead",
                    target=queue,
                    since=None,
                    message=f"{queue}: {count} {letters} to replay or abandon",
                    link="/ui/dead-letters",
                )

    def _waiting(
        self, queued: Counts, since: Mapping[str, Instant], now: Instant
    ) -> Iterator[AttentionItem]:
        longest = self._thresholds.waiting_ms
        for queue in queued:
            at = since.get(queue)
            if longest and at is not None and now - at > longest:
                waits = f"the oldest of {_tasks(queued[queue])} waits for {span(now, at)}"
                yield _of_queue("oldest_waiting", queue, at, f"{queue}: {waits}")

    async def _approvals(self, now: Instant) -> Sequence[AttentionItem]:
        longest = self._thresholds.approval_ms
        if not longest:
            return []
        return [
            AttentionItem(
                rule="approval_open",
                target=f"{asked.task}.{asked.generation}",
                since=asked.asked_at,
                message=f"{asked.type}: an approval is open for {span(now, asked.asked_at)}",
                link="/ui/approvals",
            )
            for asked in await self._dispatcher.backend.tasks.open_approvals(ASKED)
            if now - asked.asked_at > longest
        ]

    def _refused(self, now: Instant) -> Iterator[AttentionItem]:
        # Without the reason: a refusal may quote the payload.
        for name, at in islice(self._timetable.refused().items(), MOST):
            yield AttentionItem(
                rule="schedule_refused",
                target=name,
                since=at,
                message=f"{name}: the schedule's last run was refused, {span(now, at)} ago",
                link=f"/ui/schedules/{quote(name, safe='')}",
            )


class Attention:
    def __init__(self, rules: AttentionRules) -> None:
        self._rules = rules

    @needs(*SEES_ALL)
    async def list(self, caller: Caller) -> Page[AttentionItem]:
        """What needs a person now, the worst first."""
        return Page(items=tuple(await self._rules.read()))


def _of_queue(rule: Rule, queue: str, since: Instant | None, message: str) -> AttentionItem:
    # As the page's search box has it: a name with blanks is in quotes.
    name = f'"{queue}"' if " " in queue else queue
    link = f"/ui/tasks?{urlencode({'q': f'state:queued queue:{name}'})}"
    return AttentionItem(rule=rule, target=queue, since=since, message=message, link=link)


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _largest(counts: Counts) -> Counts:
    """By the number first, so that what is left out is the least."""
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:MOST])
