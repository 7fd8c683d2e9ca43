"""Which services are declared, with schemas and defaults. Kept in Documents, cached here.

What an operator declared and what workers declared are two documents, so that neither writes over
the other; readers see both as one. A worker can add a guard to what an operator declared, and
cannot remove one. Its own guards go with its next declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.errors import Conflict, Invalid, NextStep, NotFound, Step
from onward.core.limits import Bound
from onward.core.task import Instant, Task, encode
from onward.services import limits, privacy
from onward.services.limits import Rule
from onward.wire.limits import Concurrency, LimitBody, RateLimit
from onward.wire.paths import Path

T = TypeVar("T")

KIND = "service"  # an operator's part; of older releases, also what a worker declared
WORKERS_KIND = "service_worker"
MIXED_KIND = "service_mixed"  # by queue: tasks of other services' types were handed in there
OPERATOR, WORKER = "operator", "worker"
FRESH_MS = 1_000
RENEW_MS = 500
MISSED_MS = 20  # what is not known is read again: another server may have written it just now


class Declared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    task_types: tuple[str, ...]
    schema: Mapping[str, Any] = {}  # JSON Schema of the payload, by task type
    description: str = ""
    output: Mapping[str, Any] = {}  # JSON Schema of the result, by task type
    via: str = "any"
    requires_approval: bool = False
    sensitive: tuple[str, ...] = ()
    timeout_ms: int | None = None
    max_retries: int | None = None
    expose: bool = True  # to agents, as a tool
    partition_by: str | None = None
    concurrency: Concurrency | None = None
    rate: tuple[RateLimit, ...] = ()
    limits: tuple[str, ...] = ()  # that it shares with others
    rules: tuple[Rule, ...] = ()  # what these come to; never stored
    encrypt: bool = False  # its tasks rest sealed, where not all do
    compensate: str | None = None  # the service that undoes a canceled task
    declared_by: tuple[str, ...] = ()  # empty: by a release that did not record it


_decode = msgspec.json.Decoder(Declared).decode


def strictest(first: Declared, second: Declared) -> Declared:
    """The first, with every guard of the second on top."""
    return msgspec.structs.replace(
        first,
        via=second.via if first.via == "any" else first.via,
        requires_approval=first.requires_approval or second.requires_approval,
        sensitive=_united(first.sensitive, second.sensitive),
        timeout_ms=_least(first.timeout_ms, second.timeout_ms),
        max_retries=_least(first.max_retries, second.max_retries),
        expose=first.expose and second.expose,
        partition_by=first.partition_by or second.partition_by,
        concurrency=_narrower(first.concurrency, second.concurrency),
        rate=_united(first.rate, second.rate),
        limits=_united(first.limits, second.limits),
        rules=_united(first.rules, second.rules),
        encrypt=first.encrypt or second.encrypt,
        compensate=first.compensate or second.compensate,
    )


def as_one(operator: Declared, workers: Declared) -> Declared:
    """One service as both declared it."""
    if not operator.declared_by:
        # Who declared it was not recorded. Its guards may be an operator's, so they stay until one
        # removes them; the rest may be an old worker's, so the new worker's replaces it.
        return msgspec.structs.replace(
            workers,
            requires_approval=operator.requires_approval or workers.requires_approval,
            sensitive=_united(operator.sensitive, workers.sensitive),
        )
    return msgspec.structs.replace(
        strictest(operator, workers),
        task_types=_united(operator.task_types, workers.task_types),
        schema={**workers.schema, **operator.schema},
        description=operator.description or workers.description,
        output={**workers.output, **operator.output},
        declared_by=(OPERATOR, WORKER),
    )


class Catalog:
    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._parts: dict[str, dict[str, Declared]] = {KIND: {}, WORKERS_KIND: {}}
        self._by_name: dict[str, Declared] = {}
        self._by_type: dict[str, Declared] = {}
        self._paths: dict[str, Sequence[Path]] = {}  # by service, of those that have any
        self.shared: Mapping[str, LimitBody] = {}  # limits that services share, by name
        self.rules: Sequence[Rule] = ()  # of all services
        # Called with the bounds of all services, the services' queues, and those of them that have
        # types of other services, whenever these change.
        self.on_bounds: (
            Callable[[Sequence[Bound], Collection[str], Collection[str]], None] | None
        ) = None
        self._mixed: frozenset[str] = frozenset()
        self._read_at: Instant = 0
        self._begun = self._taken = 0  # reads, by when they began

    async def declare(self, service: Declared) -> Declared:
        """A worker's declaration: it replaces what workers declared of this service before."""
        await self._check_types(service)
        part = msgspec.structs.replace(service, declared_by=(WORKER,))
        if self._parts[WORKERS_KIND].get(service.name) != part:
            await self._put(WORKERS_KIND, part)
            await self._read()
        return self._by_name.get(service.name, part)

    async def replace(self, service: Declared) -> Declared:
        """An operator's declaration: it replaces all that was declared of this service."""
        await self._check_types(service)
        part = msgspec.structs.replace(service, declared_by=(OPERATOR,))
        # In this order: between the two both parts hold, so no guard is missing meanwhile.
        await self._put(KIND, part)
        await self._backend.documents.delete(WORKERS_KIND, service.name)
        await self._read()
        return part

    async def remove(self, name: str) -> None:
        documents = self._backend.documents
        workers = await documents.delete(WORKERS_KIND, name)
        if not await documents.delete(KIND, name) and not workers:
            raise NotFound(f"no service is called {name!r}")
        await self._read()

    async def of(
        self, type_: str, queue: str | None = None, *, missed_ms: int = MISSED_MS
    ) -> Declared | None:
        """What holds for tasks of this type on this queue (None: the one named as the type)."""
        await self._refresh()
        found = self.known(type_, queue)
        if found is None:
            await self._refresh(missed_ms)
            found = self.known(type_, queue)
        if queue is not None and self._mixes(type_, queue):
            # Before its task is there: a claim from this queue heeds no bound of other types else.
            await self._backend.documents.put(MIXED_KIND, queue, "null", now=self._clock.now())
            await self._read()
        return found

    def _mixes(self, type_: str, queue: str) -> bool:
        """Whether this is the first task of another service's type on a service's queue."""
        if queue == type_ or queue in self._mixed:
            return False
        own, host = self._by_type.get(type_), self._by_name.get(queue) or self._by_type.get(queue)
        return own is not None and host is not None and own.name != host.name

    def is_fresh(self, found: Declared | None, now: Instant) -> bool:
        """Whether `of` would find what `known` did, without a look at the ledger."""
        return now - self._read_at < (MISSED_MS if found is None else FRESH_MS)

    def is_aging(self, now: Instant) -> bool:
        """Whether `renew` would look at the ledger."""
        return now - self._read_at >= RENEW_MS

    async def renew(self) -> None:
        """For a caller who relies on what is known, and would have to stop once it is too old."""
        await self._refresh(RENEW_MS)

    async def refreshed(self) -> Mapping[str, LimitBody]:
        """What other servers have changed is known here now; returns the limits that are shared."""
        await self._read()
        return self.shared

    def known(self, type_: str, queue: str | None = None) -> Declared | None:
        services = self.concerned(type_, queue)
        if len(services) < 2:  # nearly always
            return services[0] if services else None
        return reduce(strictest, services)

    def encrypts(self, task: Task) -> bool:
        """As was read last: a submission has asked for its service a moment ago."""
        return any(service.encrypt for service in self.concerned(task.type, task.queue))

    def concerned(self, type_: str, queue: str | None = None) -> Sequence[Declared]:
        """The type's service first, then the queue's: workers claim queues, and are called by them,
        so that what is on a service's queue reaches the service, whatever its type.
        """
        queue = type_ if queue is None else queue
        first, second = self._by_type.get(type_), self._by_type.get(queue)
        third = self._by_name.get(queue)
        if first is second is third:  # nearly always
            return () if first is None else (first,)
        found = (first, second, third)
        return list({service.name: service for service in found if service is not None}.values())

    async def guards(self) -> Callable[[Task], bool]:
        """Whether a task's service, or its queue's, requires an approval by now."""
        await self._refresh()
        return lambda task: any(
            service.requires_approval for service in self.concerned(task.type, task.queue)
        )

    async def all(self) -> Sequence[Declared]:
        await self._refresh()
        return list(self._by_name.values())

    async def sensitive(self, type_: str, queue: str | None = None) -> Sequence[Path]:
        """The sensitive parts of the payloads and results of this type on this queue."""
        await self._refresh()
        return self.known_sensitive(type_, queue)

    def known_sensitive(self, type_: str, queue: str | None = None) -> Sequence[Path]:
        services = self.concerned(type_, queue) if self._paths else ()
        return [path for service in services for path in self._paths.get(service.name, ())]

    async def all_sensitive(self) -> Sequence[Path]:
        await self._refresh()
        return [path for paths in self._paths.values() for path in paths]

    async def _check_types(self, service: Declared) -> None:
        await self._refresh()
        for type_ in service.task_types:
            other = self._by_type.get(type_)
            if other is not None and other.name != service.name:
                raise Conflict(
                    f"task type {type_!r} is declared by service {other.name!r} already",
                    step=NextStep(Step.REMOVE_SERVICE, other.name),
                )

    async def _put(self, kind: str, part: Declared) -> None:
        await self._backend.documents.put(kind, part.name, encode(part), now=self._clock.now())

    async def _refresh(self, fresh_ms: int = FRESH_MS) -> None:
        if self._clock.now() - self._read_at >= fresh_ms:
            await self._read()

    async def _read(self) -> None:
        now = self._clock.now()
        self._begun += 1
        turn = self._begun
        parts: dict[str, dict[str, Declared]] = {}
        for kind in (KIND, WORKERS_KIND):
            documents = await self._backend.documents.list(kind, now=now)
            parts[kind] = {doc.key: _decode(doc.body) for doc in documents}
        documents = await self._backend.documents.list(limits.KIND, now=now)
        shared = {doc.key: limits.decode(doc.body) for doc in documents}
        mixed = [doc.key for doc in await self._backend.documents.list(MIXED_KIND, now=now)]
        if turn < self._taken:
            # Begun before a guard was declared here, and slower than the read that has it: taken,
            # it would remove the guard until the next one.
            return
        self._taken = turn
        operators, workers = parts[KIND], parts[WORKERS_KIND]
        self._parts = parts
        self._by_name = limits.with_rules(
            {
                **operators,
                **{
                    name: as_one(operators[name], part) if name in operators else part
                    for name, part in workers.items()
                },
            },
            shared,
        )
        self._by_type = {
            type_: service for service in self._by_name.values() for type_ in service.task_types
        }
        self._paths = {
            name: [_path(path) for path in service.sensitive]
            for name, service in self._by_name.items()
            if service.sensitive
        }
        self._read_at = now
        self.shared = shared
        self._mixed = frozenset(mixed)
        self.rules = _united((), [r for one in self._by_name.values() for r in one.rules])
        if self.on_bounds is not None:
            bounds = [rule.bound for rule in self.rules]
            natural = {*self._by_name, *self._by_type} if bounds else ()
            self.on_bounds(bounds, natural, self._mixed if bounds else ())


def _narrower(first: Concurrency | None, second: Concurrency | None) -> Concurrency | None:
    if first is None or second is None:
        return first or second
    return Concurrency(
        total=_least(first.total, second.total),
        per_partition=_least(first.per_partition, second.per_partition),
    )


def _united(first: Sequence[T], second: Sequence[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _least(first: int | None, second: int | None) -> int | None:
    return min((ms for ms in (first, second) if ms is not None), default=None)


def _path(path: str) -> Path:
    try:
        return privacy.parse(path)
    except Invalid:  # declared before paths were checked: whatever it meant, it is hidden
        return ()
