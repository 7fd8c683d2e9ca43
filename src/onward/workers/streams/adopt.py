"""Entries that another program put on a stream: how their tasks enter the ledger.

They enter as offered, and perhaps as under way. An entry that no worker has read yet is checked as
at every other door: its key is used once, its payload fits the schema, a guarded type waits for
approval. An entry that a worker has read stays with that worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
import structlog

from onward.core import machine
from onward.core.contract import Fate, Key
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, KeyReused
from onward.core.outcome import Failed
from onward.core.task import Fault, Task, TaskId
from onward.services.declarations import Declarations, as_declared
from onward.workers.streams.channel import Channel
from onward.workers.streams.dialects import Fields
from onward.workers.streams.offers import Offer, Offers, claimed

log = structlog.get_logger("onward.streams")

# By task: its entry, or None if only its answer is known, and the fields of either.
Foreign = Mapping[TaskId, tuple[str | None, Fields]]
REUSED = "its idempotency_key was used before, with another tool or payload"


class EntryAdoption:
    def __init__(
        self,
        dispatcher: Dispatcher,
        declarations: Declarations,
        channel: Channel,
        offers: Offers,
        worker: str,
    ) -> None:
        self._dispatcher = dispatcher
        self._declarations = declarations
        self._channel = channel
        self._dialect = channel.dialect
        self._offers = offers
        self._worker = worker

    async def adopt(self, foreign: Foreign) -> None:
        now = self._dispatcher.clock.now()
        adopted: list[tuple[str | None, Task]] = []
        flaws: dict[TaskId, Fault] = {}
        for id, (entry, fields) in foreign.items():
            task = self._dialect.adopt({**fields, "task_id": id}, now)
            if task is None:
                continue
            flaw = None if entry is None else self._dialect.flaw(fields)
            if fields.get("task_id") != id:
                flaw = "an entry without a task_id that could be one"
            if flaw is not None:
                flaws[task.id] = Fault(kind="SchemaInvalid", message=flaw, retryable=False)
            elif entry is not None and await self._is_guarded(entry, task, flaws):
                continue
            adopted.append((entry, task))
        if adopted:
            await self._enter(adopted, flaws)

    async def _is_guarded(self, entry: str, task: Task, flaws: dict[TaskId, Fault]) -> bool:
        """Whether it waits for approval instead; a payload that does not fit is a flaw."""
        try:
            payload = msgspec.json.decode(task.payload)
            service = await self._declarations.fitting(task.type, task.queue, payload)
        except Invalid as error:
            if not await self._channel.was_read(entry):
                flaws[task.id] = Fault(kind="SchemaInvalid", message=str(error), retryable=False)
            return False
        guarded = service is not None and service.requires_approval
        if not guarded or await self._channel.was_read(entry):
            return False
        # In the ledger first: after a crash between the two the next start deletes the entry; the
        # other way round the task would be lost.
        try:
            await self._dispatcher.submit(as_declared(task, service), key=self._key(task))
        except KeyReused:
            return False  # it becomes a dead letter
        if not await self._channel.withdraw(entry):
            log.warning("a worker took it before it was approved", task=task.id)
        return True

    async def _enter(
        self, adopted: Sequence[tuple[str | None, Task]], flaws: dict[TaskId, Fault]
    ) -> None:
        fates = await self._insert([(task, self._key(task)) for _, task in adopted])
        again: list[Task] = []
        there: list[tuple[str | None, Task]] = []
        for (entry, task), fate in zip(adopted, fates, strict=True):
            if fate is not Fate.FRESH:
                if fate is Fate.KNOWN and await self._take_back(entry):
                    log.info("not adopted: its key was used before", task=task.id)
                    continue
                again.append(task)
                if fate is Fate.REUSED and not await self._is_under_way(entry):
                    flaws[task.id] = Fault(kind="KeyReused", message=REUSED, retryable=False)
            there.append((entry, task))
        await self._insert([(task, None) for task in again])
        self._dispatcher.backend.bell.ring("log")
        for entry, task in there:
            offer = Offer(entry, claimed(machine.adopted(task, self._worker).task))
            self._offers.keep(offer)
            if task.id in flaws:
                await self._offers.settle(offer, Failed(flaws[task.id]))

    async def _insert(self, tasks: Sequence[tuple[Task, Key | None]]) -> Sequence[Fate]:
        if not tasks:
            return ()
        if any(task.session for task, _ in tasks):
            await self._dispatcher.expect_sessions()
        submissions = [
            msgspec.structs.replace(machine.adopted(task, self._worker), key=key)
            for task, key in tasks
        ]
        store, now = self._dispatcher.backend.tasks, self._dispatcher.clock.now()
        receipts = (await store.insert(submissions, (), now=now)).receipts
        return [receipt.fate for receipt in receipts]

    async def _take_back(self, entry: str | None) -> bool:
        # A quick worker may have acknowledged it, with its answer on the way: if the entry were
        # deleted, that answer would belong to a task that is not in the ledger.
        if entry is None or await self._channel.was_read(entry):
            return False
        return await self._channel.withdraw(entry)

    async def _is_under_way(self, entry: str | None) -> bool:
        return entry is None or await self._channel.was_read(entry)

    def _key(self, task: Task) -> Key | None:
        if task.key is None or task.key == task.id:
            return None
        request = hashlib.sha256(f"{task.type}\n{task.payload}".encode()).hexdigest()
        return Key(self._dialect.name, task.key, request)
