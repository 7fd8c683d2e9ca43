"""Limits that services share, and how far every limit is used up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from onward.core.dispatch import Dispatcher
from onward.core.errors import NotFound
from onward.core.limits import Bound
from onward.core.task import State, Task, encode
from onward.native.caller import SEES_ALL, Action, Caller, Scope, needs
from onward.services import limits
from onward.services.catalog import Catalog
from onward.services.limits import Rule
from onward.wire.base import Name, Page
from onward.wire.limits import LimitBody, LimitUse, LimitView

MOST_READ = 200  # for one scrape
NO_LIMIT = "no limit is called {!r}"


class LimitUses:
    """What a queue's limits are used by, and which of them holds a task back."""

    def __init__(self, dispatcher: Dispatcher, catalog: Catalog) -> None:
        self._dispatcher = dispatcher
        self._catalog = catalog

    async def by_queue(self, queue: str | None = None) -> Mapping[str, Sequence[LimitUse]]:
        """Of this queue, or of all that have limits."""
        found: dict[str, list[LimitUse]] = {}
        rules = self._catalog.rules
        if queue is not None:
            rules = [rule for rule in rules if queue in rule.bound.queues]
        for rule, use in zip(rules, await self.of(rules), strict=True):
            for name in rule.bound.queues:
                found.setdefault(name, []).append(use)
        return found

    async def all(self) -> Sequence[LimitUse]:
        return await self.of(self._catalog.rules[:MOST_READ])

    async def of(self, rules: Sequence[Rule]) -> Sequence[LimitUse]:
        """Of what each partition has to itself it is not read how far it is used up."""
        together = [rule for rule in rules if not rule.bound.each]
        uses = await self._read(together)
        used = {rule.bound.name: use for rule, use in zip(together, uses, strict=True)}
        return [used.get(rule.bound.name) or rule.use(None, None) for rule in rules]

    async def holding(self, task: Task) -> LimitUse | None:
        """The limit that a queued task waits for."""
        if task.state is not State.QUEUED:
            return None
        rules = [rule for rule in self._catalog.rules if rule.bound.covers(task.queue, task.type)]
        now = self._dispatcher.clock.now()
        for use in await self._read(rules, task.partition):
            if use.kind == "concurrency" and (use.used or 0) >= use.max:
                return use
            if use.next_at is not None and use.next_at > now:
                return use
        return None

    async def running(self, bound: Bound) -> int:
        now = self._dispatcher.clock.now()
        (usage,) = await self._dispatcher.backend.tasks.usage([bound], "", now=now)
        return usage.used

    async def _read(self, rules: Sequence[Rule], partition: str = "") -> Sequence[LimitUse]:
        if not rules:
            return ()
        bounds = [rule.bound for rule in rules]
        now = self._dispatcher.clock.now()
        found = await self._dispatcher.backend.tasks.usage(bounds, partition, now=now)
        uses: list[LimitUse] = []
        for rule, usage in zip(rules, found, strict=True):
            rate = rule.bound.rate
            if rate is None:
                uses.append(rule.use(usage.used, None))
            else:
                next_at = max(usage.start_at or now, now)
                owed = 0 if usage.start_at is None else rate.owed(usage.start_at, now)
                uses.append(rule.use(owed, next_at))
        return uses


class Limits:
    def __init__(self, catalog: Catalog, dispatcher: Dispatcher, uses: LimitUses) -> None:
        self._catalog = catalog
        self._documents = dispatcher.backend.documents
        self._clock = dispatcher.clock
        self._uses = uses

    @needs(*SEES_ALL)
    async def list(self, caller: Caller) -> Page[LimitView]:
        await self._catalog.refreshed()
        return Page(items=tuple([await self._view(name) for name in sorted(self._catalog.shared)]))

    @needs(*SEES_ALL)
    async def read(self, caller: Caller, name: str) -> LimitView:
        await self._catalog.refreshed()
        return await self._view(name)

    @needs(Scope.OPERATE)
    async def put(self, caller: Caller, name: Name, body: LimitBody) -> LimitView:
        """Make it, or replace it; it holds at once here, and within a second on other servers."""
        limits.check_costs(body.rate)
        await self._documents.put(limits.KIND, name, encode(body), now=self._clock.now())
        await self._catalog.refreshed()
        await caller.audit(Action.LIMIT_CHANGE, name, limit=msgspec.to_builtins(body))
        return await self._view(name)

    @needs(Scope.OPERATE)
    async def remove(self, caller: Caller, name: str) -> None:
        """Services that name it are not limited by it any more."""
        if not await self._documents.delete(limits.KIND, name):
            raise NotFound(NO_LIMIT.format(name))
        await self._catalog.refreshed()
        await caller.audit(Action.LIMIT_CHANGE, name, removed=True)

    async def _view(self, name: str) -> LimitView:
        limit = self._catalog.shared.get(name)
        if limit is None:
            raise NotFound(NO_LIMIT.format(name))
        rules = [rule for rule in self._catalog.rules if rule.shared and rule.name == name]
        services = [one for one in await self._catalog.all() if name in one.limits]
        next_ats = [use.next_at for use in await self._uses.of(rules) if use.next_at is not None]
        return LimitView(
            name=name,
            concurrency=limit.concurrency,
            rate=limit.rate,
            services=tuple(sorted(service.name for service in services)),
            in_use=await self._uses.running(limits.coverage(name, services)),
            next_at=max(next_ats, default=None),
        )
