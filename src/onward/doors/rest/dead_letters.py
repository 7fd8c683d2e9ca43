"""/api/v2/dead-letters: what died, grouped by what of; to replay or to give up (N-5, S1-10)."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, Field, model_validator
from starlette.responses import Response

from onward.core.coalesce import call_in_halves
from onward.core.contract import PAGE_BYTES, TaskStore
from onward.core.contract import Query as LedgerQuery
from onward.core.dispatch import CHUNK, Dispatcher
from onward.core.errors import Invalid, Unreadable
from onward.core.intervene import NO_TASK
from onward.core.task import Json, State, Task, TaskId, encode, fault_of
from onward.doors.rest.shapes import Cursor, Name, Strict, TaskShape, native, native_page
from onward.doors.route import StrictRoute, answer
from onward.native.masking import Masked, Masking
from onward.native.slow_reads import SlowReads
from onward.native.submission import Submissions

DEAD = LedgerQuery(states=frozenset({State.DEAD}), limit=CHUNK)
MOST_GROUPED = 100_000  # dead letters looked at for one page of groups
SHOWN = 10  # ids shown of a group, and payloads of a dry run
MOST_REFUSED = 10_000  # that one answer names; it counts them all

Look = Callable[[Task], Awaitable[Task]]  # a task as whoever asked may see it


class Filter(Strict):
    """All of it must hold; an empty filter is every dead letter."""

    fingerprint: Name | None = None
    type: Name | None = None
    queue: Name | None = None
    q: Annotated[str, Field(min_length=1, max_length=200)] | None = None

    def query(self) -> LedgerQuery:
        return msgspec.structs.replace(
            DEAD, fingerprint=self.fingerprint, type=self.type, queue=self.queue, text=self.q
        )


class AbandonBody(Strict):
    ids: Annotated[list[Name], Field(max_length=10_000)] | None = None
    filter: Filter | None = None
    dry_run: bool = False

    @model_validator(mode="after")
    def _one_choice(self) -> AbandonBody:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("give ids or filter, and not both; an empty filter means all")
        return self


class ReplayBody(AbandonBody):
    payload: Any = None  # instead of each task's own
    patch: Any = None  # a JSON merge patch (RFC 7396) of each task's own
    rate: Annotated[float, Field(ge=0.001, le=10_000)] | None = None  # starts a second

    @model_validator(mode="after")
    def _one_way_to_mend(self) -> ReplayBody:
        if {"payload", "patch"} <= self.model_fields_set:
            raise ValueError("give payload or patch, not both: patch changes parts of each payload")
        return self

    @property
    def mends(self) -> bool:
        return bool({"payload", "patch"} & self.model_fields_set)

    def mended(self, payload: Json) -> Any:
        if "patch" not in self.model_fields_set:
            return self.payload
        return merged(msgspec.json.decode(payload), self.patch)


class Refused(BaseModel):
    id: str
    reason: str


class Mended(BaseModel):
    id: str
    before: Any
    after: Any


class Replayed(BaseModel):
    matched: int
    replayed: int
    refused: list[Refused]
    refused_count: int
    until: int | None
    sample: list[Mended]


class Abandoned(BaseModel):
    matched: int
    abandoned: int
    refused: list[Refused]
    refused_count: int


class GroupShape(BaseModel):
    fingerprint: str
    kind: str
    message: str
    count: int
    first_at: int
    last_at: int
    types: list[str]
    sample: TaskShape
    task_ids: list[str]


class DeadLettersShape(BaseModel):
    items: list[GroupShape] | list[TaskShape]
    next: str | None


def build(dispatcher: Dispatcher, submissions: Submissions, masking: Masking) -> APIRouter:
    router = APIRouter(
        prefix="/api/v2/dead-letters", tags=["dead letters"], route_class=StrictRoute
    )
    store = dispatcher.backend.tasks
    grouped: SlowReads[tuple[Groups, str | None]] = SlowReads()

    @router.get("", response_model=DeadLettersShape)
    async def listing(
        fingerprint: str | None = None,
        type: str | None = None,
        queue: str | None = None,
        q: Annotated[str | None, Query(max_length=200)] = None,
        cursor: Cursor | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        masked: Masked = False,
    ) -> Response:
        query = msgspec.structs.replace(
            DEAD, fingerprint=fingerprint, type=type, queue=queue, text=q or None, after=cursor
        )
        if fingerprint is not None:
            found = await store.find(msgspec.structs.replace(query, limit=limit))
            return answer(native_page(await masking.page(found, masked)))
        groups, more = await grouped.get(query, partial(_grouped, store, query))
        shown = await groups.shown(partial(masking.task, masked=masked))
        return answer({"items": shown, "next": more})

    @router.post("/replay", response_model=Replayed)
    async def replay(body: Annotated[ReplayBody, Body()], masked: Masked = False) -> Response:
        chosen = await _choose(store, body)
        mending = Mending(body, submissions, masking, masked)
        every_ms = 0.0 if body.rate is None else 1000 / body.rate
        now, refused = dispatcher.clock.now(), dict[TaskId, str]()
        count = 0
        for at in range(0, len(chosen.ids), CHUNK):
            part = chosen.ids[at : at + CHUNK]
            payloads: Mapping[TaskId, Json] = {}
            if body.mends:
                payloads = await mending.payloads(part, await call_in_halves(store.get, part))
                await asyncio.sleep(0)  # a chunk of checks at a time: others have their turn
                part = [id for id in part if id not in mending.unfit]
            starts = {id: now + int(turn * every_ms) for turn, id in enumerate(part, count)}
            count += len(part)
            if not body.dry_run:
                refused.update(await dispatcher.replay_all(starts, payloads))
        refused.update(mending.unfit)
        if not body.dry_run:
            grouped.forget()
        until = now + int(max(0, count - 1) * every_ms)
        return answer(
            {
                **chosen.told(refused),
                "replayed": 0 if body.dry_run else len(chosen.ids) - len(refused),
                "until": None if body.rate is None else until,
                "sample": mending.sample,
            }
        )

    @router.post("/abandon", response_model=Abandoned)
    async def abandon(body: Annotated[AbandonBody, Body()]) -> Response:
        chosen = await _choose(store, body)
        refused: Mapping[TaskId, str] = {}
        if not body.dry_run:
            refused = await dispatcher.abandon_all(chosen.ids)
            grouped.forget()
        done = 0 if body.dry_run else len(chosen.ids) - len(refused)
        return answer({**chosen.told(refused), "abandoned": done})

    return router


class Mending:
    """Other payloads for dead letters: each is checked by itself, so one that does not fit costs
    the others nothing. A dry run keeps a few, as they were and as they would be.
    """

    def __init__(
        self, body: ReplayBody, submissions: Submissions, masking: Masking, masked: bool
    ) -> None:
        self.unfit: dict[TaskId, str] = {}
        self.sample: list[Mapping[str, Any]] = []
        self._body = body
        self._submissions = submissions
        self._masking = masking
        self._masked = masked

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
            after = self._body.mended(task.payload)
            try:
                await self._masking.refuse(task, after)
                await self._submissions.check(task.type, task.queue, after)
            except Invalid as error:
                self.unfit[task.id] = str(error)
                continue
            fit[task.id] = encode(after)
            if self._body.dry_run and len(self.sample) < SHOWN:
                self.sample.append(await self._shown(task, fit[task.id]))
        return fit

    async def _shown(self, task: Task, after: Json) -> Mapping[str, Any]:
        both = (task, msgspec.structs.replace(task, payload=after))
        before, mended = [await self._masking.task(one, self._masked) for one in both]
        return {
            "id": task.id,
            "before": msgspec.Raw(before.payload.encode()),
            "after": msgspec.Raw(mended.payload.encode()),
        }


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


class Groups:
    """Dead letters by fingerprint, as they come by; only the newest few of each are kept."""

    def __init__(self) -> None:
        self.looked_at = 0
        self._groups: dict[str, _Group] = {}

    @property
    def bytes(self) -> int:
        """Of the samples, which are all that is kept of payloads and results."""
        return sum(group.sample_bytes for group in self._groups.values())

    def add(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self.looked_at += 1
            fingerprint = task.fingerprint or ""
            group = self._groups.get(fingerprint)
            if group is None:
                group = self._groups[fingerprint] = _Group(fingerprint, task)
            group.add(task)

    async def shown(self, look: Look) -> Sequence[Mapping[str, Any]]:
        """The group that somebody died in last comes first."""
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

    async def shown(self, look: Look) -> Mapping[str, Any]:
        fault = fault_of(self._sample.error)
        return {
            "fingerprint": self.fingerprint,
            "kind": "" if fault is None else fault.kind,
            "message": "" if fault is None else fault.message,
            "count": self.count,
            "first_at": self.first_at,
            "last_at": self.last_at,
            "types": sorted(self._types),
            "sample": native(await look(self._sample)),
            "task_ids": [id for _, _, id in sorted(self._newest, reverse=True)],
        }


async def _grouped(store: TaskStore, query: LedgerQuery) -> tuple[tuple[Groups, str | None], int]:
    groups, more = Groups(), None
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

    def told(self, refused: Mapping[TaskId, str]) -> Mapping[str, Any]:
        every = {**self._refused, **refused}
        return {
            "matched": len(self.ids) + len(self._refused),
            "refused": [
                {"id": id, "reason": reason} for id, reason in islice(every.items(), MOST_REFUSED)
            ],
            "refused_count": len(every),
        }


async def _choose(store: TaskStore, body: AbandonBody) -> _Chosen:
    chosen = _Chosen()
    if body.filter is not None:
        async for page, _ in _pages(store, body.filter.query()):
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
