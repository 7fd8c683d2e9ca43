"""Dead letters: what died, grouped by its cause; to replay or to abandon (N-5, S1-10)."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from onward.core.coalesce import call_in_halves
from onward.core.contract import PAGE_BYTES, TaskStore
from onward.core.contract import Query as LedgerQuery
from onward.core.dispatch import CHUNK, Dispatcher
from onward.core.errors import Invalid, Unreadable
from onward.core.intervene import NO_TASK
from onward.core.task import Json, State, Task, TaskId, fault_of
from onward.native.caller import LISTS, Action, Caller, Scope, needs
from onward.native.masking import Masking
from onward.native.slow_reads import SlowReads
from onward.native.submission import Replacements, Submissions
from onward.native.views import raw, task_view
from onward.wire.base import Page, RefusedTask
from onward.wire.dead_letters import (
    Abandon,
    Abandoned,
    DeadGroup,
    DeadLetterFilter,
    DeadLetterQuery,
    Mended,
    Replay,
    Replayed,
    ReplayQuery,
)
from onward.wire.tasks import TaskView

DEAD = LedgerQuery(states=frozenset({State.DEAD}), limit=CHUNK)
MOST_GROUPED = 100_000  # dead letters looked at for one page of groups
SHOWN = 10  # ids shown of a group, and payloads of a dry run
MOST_REFUSED = 10_000  # named in one response, which counts them all

Look = Callable[[Task], Awaitable[Task]]  # a task as the caller may see it


class DeadLetters:
    def __init__(self, dispatcher: Dispatcher, submissions: Submissions, masking: Masking) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.backend.tasks
        self._replacements = Replacements(submissions, masking)
        self._masking = masking
        self._grouped: SlowReads[tuple[_Groups, str | None]] = SlowReads()

    @needs(*LISTS)
    async def list(
        self, caller: Caller, query: DeadLetterQuery
    ) -> Page[DeadGroup] | Page[TaskView]:
        """Groups of one cause; with a fingerprint, the tasks of that group."""
        wanted = caller.within(msgspec.structs.replace(_matching(query), after=query.cursor))
        if query.fingerprint is not None:
            found = await self._store.find(msgspec.structs.replace(wanted, limit=query.limit))
            shown = await self._masking.page(found, caller, query.masked)
            return Page(items=tuple(map(task_view, shown.items)), next=shown.next)
        groups, more = await self._grouped.get(wanted, partial(_group, self._store, wanted))
        items = await groups.shown(self._look(caller, query.masked))
        return Page(items=tuple(items), next=more)

    @needs(Scope.OPERATE)
    async def replay(self, caller: Caller, body: Replay, query: ReplayQuery) -> Replayed:
        """From the beginning again; `rate` is how many start in a second."""
        chosen = await _choose(self._store, body)
        mending = _Mending(body, self._replacements, self._look(caller, query.masked))
        every_ms = 0.0 if body.rate is None else 1000 / body.rate
        now, refused = self._dispatcher.clock.now(), dict[TaskId, str]()
        count = 0
        for at in range(0, len(chosen.ids), CHUNK):
            part = chosen.ids[at : at + CHUNK]
            payloads: Mapping[TaskId, Json] = {}
            if body.mends:
                tasks = await call_in_halves(self._store.get, part)
                payloads = await mending.payloads(part, tasks)
                await asyncio.sleep(0)  # a chunk of checks at a time: others have their turn
                part = [id for id in part if id not in mending.unfit]
            starts = {id: now + int(turn * every_ms) for turn, id in enumerate(part, count)}
            count += len(part)
            if not body.dry_run:
                refused.update(await self._dispatcher.replay_all(starts, payloads))
        refused.update(mending.unfit)
        if not body.dry_run:
            self._grouped.forget()
            await self._audit(caller, Action.TASK_REPLAY, chosen, refused, body.reason)
        until = now + int(max(0, count - 1) * every_ms)
        return Replayed(
            **chosen.counted(refused),
            replayed=0 if body.dry_run else len(chosen.ids) - len(refused),
            until=None if body.rate is None else until,
            sample=tuple(mending.sample),
        )

    @needs(Scope.OPERATE)
    async def abandon(self, caller: Caller, body: Abandon) -> Abandoned:
        """Given up: no person need look at them again."""
        chosen = await _choose(self._store, body)
        refused: Mapping[TaskId, str] = {}
        if not body.dry_run:
            refused = await self._dispatcher.abandon_all(chosen.ids)
            self._grouped.forget()
            await self._audit(caller, Action.TASK_ABANDON, chosen, refused, body.reason)
        done = 0 if body.dry_run else len(chosen.ids) - len(refused)
        return Abandoned(**chosen.counted(refused), abandoned=done)

    def _look(self, caller: Caller, asked: bool) -> Look:
        return partial(self._masking.task, caller=caller, asked=asked)

    async def _audit(
        self,
        caller: Caller,
        action: Action,
        chosen: _Chosen,
        refused: Mapping[TaskId, str],
        reason: str | None,
    ) -> None:
        """One entry, whatever their number, with the first few of them."""
        ids = [id for id in chosen.ids if id not in refused]
        if ids:
            first = ids[0] if len(ids) == 1 else f"{len(ids)} tasks"
            await caller.audit(action, first, ids=ids[:SHOWN], count=len(ids), reason=reason)


def _matching(filter: DeadLetterFilter | DeadLetterQuery) -> LedgerQuery:
    return msgspec.structs.replace(
        DEAD,
        fingerprint=filter.fingerprint,
        type=filter.type,
        queue=filter.queue,
        text=filter.q or None,
    )


class _Mending:
    """Other payloads for dead letters: each is checked by itself, so one that does not fit costs
    the others nothing. A dry run keeps a few, as they were and as they would be.
    """

    def __init__(self, body: Replay, replacements: Replacements, look: Look) -> None:
        self.unfit: dict[TaskId, str] = {}
        self.sample: list[Mended] = []
        self._body = body
        self._replacements = replacements
        self._look = look

    async def payloads(
        self, ids: Sequence[TaskId], tasks: Sequence[Task | Exception | None]
    ) -> Mapping[TaskId, Json]:
        fit: dict[TaskId, Json] = {}
        for id, task in zip(ids, tasks, strict=True):
            if isinstance(task, Unreadable):
                self.unfit[id] = str(task)
                continue
            if isinstance(task, Exception):
                raise task
            if task is None:  # gone since it was chosen: its replay is refused for that
                continue
            try:
                fit[task.id] = await self._replacements.checked(task, self._mended(task.payload))
            except Invalid as error:
                self.unfit[task.id] = str(error)
                continue
            if self._body.dry_run and len(self.sample) < SHOWN:
                self.sample.append(await self._shown(task, fit[task.id]))
        return fit

    def _mended(self, payload: Json) -> Any:
        if self._body.patch is msgspec.UNSET:
            return self._body.payload
        return merged(msgspec.json.decode(payload), self._body.patch)

    async def _shown(self, task: Task, after: Json) -> Mended:
        before = await self._look(task)
        mended = await self._look(msgspec.structs.replace(task, payload=after))
        return Mended(id=task.id, before=raw(before.payload), after=raw(mended.payload))


def merged(value: Any, patch: Any) -> Any:
    """The value with a JSON merge patch (RFC 7396) applied: null removes, objects are merged."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for key, part in patch.items():
        if part is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), part)
    return result


