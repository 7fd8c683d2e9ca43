"""Approvals: what waits for a person, and what they decide (N-5, S1-11).

An approval is a waiting task; its id is the task's with the generation, so that a decision about an
earlier request cannot be taken for one about the present one. What a flow asks belongs to its run.
"""

from __future__ import annotations

import msgspec

from onward.core.approval import WAITS, Approval, Decision, approval_of
from onward.core.contract import Query as LedgerQuery
from onward.core.dispatch import Dispatcher
from onward.core.errors import NextStep, NotFound, Step
from onward.core.task import State, Task
from onward.flow.runs import NODE
from onward.native.caller import READS, Action, Caller, Scope, needs
from onward.native.masking import Masking
from onward.native.submission import Replacements, Submissions
from onward.native.views import raw
from onward.wire.approvals import ApprovalQuery, ApprovalRead, ApprovalView, Approve, Reject
from onward.wire.base import Page, is_cursor

OPEN = LedgerQuery(states=frozenset({State.WAITING}), waiting_for=WAITS)


class Approvals:
    def __init__(self, dispatcher: Dispatcher, submissions: Submissions, masking: Masking) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.backend.tasks
        self._replacements = Replacements(submissions, masking)
        self._masking = masking

    @needs(*READS)
    async def list(self, caller: Caller, query: ApprovalQuery) -> Page[ApprovalView]:
        wanted = OPEN if query.status == "open" else LedgerQuery(approval=query.status)
        wanted = msgspec.structs.replace(wanted, after=query.cursor, limit=query.limit)
        wanted = wanted if caller.has(Scope.APPROVE) else caller.within(wanted)
        page = await self._masking.page(await self._store.find(wanted), caller, query.masked)
        found = [(task, approval_of(task)) for task in page.items]
        items = tuple(_view(task, asked) for task, asked in found if asked is not None)
        return Page(items=items, next=page.next)

    @needs(*READS)
    async def read(self, caller: Caller, approval_id: str, query: ApprovalRead) -> ApprovalView:
        task, generation = await self._find(caller, approval_id)
        if generation not in (None, task.generation):
            raise NotFound("the task has been replayed since: this approval is over")
        return _asked(await self._masking.task(task, caller, query.masked))

    @needs(Scope.APPROVE)
    async def approve(
        self, caller: Caller, approval_id: str, body: Approve | None = None
    ) -> ApprovalView:
        """Let it run, with another payload if one is given; with `digest`, only what was shown."""
        task, generation = await self._open_to(caller, approval_id)
        given = body or Approve()
        payload = None
        if given.payload is not msgspec.UNSET:
            payload = await self._replacements.checked(task, given.payload)
        decision = _decision(caller, given, generation)
        decided = await self._dispatcher.approve(task.id, decision, payload=payload)
        return await self._decided(caller, decided, given)

    @needs(Scope.APPROVE)
    async def reject(
        self, caller: Caller, approval_id: str, body: Reject | None = None
    ) -> ApprovalView:
        task, generation = await self._open_to(caller, approval_id)
        given = body or Reject()
        decided = await self._dispatcher.reject(task.id, _decision(caller, given, generation))
        return await self._decided(caller, decided, given)

    async def _open_to(self, caller: Caller, approval_id: str) -> tuple[Task, int | None]:
        task, generation = await self._find(caller, approval_id)
        caller.decides(task)
        return task, generation

    async def _decided(self, caller: Caller, task: Task, body: Reject) -> ApprovalView:
        view = _asked(await self._masking.task(task, caller))
        await caller.audit(
            Action.APPROVAL_DECIDE, view.id, status=view.status, comment=body.comment
        )
        return view

    async def _find(self, caller: Caller, approval_id: str) -> tuple[Task, int | None]:
        """The task, and the generation that is meant. A task's own id means the present one."""
        id, _, number = approval_id.rpartition(".")
        asked, bare = await self._store.get([id, approval_id])
        if asked is not None and is_cursor(number) and caller.sees(asked):
            return asked, int(number)
        if bare is None or not caller.sees(bare):
            raise NotFound("no such approval", step=NextStep(Step.LIST_APPROVALS))
        return bare, None


def _asked(task: Task) -> ApprovalView:
    asked = approval_of(task)
    if asked is None:
        raise NotFound("this task has never needed an approval")
    return _view(task, asked)


def _view(task: Task, asked: Approval) -> ApprovalView:
    return ApprovalView(
        id=f"{task.id}.{task.generation}",
        task_id=(task.parent or task.id) if task.profile == NODE else task.id,
        type=task.type,
        queue=task.queue,
        payload=raw(task.payload),
        status=asked.status.value,
        requested_at=asked.requested_at,
        expires_at=asked.expires_at,
        default=asked.default,
        reason=asked.reason,
        by=asked.by,
        comment=asked.comment,
        decided_at=asked.decided_at,
        digest=asked.digest,
    )


def _decision(caller: Caller, body: Reject, generation: int | None) -> Decision:
    # With keys, who decides is the key's name, and never what the request claims.
    by = body.by if caller.key is None else caller.name
    return Decision(by=by, comment=body.comment, generation=generation, digest=body.digest)
