"""Work that callers wrote into the ledger's own database, inside transactions of theirs (Y-6).

Each is submitted as at any other door once its transaction is committed, under its own id: what a
service declares holds for it. One that does not fit cannot be refused any more, and becomes a
dead letter with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import msgspec
import structlog

from onward.core import machine, strict_json
from onward.core.contract import ENQUEUED, FRESH, Enqueued, Key
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, is_away
from onward.core.outcome import Failed
from onward.core.task import Json, State, Task, TaskId, as_claimed, encode
from onward.core.troubles import Troubles
from onward.faults import Fault
from onward.native.submission import Submissions
from onward.wire.base import MAX_BODY
from onward.wire.problems import fault_of
from onward.wire.tasks import TOO_LARGE, Submit

log = structlog.get_logger("onward.enqueued")

BATCH = 256
LOOK_S = 1.0
RETRY_S = 30.0  # a row that failed
MOST_FAILED = 1_000  # rows that are remembered
SCOPE = "enqueued"  # of keys: a second look at the same row is the same submission
_decode = msgspec.json.Decoder(Submit).decode


class EnqueuedWork:
    def __init__(self, source: Enqueued, dispatcher: Dispatcher, submissions: Submissions) -> None:
        self._source = source
        self._dispatcher = dispatcher
        self._submissions = submissions
        self._failed: dict[TaskId, float] = {}  # when to try it again

    async def run(self, troubles: Troubles) -> None:
        """Whenever a caller commits, and once a second."""
        async with self._dispatcher.backend.bell.listen(ENQUEUED) as listener:
            while True:
                try:
                    await self.adopt()
                    troubles.went_well(SCOPE)
                except Exception as error:  # what is left is read again
                    log.warning("enqueued work was not taken over", error=repr(error))
                    troubles.failed(SCOPE, error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await listener.wait()

    async def adopt(self) -> None:
        """Take over all that there is. Two servers may do it at once."""
        after = ""
        while rows := await self._source.read(
            BATCH, MAX_BODY, after=after, without=self._passed_over()
        ):
            after = rows[-1][0]
            results = await asyncio.gather(
                *[self._take(id, body) for id, body in rows], return_exceptions=True
            )
            failed = {
                id: error for (id, _), error in zip(rows, results, strict=True) if error is not None
            }
            # After they are in the ledger: a crash in between repeats, and changes nothing.
            await self._source.forget([id for id, _ in rows if id not in failed])
            for id, error in failed.items():
                self._pass_over(id, error)

    def _passed_over(self) -> Sequence[TaskId]:
        """Rows that failed lately: they are not read before it is time to try them again."""
        now = monotonic()
        self._failed = {id: again for id, again in self._failed.items() if again > now}
        return list(self._failed)

    def _pass_over(self, id: TaskId, error: BaseException) -> None:
        """One row's error costs its neighbours nothing; it is tried again later."""
        if is_away(error) or not isinstance(error, Exception):
            raise error
        log.warning("enqueued work was passed over", task=id[:128], error=repr(error)[:1_000])
        if len(self._failed) < MOST_FAILED:  # beyond that they are tried at each look
            self._failed[id] = monotonic() + RETRY_S

    async def _take(self, id: TaskId, body: Json | None) -> None:
        if body is None:
            return await self._bury(id, "{}", TOO_LARGE)
        try:
            strict_json.parse(body.encode())
            await self._submissions.take_over(id, _decode(body), Key(SCOPE, id, ""))
        except msgspec.ValidationError as error:
            wrong = fault_of(str(error), Submit)
            await self._bury(id, body, f"{wrong.pointer}: {wrong.message}")
        except Invalid as error:
            await self._bury(id, body, str(error))

    async def _bury(self, id: TaskId, body: Json, reason: str) -> None:
        """Whatever the row holds: one that cannot be buried would be tried again for ever."""
        now = self._dispatcher.clock.now()
        try:
            sent = msgspec.convert(msgspec.json.decode(body), dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            sent = {"payload": body}
        type_ = _name(sent.get("type")) or "unknown"
        task = Task(
            id=id,
            type=type_,
            queue=_name(sent.get("queue")) or type_,
            profile="console",
            payload=encode(sent.get("payload")),
            created_at=now,
        )
        offered = machine.adopted(task, SCOPE)
        tasks = self._dispatcher.backend.tasks
        submission = msgspec.structs.replace(offered, key=Key(SCOPE, id, ""))
        (receipt,) = (await tasks.insert([submission], (), now=now)).receipts
        if receipt.fate is not FRESH:
            # This id was taken over before. Only our own burial, cut short by a crash, is finished:
            # otherwise the task is a worker's by now, and this settlement would end its attempt.
            (found,) = await tasks.get([id])
            if found is None or found.state is not State.RUNNING or found.worker != SCOPE:
                return
        fault = Fault(kind="InvalidInput", message=reason, retryable=False)
        await self._dispatcher.settle(as_claimed(offered.task), Failed(fault))
        log.warning("enqueued work does not fit its service: a dead letter", task=id)


def _name(given: object) -> str:
    """As much of it as every ledger can hold."""
    return "".join(one for one in str(given or "") if one.isprintable())[:128]
