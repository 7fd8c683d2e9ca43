"""Work that others put into the lists of the tasks door: how it enters the ledger.

A producer writes the hash of a task and pushes its id. The id becomes a task of this ledger, once;
one that cannot be read or is refused is set aside with a line in the log. An id that is known is
none of these: in the list of retries it asks for another try, as a person would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import time
from typing import Any

import msgspec
import structlog

from onward.core.coalesce import call_in_halves
from onward.core.dispatch import Dispatcher
from onward.core.errors import Conflict, LedgerUnavailable, Unreadable
from onward.core.task import Lane, State, Task
from onward.doors.redis_views.writer import Foreign, ViewWriter
from onward.doors.tasks.submission import SUMMARIZE, TasksIntake
from onward.doors.tasks.view import PENDING, list_of
from onward.services.catalog import Catalog
from onward.workers.roster import Roster, is_service
from onward.workers.streams.dialects import count, is_id

log = structlog.get_logger("onward.views")

GRACE_MS = 2_000  # an id may be pushed a moment before its hash is there
MOST_TYPES = 256  # whose lists are looked into, too
MOST_RETRIES = 1_000
OVER = frozenset({State.DEAD, State.FAILED})


class Adoption:
    def __init__(
        self,
        dispatcher: Dispatcher,
        intake: TasksIntake,
        catalog: Catalog,
        roster: Roster,
        writer: ViewWriter,
    ) -> None:
        self._dispatcher = dispatcher
        self._intake = intake
        self._catalog = catalog
        self._roster = roster
        self._writer = writer

    async def lists(self) -> Sequence[str]:
        """Where others may have put something: of types that are declared, served, or have work in
        the ledger, such as a dead letter to be retried."""
        declared = [type_ for one in await self._catalog.all() for type_ in one.task_types]
        served = sorted({queue for one in self._roster.members() for queue in one.queues})
        counts = await self._dispatcher.backend.tasks.counts()
        kept = sorted({queue for (queue, _, _), count in counts.items() if count})
        types = [type_ for type_ in dict.fromkeys([*declared, *served, *kept]) if is_service(type_)]
        named = dict.fromkeys([SUMMARIZE, *types[:MOST_TYPES]])
        return [list_of(type_, lane) for type_ in named for lane in Lane]

    async def adopt(self, foreign: Sequence[Foreign]) -> bool:
        """Returns whether any was dealt with: then there may be more behind them."""
        ids = [one.raw.decode(errors="replace") for one in foreign]
        hashes = await self._writer.hashes([one.raw for one in foreign])
        known = await call_in_halves(self._dispatcher.backend.tasks.get, ids)
        seen_to = await asyncio.gather(*map(self._adopt, foreign, ids, known, hashes))
        done = [one for one, seen in zip(foreign, seen_to, strict=True) if seen]
        # Submitted first, struck off second: a crash in between submits it again under its own
        # id, which the ledger has had.
        await self._writer.adopted(done)
        return bool(done)

    async def _adopt(
        self, one: Foreign, id: str, known: Task | Exception | None, fields: Mapping[str, str]
    ) -> bool:
        """Whether it is dealt with."""
        try:
            if isinstance(known, Unreadable):
                _set_aside(one, known.code)
            elif isinstance(known, Exception):
                raise known
            elif known is not None:
                await self._retry(one, known)
            elif not fields:
                if time() * 1000 - one.since < GRACE_MS:
                    return False
                _set_aside(one, "there is no hash of its name")
            elif not is_id(id) or id.encode() != one.raw:
                _set_aside(one, "this can be no id")
            else:
                await self._submit(one, id, fields)
        except LedgerUnavailable:
            return False
        except Exception as error:  # it would fail again, and must not stop the others
            # Without its message, which may quote the text that was refused.
            where = getattr(error, "pointer", "")
            _set_aside(one, f"{getattr(error, 'code', type(error).__name__)} {where}".strip())
        return True

    async def _submit(self, one: Foreign, id: str, fields: Mapping[str, str]) -> None:
        lane, type_ = _list(one.list)
        retries = min(count(fields.get("retry_count", "")), MOST_RETRIES)
        most = fields.get("max_retries", "")
        await self._intake.submit(
            type_,
            _payload(type_, fields.get("content", "")),
            id=id,
            max_retries=min(int(most), MOST_RETRIES) if most.isdigit() else None,
            retries=max(1, retries) if lane is Lane.RETRY else 0,
        )
        log.debug("adopted from a list", task=id, list=one.list)

    async def _retry(self, one: Foreign, task: Task) -> None:
        if _list(one.list)[0] is Lane.RETRY and task.state in OVER:
            try:
                await self._dispatcher.replay(task.id)
            except Conflict as error:  # another server was faster
                log.debug("not retried", task=task.id, error=str(error))


def _list(name: str) -> tuple[Lane, str]:
    """The lane and the type that a list's name says."""
    lane, _, queue = name.removeprefix(f"{PENDING}:").partition(":")
    return Lane(lane), queue or SUMMARIZE


def _payload(type_: str, content: str) -> Any:
    if type_ == SUMMARIZE:
        return {"content": content}
    try:
        return msgspec.json.decode(content)  # as the view shows work that has no text
    except msgspec.DecodeError:
        return {"content": content}


def _set_aside(one: Foreign, why: str) -> None:
    log.warning("a foreign id was set aside", id=repr(one.raw[:200]), list=one.list, error=why)
