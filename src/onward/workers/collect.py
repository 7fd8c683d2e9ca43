"""What comes in from a stream: answers to our offers, and entries that somebody else put there.

Read in a group of our own, settled in the ledger, then acknowledged: a crash in between reads them
once more, and the ledger refuses what it has had. Never anything of the seeds' groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
import structlog
from redis.exceptions import RedisError

from onward.core import machine
from onward.core.contract import Submission, Verdict
from onward.core.dispatch import Dispatcher
from onward.core.errors import LedgerUnavailable
from onward.core.outcome import Failed, Succeeded
from onward.core.task import Claimed, Fault, State, Task, TaskId
from onward.workers.channel import OURSELVES, Channel, Row, order
from onward.workers.dialects import TOLD_S, Answer, Fields, told_key
from onward.workers.offers import Offer, Offers, claimed, net_ms
from onward.workers.roster import Roster

log = structlog.get_logger("onward.streams")

PAGE = 256
PAUSE_S = 0.25

AWAY = (RedisError, OSError, LedgerUnavailable)


class Collector:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        channel: Channel,
        offers: Offers,
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

    async def run(self) -> None:
        start = ">"
        while True:
            try:
                if self._offers.seat is None:
                    await asyncio.sleep(PAUSE_S)
                    continue
                count = await self._collect(start, block=True)
                if count == 0:
                    start = ">"
            except Exception as error:
                if isinstance(error, AWAY):
                    log.warning("answers out of reach", error=repr(error))
                else:
                    log.exception("collecting failed")
                start = "0"  # what could not be seen to is read once more before anything new
                await asyncio.sleep(PAUSE_S)

    async def catch_up(self) -> None:
        """All that is there now: what was read and never acknowledged, and what is new."""
        for start in ("0", ">"):
            while await self._collect(start, block=False):
                pass

    async def _collect(self, start: str, *, block: bool) -> int:
        count = 0
        for stream, rows in await self._channel.read(start, block=block):
            count += len(rows)
            if stream == self._dialect.tasks:
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

    async def _answers(self, stream: str, rows: Sequence[Row]) -> list[Row]:
        """Settle them; returns those that are seen to."""
        answers = [
            (row.entry, answer)
            for row in rows
            if (answer := self._dialect.answer(stream, row.fields)) is not None
        ]
        await self._adopt_unknown([answer for _, answer in answers])
        ends = await asyncio.gather(
            *[self._answered(answer) for _, answer in answers], return_exceptions=True
        )
        later: set[str] = set()
        for (entry, answer), end in zip(answers, ends, strict=True):
            if isinstance(end, AWAY):
                later.add(entry)
            elif isinstance(end, BaseException):
                # It would fail again, and nothing behind it would ever be read.
                log.error("an answer was dropped", task=answer.task, error=repr(end))
        return [row for row in rows if row.entry not in later]

    async def _answered(self, answer: Answer) -> None:
        offer = await self._offers.find(answer.task)
        if offer is not None:
            held = offer.claimed
            fence = await self._fence_of(offer, answer) if answer.fence is None else answer.fence
        else:
            task = (await self._tasks.get([answer.task]))[0]
            if task is None:
                return
            held = claimed(task)
            fence = answer.fence or self._last_streamed(task)
        if answer.given_up:
            await self._given_up(answer, held, fence)
        else:
            await self._settle(answer, held, fence)

    async def _settle(self, answer: Answer, held: Claimed, fence: int) -> Verdict:
        offer = self._offers.of(answer.task)
        if offer is not None and fence == offer.claimed.fence:
            return await self._offers.settle(offer, answer.outcome)
        # Of another attempt than the one that is offered now: the ledger knows what to make of it.
        said = msgspec.structs.replace(held, fence=fence, worker=answer.worker)
        return await self._dispatcher.settle(said, answer.outcome)

    async def _given_up(self, answer: Answer, held: Claimed, fence: int) -> None:
        """The worker's own dead letter: it must not be told a second time by us."""
        marker = told_key(held.id, held.generation)
        await self._channel.mark(marker, TOLD_S)
        if await self._settle(answer, held, fence) is Verdict.APPLIED:
            return
        if isinstance(answer.outcome, Failed) and answer.fence in (None, held.fence):
            # It has reported the failure before, and another try waits for its time.
            task = await self._dispatcher.give_up(answer.task, answer.outcome.fault)
            if task.state is State.DEAD:
                return
        await self._channel.unmark(marker)

    async def _fence_of(self, offer: Offer, answer: Answer) -> int:
        """An answer without a fence counts for an entry that somebody has, or had last."""
        entry, fence = offer.entry, offer.claimed.fence
        if self._dialect.shared and isinstance(answer.outcome, Succeeded):
            return fence  # its services send no heartbeats: slow is not lost, and done is done
        if entry is None or offer.consumer is not None or offer.acked_at is not None:
            return fence
        if await self._channel.is_taken(entry):
            return fence
        if order(entry) <= (await self._channel.delivered()).any:
            return fence
        return fence - 1  # nobody has taken this one yet: it answers an earlier one

    def _last_streamed(self, task: Task) -> int:
        """The same for a task that is not on the stream now: the attempt that was seen there."""
        seen = task.state is State.RUNNING and task.lease_until is not None
        return task.fence if seen and not self._runs_natively(task) else -1

    def _runs_natively(self, task: Task) -> bool:
        return any(member.id == task.worker for member in self._roster.members())

    async def _adopt_unknown(self, answers: Sequence[Answer]) -> None:
        strange = [answer for answer in answers if self._offers.of(answer.task) is None]
        tasks = await self._tasks.get([answer.task for answer in strange]) if strange else ()
        unknown = {
            answer.task: answer for answer, task in zip(strange, tasks, strict=True) if task is None
        }
        if not unknown:
            return
        name = self._dialect.id_field
        rows = [row for row in await self._channel.entries() if row.fields.get(name) in unknown]
        for row in rows:
            unknown.pop(row.fields[name], None)
        await self.meet(rows)
        for task, answer in unknown.items():  # the entry itself is gone
            fence = {} if answer.fence is None else {"fence": str(answer.fence)}
            await self._adopt({task: (None, {name: task, **fence})})

    # Entries that we did not put there, or did in an earlier life.

    async def meet(self, rows: Sequence[Row]) -> None:
        strange = [row for row in rows if not self._is_known(row)]
        for at in range(0, len(strange), PAGE):
            await self._meet(strange[at : at + PAGE])

    def _is_known(self, row: Row) -> bool:
        if self._offers.at(row.entry) is not None:
            return True
        # Put there by us a moment ago: read here before the reply to writing it.
        fields = row.fields
        return self._offers.is_coming(
            fields.get(self._dialect.id_field, ""), fields.get("fence", "")
        )

    async def _meet(self, rows: Sequence[Row]) -> None:
        ids = [row.fields.get(self._dialect.id_field, "") for row in rows]
        tasks = await self._tasks.get(ids)
        foreign: dict[TaskId, tuple[str | None, Fields]] = {}
        over: list[str | None] = []
        for id, (entry, fields, _), task in zip(ids, rows, tasks, strict=True):
            if task is None:
                if id in foreign:
                    over.append(foreign[id][0])  # whoever sent it has sent it again
                foreign[id] = (entry, fields)
            elif self._goes_on(task, fields):
                over.append(self._take_up(entry, task))
            else:
                over.append(entry)  # settled by whoever died before clearing it away
        await self._adopt(foreign)
        await self._offers.drop([entry for entry in over if entry is not None])

    def _goes_on(self, task: Task, fields: Fields) -> bool:
        if task.state is not State.RUNNING:
            return False
        if "fence" in fields:
            return fields["fence"] == str(task.fence)
        offer = self._offers.of(task.id)
        if offer is None:
            return not self._runs_natively(task)
        # A second entry of a task that is on the stream: its worker tries it again by itself, or
        # somebody has sent it twice.
        tried = fields.get("retry_count", "")
        return tried.isdigit() and int(tried) > offer.claimed.failures

    def _take_up(self, entry: str, task: Task) -> str | None:
        """Go on with it; returns the entry that this one takes the place of."""
        offer = Offer(entry, claimed(task))
        if task.lease_until is not None and self._offers.of(task.id) is None:
            offer.consumer = task.worker
            offer.until = task.lease_until - net_ms(self._visibility_ms)
        return self._offers.keep(offer)

    async def _adopt(self, foreign: Mapping[TaskId, tuple[str | None, Fields]]) -> None:
        """They enter the ledger as what they are: offered, and perhaps under way."""
        now = self._dispatcher.clock.now()
        adopted: list[tuple[str | None, Submission]] = []
        for entry, fields in foreign.values():
            task = self._dialect.adopt(fields, now)
            if task is not None:
                adopted.append((entry, machine.adopted(task, self.worker)))
        if adopted:
            if any(submission.task.session for _, submission in adopted):
                await self._dispatcher.expect_sessions()
            await self._tasks.insert([submission for _, submission in adopted], (), now=now)
            self._dispatcher.backend.bell.ring("log")
            for entry, submission in adopted:
                offer = Offer(entry, claimed(submission.task))
                self._offers.keep(offer)
                flaw = None if entry is None else self._dialect.flaw(foreign[submission.task.id][1])
                if flaw is not None:
                    fault = Fault(kind="SchemaInvalid", message=flaw, retryable=False)
                    await self._offers.settle(offer, Failed(fault))
