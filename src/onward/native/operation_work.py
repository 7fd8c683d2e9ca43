"""Carries operations out: part by part, each noted in the task's progress.

Killed at any line, the next attempt goes on with the part that was under way: what of it is done
already counts as done, not as refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from onward.core.contract import LeaseStatus
from onward.core.dispatch import Dispatcher
from onward.core.outcome import Canceled, Failed, Outcome, Released, Succeeded
from onward.core.policy import Overrides
from onward.core.task import FINAL, Claimed, State, Task, TaskId, encode
from onward.faults import Fault
from onward.wire.base import RefusedTask
from onward.wire.operations import OperationFilter, Verb

QUEUE, TYPE = "onward:operations", "onward:operation"
SLOTS = 2
KEPT_MS = 7 * 24 * 3_600_000  # of what is spooled, should no server carry it out
PART = 500  # tasks between two notes of the progress
STEPS = 4  # parts in a second, where there is a rate
SHOWN = 10  # of those that were refused
ERASE_TRIES, ERASE_AGAIN_S = 40, 0.25  # while a reader of the log has not read their end
RETRIES = Overrides(1_000, (1_000, 5_000, 30_000)).encode()

Erase = Callable[[Sequence[TaskId]], Awaitable[None]]


class Spooled(msgspec.Struct, frozen=True, array_like=True):
    id: TaskId
    generation: int  # in which it matched: another life of it is not meant


class Plan(msgspec.Struct, frozen=True):
    """The payload of an operation."""

    action: Verb
    matched: int
    spools: int
    filter: OperationFilter | None  # none: its tasks were named
    rate: float | None = None


class OperationProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Its progress, and in the end its result."""

    done: int = 0
    failed: int = 0
    refused: tuple[RefusedTask, ...] = ()
    progress: float = 0.0

    @property
    def seen(self) -> int:
        return self.done + self.failed

    def after(self, many: int, refused: Mapping[TaskId, str], matched: int) -> OperationProgress:
        named = [RefusedTask(id=id, reason=reason) for id, reason in refused.items()]
        return OperationProgress(
            self.done + many - len(refused),
            self.failed + len(refused),
            (*self.refused, *named)[:SHOWN],
            (self.seen + many) / matched,
        )


plan_of = msgspec.json.Decoder(Plan).decode
_decode_progress = msgspec.json.Decoder(OperationProgress).decode
_decode_spool = msgspec.json.Decoder(tuple[Spooled, ...]).decode


def progress_of(task: Task) -> OperationProgress | None:
    text = task.result or task.progress
    return None if text is None else _decode_progress(text)


def spool_kind(id: TaskId) -> str:
    return f"operation:{id}"


def spool_key(n: int) -> str:
    return f"{n:08}"


class OperationExecutor:
    def __init__(self, dispatcher: Dispatcher, erase: Erase) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.backend.tasks
        self._documents = dispatcher.backend.documents
        self._actions = {"cancel": self._cancel, "retry": self._retry, "delete": self._delete}
        self._erase = erase
        self._stopped: set[tuple[TaskId, int]] = set()
        self._pauses: dict[tuple[TaskId, int], asyncio.Event] = {}  # by attempt: set, to end them
        self._draining = False

    async def execute(self, task: Claimed) -> Outcome:
        if task.type != TYPE:
            return Failed(Fault(kind="InvalidInput", message="not an operation", retryable=False))
        attempt = (task.id, task.fence)
        self._pauses[attempt] = asyncio.Event()
        try:
            return await self._carried_out(task, plan_of(task.payload))
        finally:
            self._stopped.discard(attempt)
            del self._pauses[attempt]

    def drain(self) -> None:
        """What runs is handed back between two parts: another server goes on with it."""
        self._draining = True
        for pause in self._pauses.values():
            pause.set()

    def cancel(self, task: Claimed) -> None:
        """It stops between two parts."""
        attempt = (task.id, task.fence)
        self._stopped.add(attempt)
        if attempt in self._pauses:
            self._pauses[attempt].set()

    async def _carried_out(self, task: Claimed, plan: Plan) -> Outcome:
        (found,) = await self._store.get([task.id])
        progress = (found and progress_of(found)) or OperationProgress()
        again = task.fence > 1  # perhaps an attempt before this one was in the middle of a part
        first = 0
        spools = range(plan.spools if progress.seen < plan.matched else 0)
        for n in reversed(spools):  # the oldest tasks first
            spooled = await self._read(task.id, n)
            if spooled is None:
                return Failed(Fault(kind="Missing", message="what it is about is gone"))
            first += len(spooled)
            rest = spooled[::-1][max(0, len(spooled) - (first - progress.seen)) :]
            size = PART if plan.rate is None else max(1, min(PART, int(plan.rate / STEPS)))
            for at in range(0, len(rest), size):
                if (task.id, task.fence) in self._stopped:
                    return Canceled()
                if self._draining:
                    return Released()
                part = rest[at : at + size]
                refused = await self._actions[plan.action](part, again)
                again = False
                progress = progress.after(len(part), refused, plan.matched)
                status = await self._dispatcher.note(task, progress=encode(progress))
                if status is not LeaseStatus.HELD:
                    return Canceled() if status is LeaseStatus.CANCEL else Released()
                await self._pause(task, 0 if plan.rate is None else len(part) / plan.rate)
        for n in range(plan.spools):
            await self._documents.delete(spool_kind(task.id), spool_key(n))
        return Succeeded(encode(progress))

    async def _pause(self, task: Claimed, seconds: float) -> None:
        """Less if it is to stop: at a slow pace a pause may take hours."""
        if not seconds:
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._pauses[task.id, task.fence].wait()

    async def _read(self, id: TaskId, n: int) -> Sequence[Spooled] | None:
        now = self._dispatcher.clock.now()
        found = await self._documents.get(spool_kind(id), spool_key(n), now=now)
        return None if found is None else _decode_spool(found.body)

    async def _cancel(self, part: Sequence[Spooled], again: bool) -> Mapping[TaskId, str]:
        refused = await self._dispatcher.cancel_all([one.id for one in part])
        return await self._without(
            refused, lambda task: task.state is State.CANCELED or task.cancel_by is not None
        )

    async def _retry(self, part: Sequence[Spooled], again: bool) -> Mapping[TaskId, str]:
        generations = {one.id: one.generation for one in part}
        refused = await self._dispatcher.retry_all(generations)
        if not again:
            return refused
        return await self._without(
            refused,
            lambda task: task.generation > generations[task.id] or task.state not in FINAL,
        )

    async def _delete(self, part: Sequence[Spooled], again: bool) -> Mapping[TaskId, str]:
        ids = [one.id for one in part]
        live = {task.id: task for task in await self._look(ids) if task.state not in FINAL}
        left = [id for id in ids if id not in live]
        for turn in range(ERASE_TRIES):
            if turn:
                await asyncio.sleep(ERASE_AGAIN_S)
            await self._erase(left)
            left = [task.id for task in await self._look(left)]
            if not left:
                break
        refused = {id: f"a task that is {task.state} is not deleted" for id, task in live.items()}
        return refused | dict.fromkeys(left, "what reads the log has not read its end yet")

    async def _look(self, ids: Sequence[TaskId]) -> Sequence[Task]:
        return [task for task in await self._store.look(ids) if task is not None]

    async def _without(
        self, refused: Mapping[TaskId, str], is_done: Callable[[Task], bool]
    ) -> Mapping[TaskId, str]:
        """Those that are not as they should be by now."""
        done = {task.id for task in await self._look(list(refused)) if is_done(task)}
        return {id: reason for id, reason in refused.items() if id not in done}
