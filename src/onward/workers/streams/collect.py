"""What comes in from a stream: answers to offers, and entries that another program put there.

Read in the server's own group, settled in the ledger, then acknowledged: after a crash in between
they are read again, and the ledger refuses what it has had. Never reads in the workers' groups.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Mapping, Sequence

import msgspec
import structlog
from redis.exceptions import RedisError, ResponseError

from onward.core import machine
from onward.core.contract import Fate, Key, LeaseRenewal, Verdict
from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, KeyReused, LedgerUnavailable
from onward.core.follow import history
from onward.core.outcome import Failed, Outcome, Succeeded
from onward.core.task import Claimed, State, Task, TaskId, as_claimed
from onward.faults import Fault
from onward.services.declarations import Declarations, as_declared
from onward.wire.streams import Fields
from onward.workers.roster import Roster
from onward.workers.streams.channel import OURSELVES, Channel, EntryId, StreamEntry
from onward.workers.streams.dialects import (
    DEAD_LETTER_S,
    StreamAnswer,
    count,
    dead_letter_key,
    is_id,
)
from onward.workers.streams.offers import Offer, Offers, net_ms

log = structlog.get_logger("onward.streams")

PAGE = 256
PAUSE_S = 0.25
LONGEST_NAME = 200  # of a worker, in its own answer

# By task: its entry, or None if only its answer is known, and the fields of either.
Foreign = Mapping[TaskId, tuple[EntryId | None, Fields]]
REUSED_KEY = "its idempotency_key was used before, with another tool or payload"

AWAY = (RedisError, OSError, LedgerUnavailable)
REFUSED = ResponseError  # Redis answers, and refuses: it is full, or access is denied


class Collector:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        channel: Channel,
        offers: Offers,
        declarations: Declarations,
        visibility_ms: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._tasks = dispatcher.backend.tasks
        self._roster = roster
        self._channel = channel
        self._dialect = channel.dialect
        self._offers = offers
        self._visibility_ms = visibility_ms
        self.worker = f"{OURSELVES}:{self._dialect.name}"
        self._meeting = asyncio.Lock()
        self._declarations = declarations

    async def run(self) -> None:
        start = ">"
        while True:
            try:
                if self._offers.worker_slots is None:
                    await asyncio.sleep(PAUSE_S)
                    continue
                count = await self._collect(start, block=True)
                if count == 0:
                    start = ">"
                self._dispatcher.troubles.went_well(self.worker)
            except Exception as error:
                if isinstance(error, AWAY):
                    log.warning("answers out of reach", error=repr(error))
                    if "NOGROUP" in str(error):  # deleted: the next seat creates it
                        self._offers.leave()
                else:
                    log.exception("collecting failed")
                if not isinstance(error, RedisError | OSError):  # the health check pings Redis
                    self._dispatcher.troubles.failed(self.worker, error)
                start = "0"  # what was not acknowledged is read again before anything new
                await asyncio.sleep(PAUSE_S)

    async def catch_up(self) -> None:
        """Reads all that is there now: what was never acknowledged, and what is new."""
        for start in ("0", ">"):
            while await self._collect(start, block=False):
                pass

    async def _collect(self, start: str, *, block: bool) -> int:
        count = 0
        for stream, rows in await self._channel.read(start, block=block):
            count += len(rows)
            if stream in self._channel.task_streams:
                await self.meet(rows)
                done = list(rows)
            else:
                done = await self._answers(stream, rows)
            if done:
                await self._channel.done(stream, done)
            if len(done) < len(rows):
                raise LedgerUnavailable("some answers are left for later")
        return count

    # Answers.

    async def _answers(self, stream: str, rows: Sequence[StreamEntry]) -> list[StreamEntry]:
        """Settles them; returns those that may be acknowledged."""
        answers: dict[TaskId, list[tuple[StreamEntry, StreamAnswer]]] = {}
        for row in rows:
            answer = self._dialect.answer(stream, row.fields)
            if answer is not None:
                answers.setdefault(answer.task, []).append((row, answer))
        hopeless = await self._adopt_unknown([of_task[0] for of_task in answers.values()])
        later = await asyncio.gather(
            *[self._in_order(of_task, hopeless) for of_task in answers.values()]
        )
        left = {entry for entries in later for entry in entries}
        return [row for row in rows if row.entry not in left]

    async def _in_order(
        self, answers: Sequence[tuple[StreamEntry, StreamAnswer]], hopeless: Collection[TaskId]
    ) -> list[EntryId]:
        """One task's answers, in their order: the first one counts. Returns those left over."""
        for at, (_, answer) in enumerate(answers):
            if answer.task in hopeless and isinstance(answer.outcome, Failed):
                fault = msgspec.structs.replace(answer.outcome.fault, retryable=False)
                answer = msgspec.structs.replace(answer, outcome=Failed(fault))
            try:
                await self._answered(answer)
            except AWAY:
                return [row.entry for row, _ in answers[at:]]
            except Exception as error:
                # It would fail again each time, and no entry after it would ever be read.
                log.error("an answer was dropped", task=answer.task, error=repr(error))
        return []

    async def _answered(self, answer: StreamAnswer) -> None:
        offer = await self._offers.find(answer.task)
        if offer is not None:
            if answer.fence in (None, offer.claimed.fence):
                await self._notice_taker(offer, answer.worker)
            held = offer.claimed
            fence = await self._fence_of(offer, answer) if answer.fence is None else answer.fence
        else:
            task = (await self._tasks.get([answer.task]))[0]
            if task is None:
                return
            held = as_claimed(task)
            fence = answer.fence or self._last_streamed(task)
        if answer.given_up:
            await self._given_up(answer, held, fence)
        else:
            await self._settle(answer, held, fence)

    async def _notice_taker(self, offer: Offer, worker: str) -> None:
        """A worker that claimed the entry from another one, and answered before a sweep saw it."""
        if offer.entry is None or offer.consumer in (None, worker):
            return
        if await self._channel.had_it_last(offer.entry, worker):
            lease = offer.until + net_ms(self._visibility_ms)
            await self._offers.taken_over(offer, worker, lease)

    async def _settle(self, answer: StreamAnswer, held: Claimed, fence: int) -> Verdict:
        offer = self._offers.of(answer.task)
        if offer is not None and fence == offer.claimed.fence:
            # A worker that answers before a sweep has seen it was never written down as its worker.
            outcome = answer.outcome if offer.consumer else _with_taker(answer)
            return await self._offers.settle(offer, outcome)
        # Of another attempt than the one that is offered now: the ledger decides by its fence.
        attempt = msgspec.structs.replace(held, fence=fence, worker=answer.worker)
        return await self._dispatcher.settle(attempt, answer.outcome)

    async def _given_up(self, answer: StreamAnswer, held: Claimed, fence: int) -> None:
        """The worker has written the dead letter: the server must not write a second one."""
        marker = dead_letter_key(held.id, held.generation)
        await self._channel.mark(marker, DEAD_LETTER_S)
        if await self._settle(answer, held, fence) is Verdict.APPLIED:
            return
        its_last = answer.fence in (None, held.fence) and await self._had_it_last(held.id)
        if isinstance(answer.outcome, Failed) and its_last:
            # The worker has reported the failure before, and the next attempt is waiting.
            task = await self._dispatcher.give_up(answer.task, answer.outcome.fault)
            if task.state is State.DEAD:
                return
        await self._channel.unmark(marker)

    async def _had_it_last(self, task: TaskId) -> bool:
        """Whether the last claim was this stream's."""
        worker = None
        async for event in history(self._tasks, task):
            if event.type == "task.claimed":
                worker = msgspec.json.decode(event.data or "{}").get("worker")
        return bool(worker == self.worker)

    async def _fence_of(self, offer: Offer, answer: StreamAnswer) -> int:
        """An answer without a fence counts for the entry, if a consumer has it or has had it."""
        entry, fence = offer.entry, offer.claimed.fence
        if self._dialect.shared and isinstance(answer.outcome, Succeeded):
            return fence  # its services send no heartbeats: a slow one is not lost
        if entry is None or offer.consumer is not None or offer.acked_at is not None:
            return fence
        if await self._channel.is_taken(entry):
            return fence
        if (await self._channel.delivered()).any_had(entry):
            return fence
        return fence - 1  # no consumer has this entry yet: the answer is to an earlier one

    def _last_streamed(self, task: Task) -> int:
        """The same for a task that is not on the stream now: the attempt that was last there."""
        seen = task.state is State.RUNNING and task.lease_until is not None
        return task.fence if seen and not self._runs_natively(task) else -1

    def _runs_natively(self, task: Task) -> bool:
        return any(member.id == task.worker for member in self._roster.members())

    async def _adopt_unknown(
        self, answers: Sequence[tuple[StreamEntry, StreamAnswer]]
    ) -> Collection[TaskId]:
        """Returns the tasks whose type is not known: a retry could not be offered to a worker."""
        strange = [(row, answer) for row, answer in answers if self._offers.of(answer.task) is None]
        ids = [answer.task for _, answer in strange]
        tasks = await self._tasks.look(ids) if ids else ()
        unknown = {
            answer.task: (row.fields, answer)
            for (row, answer), task in zip(strange, tasks, strict=True)
            if task is None
        }
        if not unknown:
            return ()
        async for rows in self._channel.entries():
            found = [row for row in rows if row.fields.get("task_id") in unknown]
            for row in found:
                unknown.pop(row.fields["task_id"], None)
            await self.meet(found)
            if not unknown:
                return ()  # further entries of these are met when they are read
        # The entries themselves are gone; a worker's dead letter repeats their fields.
        gone = {task: (None, _before(*found)) for task, found in unknown.items()}
        await self._adopt(gone)
        return {task for task, (_, fields) in gone.items() if self._dialect.flaw(fields)}

    # Entries that another program put there, or this server before a restart.

    async def meet(self, rows: Sequence[StreamEntry]) -> None:
        # One at a time: a sweep that meets an entry which is being read here would adopt it twice,
        # and the second offer would be for an attempt that the first one has ended.
        async with self._meeting:
            strange = [row for row in rows if not self._is_known(row)]
            for at in range(0, len(strange), PAGE):
                await self._meet(strange[at : at + PAGE])

    async def renew(self) -> None:
        """Renews the ledger's lease of every task whose entry is on the stream: whether its worker
        is silent, alive or has answered is for the feed to find out."""
        async for rows in self._channel.entries():
            tasks = await self._tasks.look([self._id_of(row) for row in rows])
            until = self._dispatcher.clock.now() + net_ms(self._visibility_ms)
            renewals = [
                LeaseRenewal(task.id, task.fence, until)
                for row, task in zip(rows, tasks, strict=True)
                if task is not None
                and task.lease_until is not None
                and task.lease_until < until
                and self._is_current(task, row.fields)
            ]
            await asyncio.gather(*map(self._dispatcher.extend, renewals))

    async def find(self, entry: EntryId) -> Offer | None:
        """The offer of an entry that has none here yet: its worker was quicker than the reply to
        writing it, or than the reading of an entry that another program wrote."""
        row = await self._channel.row(entry)
        if row is not None:
            await self._offers.find(row.fields.get("task_id", ""))
            await self.meet([row])
        return self._offers.at(entry)

    def _is_known(self, row: StreamEntry) -> bool:
        if self._offers.at(row.entry) is not None:
            return True
        # Just written by this server: read here before the reply to writing it.
        fields = row.fields
        return self._offers.is_coming(fields.get("task_id", ""), fields.get("fence", ""))

    async def _meet(self, rows: Sequence[StreamEntry]) -> None:
        ids = [self._id_of(row) for row in rows]
        tasks = await self._tasks.look(ids)
        foreign: dict[TaskId, tuple[EntryId | None, Fields]] = {}
        over: list[EntryId | None] = []
        for id, (entry, fields, _), task in zip(ids, rows, tasks, strict=True):
            if task is None:
                if id in foreign:
                    over.append(foreign[id][0])  # it was sent twice
                foreign[id] = (entry, fields)
            elif self._is_current(task, fields):
                over.append(self._take_up(entry, task))
            else:
                over.append(entry)  # settled by a server that ended before deleting it
        await self._adopt(foreign)
        await self._offers.drop([entry for entry in over if entry is not None])

    def _id_of(self, row: StreamEntry) -> TaskId:
        """The task's id, or one made from an entry that has none: the same at each reading."""
        id = row.fields.get("task_id", "")
        return id if is_id(id) else f"{self._dialect.name}-{row.entry.id}"

    def _is_current(self, task: Task, fields: Fields) -> bool:
        if task.state is not State.RUNNING:
            return False
        if "fence" in fields:
            return fields["fence"] == str(task.fence)
        offer = self._offers.of(task.id)
        if offer is None:
            return not self._runs_natively(task)
        # A second entry of a task that is on the stream: its worker retries it by itself, or it was
        # sent twice.
        tried = fields.get("retry_count", "")
        return tried.isdigit() and int(tried) > offer.claimed.failures

    def _take_up(self, entry: EntryId, task: Task) -> EntryId | None:
        """Records its offer; returns the entry that this one replaces."""
        offer = Offer(entry, as_claimed(task))
        if task.lease_until is not None and self._offers.of(task.id) is None:
            offer.consumer = task.worker
            offer.until = task.lease_until - net_ms(self._visibility_ms)
        return self._offers.keep(offer)

    # Entries of other programs: their tasks enter the ledger as offered, and perhaps as under way.
    # One that no worker has read yet is checked as at every other door: its key is used once, its
    # payload fits the schema, a guarded type waits for approval. One that a worker has read stays
    # with that worker.

    async def _adopt(self, foreign: Foreign) -> None:
        now = self._dispatcher.clock.now()
        adopted: list[tuple[EntryId | None, Task]] = []
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

    async def _is_guarded(self, entry: EntryId, task: Task, flaws: dict[TaskId, Fault]) -> bool:
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
        self, adopted: Sequence[tuple[EntryId | None, Task]], flaws: dict[TaskId, Fault]
    ) -> None:
        fates = await self._insert([(task, self._key(task)) for _, task in adopted])
        again: list[Task] = []
        there: list[tuple[EntryId | None, Task]] = []
        for (entry, task), fate in zip(adopted, fates, strict=True):
            if fate is not Fate.FRESH:
                if fate is Fate.KNOWN and await self._take_back(entry):
                    log.info("not adopted: its key was used before", task=task.id)
                    continue
                again.append(task)
                # Under way already, it cannot be stopped: its answer counts.
                if fate is Fate.REUSED and entry and not await self._channel.was_read(entry):
                    flaws[task.id] = Fault(kind="KeyReused", message=REUSED_KEY, retryable=False)
            there.append((entry, task))
        await self._insert([(task, None) for task in again])
        self._dispatcher.backend.bell.ring("log")
        for entry, task in there:
            offer = Offer(entry, as_claimed(machine.adopted(task, self.worker).task))
            self._offers.keep(offer)
            if task.id in flaws:
                await self._offers.settle(offer, Failed(flaws[task.id]))

    async def _insert(self, tasks: Sequence[tuple[Task, Key | None]]) -> Sequence[Fate]:
        if not tasks:
            return ()
        await self._dispatcher.expect([task for task, _ in tasks])
        submissions = [
            msgspec.structs.replace(machine.adopted(task, self.worker), key=key)
            for task, key in tasks
        ]
        now = self._dispatcher.clock.now()
        receipts = (await self._tasks.insert(submissions, (), now=now)).receipts
        return [receipt.fate for receipt in receipts]

    async def _take_back(self, entry: EntryId | None) -> bool:
        # A quick worker may have acknowledged it, with its answer on the way: if the entry were
        # deleted, that answer would belong to a task that is not in the ledger.
        if entry is None or await self._channel.was_read(entry):
            return False
        return await self._channel.withdraw(entry)

    def _key(self, task: Task) -> Key | None:
        if task.key is None or task.key == task.id:
            return None
        request = hashlib.sha256(f"{task.type}\n{task.payload}".encode()).hexdigest()
        return Key(self._dialect.name, task.key, request)


def _with_taker(answer: StreamAnswer) -> Outcome:
    if not answer.worker or not isinstance(answer.outcome, Succeeded | Failed):
        return answer.outcome
    return msgspec.structs.replace(answer.outcome, taken_by=answer.worker[:LONGEST_NAME])


def _before(fields: Fields, answer: StreamAnswer) -> Fields:
    """The task as it was before this answer: a dead letter counts the failure that it reports."""
    failures = count(fields.get("retry_count", ""))
    return {**fields, "retry_count": str(failures - 1)} if answer.given_up and failures else fields
