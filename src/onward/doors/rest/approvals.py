"""/api/v2/approvals: what waits for a person, and their word on it (N-5, S1-11).

An approval is a waiting task; its id is the task's with the generation, so that a word about an
earlier asking cannot be taken for one about the present one. What a flow asks is its run's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from onward.core.approval import WAITS, Approval, Word, approval_of
from onward.core.contract import Query as LedgerQuery
from onward.core.dispatch import Dispatcher
from onward.core.errors import NotFound
from onward.core.task import State, Task, encode
from onward.doors.rest.shapes import Cursor, Name, Strict, is_cursor
from onward.doors.route import StrictRoute, answer
from onward.flow.runs import NODE
from onward.native.masking import Masked, Masking
from onward.native.submission import Submissions

Wanted = Literal["open", "approved", "rejected", "expired", "canceled", "all"]
OPEN = LedgerQuery(states=frozenset({State.WAITING}), waiting_for=WAITS)


class RejectBody(Strict):
    by: Name | None = None
    comment: Annotated[str, Field(max_length=4000)] | None = None
    digest: Annotated[str, Field(max_length=64)] | None = None


class ApproveBody(RejectBody):
    payload: Any = None


class ApprovalShape(BaseModel):
    id: str
    task_id: str
    type: str
    queue: str
    payload: Any
    status: str
    requested_at: int
    expires_at: int | None
    default: str
    reason: str | None
    by: str | None
    comment: str | None
    decided_at: int | None
    digest: str


class ApprovalsShape(BaseModel):
    items: list[ApprovalShape]
    next: str | None


def build(dispatcher: Dispatcher, submissions: Submissions, masking: Masking) -> APIRouter:
    router = APIRouter(prefix="/api/v2/approvals", tags=["approvals"], route_class=StrictRoute)
    store = dispatcher.backend.tasks

    async def find(approval_id: str) -> tuple[Task, int | None]:
        """The task, and the generation that is meant. A task's own id means the present one."""
        id, _, number = approval_id.rpartition(".")
        asked, bare = await store.get([id, approval_id])
        if asked is not None and is_cursor(number):
            return asked, int(number)
        if bare is None:
            raise NotFound("no such approval", hint="GET /api/v2/approvals lists what is open")
        return bare, None

    @router.get("", response_model=ApprovalsShape)
    async def listing(
        status: Wanted = "open",
        cursor: Cursor | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        masked: Masked = False,
    ) -> Response:
        query = OPEN if status == "open" else LedgerQuery(approval=status)
        page = await store.find(msgspec.structs.replace(query, after=cursor, limit=limit))
        page = await masking.page(page, masked)
        items = [
            native_approval(task, asked) for task in page.items if (asked := approval_of(task))
        ]
        return answer({"items": items, "next": page.next})

    @router.get("/{approval_id}", response_model=ApprovalShape)
    async def read(approval_id: str, masked: Masked = False) -> Response:
        task, generation = await find(approval_id)
        if generation not in (None, task.generation):
            raise NotFound("the task has been replayed since: this approval is over")
        return answer(_asked(await masking.task(task, masked)))

    @router.post("/{approval_id}/approve", response_model=ApprovalShape)
    async def approve(
        approval_id: str, body: Annotated[ApproveBody | None, Body()] = None
    ) -> Response:
        task, generation = await find(approval_id)
        said = body or ApproveBody()
        payload = None
        if "payload" in said.model_fields_set:
            await masking.refuse(task, said.payload)
            await submissions.check(task.type, task.queue, said.payload)
            payload = encode(said.payload)
        word = _word(said, generation)
        return answer(_asked(await dispatcher.approve(task.id, word, payload=payload)))

    @router.post("/{approval_id}/reject", response_model=ApprovalShape)
    async def reject(
        approval_id: str, body: Annotated[RejectBody | None, Body()] = None
    ) -> Response:
        task, generation = await find(approval_id)
        word = _word(body or RejectBody(), generation)
        return answer(_asked(await dispatcher.reject(task.id, word)))

    return router


def native_approval(task: Task, asked: Approval) -> Mapping[str, Any]:
    return {
        "id": f"{task.id}.{task.generation}",
        "task_id": (task.parent or task.id) if task.profile == NODE else task.id,
        "type": task.type,
        "queue": task.queue,
        "payload": msgspec.Raw(task.payload.encode()),
        "status": asked.status,
        "requested_at": asked.requested_at,
        "expires_at": asked.expires_at,
        "default": asked.default,
        "reason": asked.reason,
        "by": asked.by,
        "comment": asked.comment,
        "decided_at": asked.decided_at,
        "digest": asked.digest,
    }


def _asked(task: Task) -> Mapping[str, Any]:
    asked = approval_of(task)
    if asked is None:
        raise NotFound("nobody is asked to approve this task")
    return native_approval(task, asked)


def _word(body: RejectBody, generation: int | None) -> Word:
    return Word(by=body.by, comment=body.comment, generation=generation, digest=body.digest)