class _Groups:
    """Dead letters by fingerprint, as they come by; only the newest few of each are kept."""

    def __init__(self) -> None:
        self.looked_at = 0
        self._groups: dict[str, _Group] = {}

    @property
    def bytes(self) -> int:
        """The size of the samples: nothing else of payloads and results is kept."""
        return sum(group.sample_bytes for group in self._groups.values())

    def add(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self.looked_at += 1
            fingerprint = task.fingerprint or ""
            group = self._groups.get(fingerprint)
            if group is None:
                group = self._groups[fingerprint] = _Group(fingerprint, task)
            group.add(task)

    async def shown(self, look: Look) -> Sequence[DeadGroup]:
        """The group of the latest death comes first."""
        groups = sorted(self._groups.values(), key=lambda group: group.last_at, reverse=True)
        return [await group.shown(look) for group in groups]


class _Group:
    def __init__(self, fingerprint: str, sample: Task) -> None:
        self.fingerprint = fingerprint
        self._sample = sample  # the one that died last
        self.sample_bytes = _size(sample)
        self.count = 0
        self.first_at = 1 << 62
        self.last_at = 0
        self._types: set[str] = set()
        self._newest: list[tuple[int, int, TaskId]] = []  # by death; of equals, the later born

    def add(self, task: Task) -> None:
        at = task.finished_at or 0
        if at > self.last_at:
            self._sample, self.sample_bytes = task, _size(task)
        self.count += 1
        self.first_at, self.last_at = min(self.first_at, at), max(self.last_at, at)
        self._types.add(task.type)
        entry = (at, -self.count, task.id)
        if len(self._newest) < SHOWN:
            heapq.heappush(self._newest, entry)
        else:
            heapq.heappushpop(self._newest, entry)

    async def shown(self, look: Look) -> DeadGroup:
        fault = fault_of(self._sample.error)
        return DeadGroup(
            fingerprint=self.fingerprint,
            kind="" if fault is None else fault.kind,
            message="" if fault is None else fault.message,
            count=self.count,
            first_at=self.first_at,
            last_at=self.last_at,
            types=tuple(sorted(self._types)),
            sample=task_view(await look(self._sample)),
            task_ids=tuple(id for _, _, id in sorted(self._newest, reverse=True)),
        )


async def _group(store: TaskStore, query: LedgerQuery) -> tuple[tuple[_Groups, str | None], int]:
    groups, more = _Groups(), None
    async for page, after in _pages(store, query):
        groups.add(page)
        if groups.looked_at >= MOST_GROUPED or groups.bytes > PAGE_BYTES:
            more = after
            break
    return (groups, more), groups.looked_at


def _size(task: Task) -> int:
    return sum(len(text) for text in (task.payload, task.result, task.error) if text)


class _Chosen:
    """What a bulk request means: dead letters, oldest first or as they were named."""

    def __init__(self) -> None:
        self.ids: list[TaskId] = []
        self._refused: dict[TaskId, str] = {}

    def add(self, id: TaskId, task: Task | None) -> None:
        if task is None:
            self._refused[id] = NO_TASK
        elif task.state is not State.DEAD:
            self._refused[id] = f"a task that is {task.state} is no dead letter"
        else:
            self.ids.append(id)

    def counted(self, refused: Mapping[TaskId, str]) -> Mapping[str, Any]:
        every = {**self._refused, **refused}
        named = islice(every.items(), MOST_REFUSED)
        return {
            "matched": len(self.ids) + len(self._refused),
            "refused": tuple(RefusedTask(id=id, reason=reason) for id, reason in named),
            "refused_count": len(every),
        }


async def _choose(store: TaskStore, body: Abandon) -> _Chosen:
    chosen = _Chosen()
    if body.filter is not None:
        async for page, _ in _pages(store, _matching(body.filter)):
            for dead in page:
                chosen.add(dead.id, dead)
        chosen.ids.reverse()
        return chosen
    ids = list(dict.fromkeys(body.ids or ()))
    for at in range(0, len(ids), CHUNK):
        part = ids[at : at + CHUNK]
        for id, task in zip(part, await store.look(part), strict=True):
            chosen.add(id, task)
    return chosen


async def _pages(
    store: TaskStore, query: LedgerQuery
) -> AsyncIterator[tuple[Sequence[Task], str | None]]:
    """Every match, a chunk at a time. A task that dies again meanwhile is not met twice."""
    while True:
        page = await store.find(query)
        yield page.items, page.next
        if page.next is None:
            return
        query = msgspec.structs.replace(query, after=page.next)
