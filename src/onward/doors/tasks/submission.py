"""What the tasks door makes of a request: a task of a registered type, under the door's own rules.

Its retries and its age are the profile's; what the type's service declares comes on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.core.contract import Key
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, NotFound
from onward.core.policy import Overrides
from onward.core.task import Lane, Task, TaskId, encode, new_id
from onward.services.declarations import Declarations, as_declared
from onward.workers.roster import Roster, group_of

PROFILE = "tasks"
SUMMARIZE = "summarize"
EVERY = "*"


class TasksIntake:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        declarations: Declarations,
        stream_types: Sequence[str] = (),
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._declarations = declarations
        self._registered = frozenset({SUMMARIZE, *stream_types})

    async def submit(
        self,
        type_: str,
        payload: Any,
        *,
        id: TaskId | None = None,
        max_retries: int | None = None,
        retries: int = 0,
        owner: str | None = None,
    ) -> TaskId:
        """With an id of the submitter's own it is accepted once, however often it is submitted."""
        if type_ == SUMMARIZE:
            _require_content(payload)
        service = await self._declarations.fitting(type_, type_, payload)
        if service is None and not await self._known(type_):
            raise NotFound(
                f"task type {type_[:128]!r} is not registered",
                hint="connect a worker that serves it, or declare it with POST /api/v2/services",
            )
        task = Task(
            id=id or new_id(),
            type=type_,
            queue=type_,
            profile=PROFILE,
            payload=encode(payload),
            created_at=self._dispatcher.clock.now(),
            owner=owner,
            lane=Lane.RETRY if retries else Lane.PRIMARY,
            failures=retries,
            retries=retries,
            overrides=None if max_retries is None else Overrides(max_retries=max_retries).encode(),
        )
        key = None if id is None else Key(PROFILE, f"id:{id}", "")
        return (await self._dispatcher.submit(as_declared(task, service), key=key)).task

    async def _known(self, type_: str) -> bool:
        """Whether anybody does work of this type, or has done.

        The native door lets a type that no worker serves wait. Here a task dies of old age, so a
        misspelt type would be a dead letter an hour later: better refused at once. A worker that is
        away for a moment must not turn its callers away, so work in the ledger vouches for it.
        """
        if type_ in self._registered or EVERY in self._registered:
            return True
        if group_of(type_) is not None:
            return False  # a group of the dispatcher door is no type
        if await self._roster.serves(type_):
            return True
        counts = await self._dispatcher.backend.tasks.counts()
        return any(queue == type_ for queue, _, _ in counts)


def _require_content(payload: Any) -> None:
    content = payload.get("content") if isinstance(payload, dict) else None
    if not isinstance(content, str) or not content.strip():
        raise Invalid(
            "content must be a text that is not empty",
            pointer="/content",
            hint='send {"content": "the text to summarize"}',
        )
