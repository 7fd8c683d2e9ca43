"""/api/v2/dead-letters: what died, grouped by what of; to replay or to give up (N-5, S1-10)."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, Field, model_validator
from starlette.responses import Response

from onward.core.contract import PAGE_BYTES, TaskStore
from onward.core.contract import Query as LedgerQuery
from onward.core.dispatch import CHUNK, NO_TASK, Dispatcher
from onward.core.task import State, Task, TaskId, encode, fault_of
from onward.surfaces.console.masking import Masked, Masking
from onward.surfaces.console.shapes import Cursor, Name, Strict, TaskShape, native, native_page
from onward.surfaces.console.submission import Submissions
from onward.surfaces.route import StrictRoute, answer

DEAD = LedgerQuery(states=frozenset({State.DEAD}), limit=CHUNK)
MOST_GROUPED = 100_000  # dead letters looked at for one page of groups
SHOWN = 10  # ids shown of a group

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
    payload: Any = None
    rate: Annotated[float, Field(ge=0.001, le=10_000)] | None = None  # starts a second

    @model_validator(mode="after")
    def _one_to_mend(self) -> ReplayBody:
        if "payload" in self.model_fields_set and len(self.ids or ()) != 1:
            raise ValueError("a mended payload is for one task: give its id, alone, in ids")
        return self


class Refused(BaseModel):
    id: str
    reason: str


class Replayed(BaseModel):
    matched: int
    replayed: int
    refused: list[Refused]
    until: int | None


class Abandoned(BaseModel):
    matched: int
    abandoned: int
    refused: list[Refused]


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
        groups, more = Groups(), None
        async for page, after in _pages(store, query):
            groups.add(page)
            if groups.looked_at >= MOST_GROUPED or groups.bytes > PAGE_BYTES:
                more = after
                break
        shown = await groups.shown(partial(masking.task, masked=masked))
        return answer({"items": shown, "next": more})

    @router.post("/replay", response_model=Replayed)
    async def replay(body: Annotated[ReplayBody, Body()]) -> Response:
        chosen = await _choose(store, body)
        payload = None
        if "payload" in body.model_fields_set:
            for type_ in chosen.types:
                await submissions.check(type_, body.payload)
            payload = encode(body.payload)
        every_ms = 0.0 if body.rate is None else 1000 / body.rate
        until = dispatcher.clock.now() + int(max(0, len(chosen.ids) - 1) * every_ms)
        refused: Mapping[TaskId, str] = {}
        if not body.dry_run:
            refused = await dispatcher.replay_all(chosen.ids, payload=payload, every_ms=every_ms)
        done = 0 if body.dry_run else len(chosen.ids) - len(refused)
        return answer(
            {
                **chosen.told(refused),
                "replayed": done,
                "until": None if body.rate is None else until,
            }
        )

    @router.post("/abandon", response_model=Abandoned)
    async def abandon(body: Annotated[AbandonBody, Body()]) -> Response:
        chosen = await _choose(store, body)
        refused: Mapping[TaskId, str] = {}
        if not body.dry_run:
            refused = await dispatcher.abandon_all(chosen.ids)
        done = 0 if body.dry_run else len(chosen.ids) - len(refused)
        return answer({**chosen.told(refused), "abandoned": done})

    return router


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


def _size(task: Task) -> int:
    return sum(len(text) for text in (task.payload, task.result, task.error) if text)


class _Chosen:
    """What a bulk request means: dead letters, oldest first or as they were named."""

    def __init__(self) -> None:
        self.ids: list[TaskId] = []
        self.types: set[str] = set()
        self._refused: dict[TaskId, str] = {}

    def add(self, id: TaskId, task: Task | None) -> None:
        if task is None:
            self._refused[id] = NO_TASK
        elif task.state is not State.DEAD:
            self._refused[id] = f"a task that is {task.state} is no dead letter"
        else:
            self.ids.append(id)
            self.types.add(task.type)

    def told(self, refused: Mapping[TaskId, str]) -> Mapping[str, Any]:
        every = {**self._refused, **refused}
        return {
            "matched": len(self.ids) + len(self._refused),
            "refused": [{"id": id, "reason": reason} for id, reason in every.items()],
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
        for id, task in zip(part, await store.get(part), strict=True):
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
