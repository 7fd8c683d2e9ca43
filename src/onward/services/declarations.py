"""What a declared service requires of each submission of its types, whichever door it came by.

Its schema is asked before anything is accepted; its defaults stand in for what was left open. A
guard (`requires_approval`) is no default: no submission can switch it off. All of it holds for
whatever else is put on the service's queue, too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from onward.core.approval import WAITS, approval_of, ask
from onward.core.errors import Invalid, NextStep, Step
from onward.core.policy import overrides_of
from onward.core.task import Task
from onward.services import limits, privacy
from onward.services.catalog import MISSED_MS, Catalog, Declared
from onward.services.schemas import Schemas

NOTIFIED = "session"  # the profile whose `expires_at` only notifies, and ends nothing


class Declarations:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._schemas = Schemas()

    async def fitting(
        self, type_: str, queue: str, payload: Any, *, missed_ms: int = MISSED_MS
    ) -> Declared | None:
        """What is declared of this type on this queue. Invalid: the payload does not fit it."""
        declared = await self.of(type_, queue, missed_ms=missed_ms)
        self.check(declared, type_, queue, payload)
        return declared

    async def of(self, type_: str, queue: str, *, missed_ms: int = MISSED_MS) -> Declared | None:
        """What is declared of this type on this queue."""
        return await self._catalog.of(type_, queue, missed_ms=missed_ms)

    def check(self, declared: Declared | None, type_: str, queue: str, payload: Any) -> None:
        """Invalid: it does not fit what `of` has just found."""
        if declared is None:
            return
        if declared.sensitive:
            paths = self._catalog.known_sensitive(type_, queue)
            privacy.refuse_masks(payload, paths, "payload")
        for service in self._catalog.concerned(type_, queue):
            # A message quotes what does not fit, or all that it is a part of: of these it must not.
            mask = privacy.MASK if declared.sensitive else None
            taken_as = _taken_as(service, type_, queue)
            if (schema := service.schema.get(taken_as)) is not None:
                step = NextStep(Step.SHOW_SERVICE, service.name)
                self._schemas.check(schema, payload, taken_as, step, mask=mask)


def _taken_as(service: Declared, type_: str, queue: str) -> str:
    """Which of its types the service will take the payload for."""
    types = service.task_types
    for known in (type_, queue):
        if known in types:
            return known
    if service.schema and len(types) > 1:
        raise Invalid(
            f"the queue {queue!r} is that of service {service.name!r}, which has no {type_!r}",
            pointer="/type",
            hint=f"its task types are {', '.join(types)}",
        )
    return types[0]


def as_declared(task: Task, service: Declared | None, *, refusing: bool = True) -> Task:
    """What the submission left open, filled in from its service."""
    if service is None:
        return task
    changes: dict[str, Any] = {}
    overrides = overrides_of(task.overrides)
    if service.max_retries is not None and overrides.max_retries is None:
        changes["overrides"] = msgspec.structs.replace(
            overrides, max_retries=service.max_retries
        ).encode()
    # Where the submission's own time only notifies, it ends no attempt: the service's still does.
    timed = task.attempt_ms is not None or (
        task.expires_at is not None and task.profile != NOTIFIED
    )
    if service.timeout_ms is not None and not timed:
        changes["attempt_ms"] = service.timeout_ms
    if service.requires_approval:
        changes |= _guarded(task)
    if service.rules or service.partition_by:
        changes |= limits.fields_of(task, service, refusing=refusing)
    return msgspec.structs.replace(task, **changes) if changes else task


def _guarded(task: Task) -> dict[str, Any]:
    asked = approval_of(task)
    if asked is None:
        asked = ask(task.payload, task.created_at)
    elif asked.default == "approve":
        # A guard cannot be waited out: one that expires into a yes, at a time of the submitter's,
        # is none.
        raise Invalid(
            f"{task.type!r} is guarded by its service: only a person can approve it",
            pointer="/approval/default",
        )
    return {"waiting_for": WAITS, "approval": asked.encode()}
