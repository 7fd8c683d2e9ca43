"""What comes in from a stream: answers to our offers, and entries that somebody else put there.

Read in a group of our own, settled in the ledger, then acknowledged: a crash in between reads them
once more, and the ledger refuses what it has had. Never anything of the seeds' groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import msgspec
import structlog
from redis.exceptions import RedisError, ResponseError

from onward.core.contract import Verdict
from onward.core.dispatch import Dispatcher
from onward.core.errors import LedgerUnavailable
from onward.core.follow import history
from onward.core.outcome import Failed, Succeeded
from onward.core.task import Claimed, State, Task, TaskId
from onward.services.declarations import Declarations
from onward.workers.roster import Roster
from onward.workers.streams.adopt import Adoption
from onward.workers.streams.channel import OURSELVES, Channel, Row, order
from onward.workers.streams.dialects import TOLD_S, Answer, Fields, count, is_id, told_key
from onward.workers.streams.offers import Offer, Offers, claimed, net_ms

log = structlog.get_logger("onward.streams")

PAGE = 256
PAUSE_S = 0.25

AWAY = (RedisError, OSError, LedgerUnavailable)
REFUSED = ResponseError  # it is there, and will not: full, or forbidden


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
        self._adoption = Adoption(dispatcher, declarations, channel, offers, self.worker)

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
                    if "NOGROUP" in str(error):  # deleted: made anew by whoever sits down next
                        self._offers.leave()
                else:
                    log.exception("collecting failed")
                if not isinstance(error, RedisError | OSError):  # that is seen by whoever pings it
                    self._dispatcher.troubles.failed(self.worker, error)
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
        answers: dict[TaskId, list[tuple[Row, Answer]]] = {}
        for row in rows:
            answer = self._dialect.answer(stream, row.fields)
            if answer is not None:
                answers.setdefault(answer.task, []).append((row, answer))
        hopeless = await self._adopt_unknown([said[0] for said in answers.values()])
        later = await asyncio.gather(*[self._in_turn(said, hopeless) for said in answers.values()])
        left = {entry for entries in later for entry in entries}
        return [row for row in rows if row.entry not in left]

    async def _in_turn(
        self, said: Sequence[tuple[Row, Answer]], hopeless: Collection[TaskId]
    ) -> list[str]:
        """One task's answers, in their order: the first one counts. Returns what is left."""
        for at, (_, answer) in enumerate(said):
            if answer.task in hopeless and isinstance(answer.outcome, Failed):
                fault = msgspec.structs.replace(answer.outcome.fault, retryable=False)
                answer = msgspec.structs.replace(answer, outcome=Failed(fault))
            try:
                await self._answered(answer)
            except AWAY:
                return [row.entry for row, _ in said[at:]]
            except Exception as error:
                # It would fail again, and nothing behind it would ever be read.
                log.error("an answer was dropped", task=answer.task, error=repr(error))
        return []

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
        its_last = answer.fence in (None, held.fence) and await self._had_it_last(held.id)
        if isinstance(answer.outcome, Failed) and its_last:
            # It has reported the failure before, and another try waits for its time.
            task = await self._dispatcher.give_up(answer.task, answer.outcome.fault)
            if task.state is State.DEAD:
                return
        await self._channel.unmark(marker)

    async def _had_it_last(self, task: TaskId) -> bool:
        """Whether it was this stream that had it last, or ever."""
        worker = None
        async for event in history(self._tasks, task):
            if event.type == "task.claimed":
                worker = msgspec.json.decode(event.data or "{}").get("worker")
        return bool(worker == self.worker)

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

    async def _adopt_unknown(self, said: Sequence[tuple[Row, Answer]]) -> Collection[TaskId]:
        """Returns those of which nobody knows what was to be done: no use in trying again."""
        strange = [(row, answer) for row, answer in said if self._offers.of(answer.task) is None]
        ids = [answer.task for _, answer in strange]
        tasks = await self._tasks.look(ids) if ids else ()
        unknown = {
            answer.task: (row.fields, answer)
            for (row, answer), task in zip(strange, tasks, strict=True)
            if task is None
        }
        if not unknown:
            return ()
        name = self._dialect.id_field
        async for rows in self._channel.entries():
            found = [row for row in rows if row.fields.get(name) in unknown]
            for row in found:
                unknown.pop(row.fields[name], None)
            await self.meet(found)
            if not unknown:
                return ()  # what else there is of these is met when it is read
        # The entries themselves are gone; a worker's dead letter tells of them.
        gone = {task: (None, _before(*said)) for task, said in unknown.items()}
        await self._adoption.adopt(gone)
        return {task for task, (_, fields) in gone.items() if self._dialect.flaw(fields)}

    # Entries that we did not put there, or did in an earlier life.

    async def meet(self, rows: Sequence[Row]) -> None:
        # One at a time: a sweep that meets the entry that is being read here would adopt it twice,
        # and the second offer would stand for an attempt that the first one has ended.
        async with self._meeting:
            strange = [row for row in rows if not self._is_known(row)]
            for at in range(0, len(strange), PAGE):
                await self._meet(strange[at : at + PAGE])

    async def find(self, entry: str) -> Offer | None:
        """The offer of an entry that is not in the book yet: its worker was quicker than the reply
        to writing it, or than our reading of an entry that another program wrote."""
        row = await self._channel.row(entry)
        if row is not None:
            await self._offers.find(row.fields.get(self._dialect.id_field, ""))
            await self.meet([row])
        return self._offers.at(entry)

    def _is_known(self, row: Row) -> bool:
        if self._offers.at(row.entry) is not None:
            return True
        # Put there by us a moment ago: read here before the reply to writing it.
        fields = row.fields
        return self._offers.is_coming(
            fields.get(self._dialect.id_field, ""), fields.get("fence", "")
        )

    async def _meet(self, rows: Sequence[Row]) -> None:
        ids = [self._id_of(row) for row in rows]
        tasks = await self._tasks.look(ids)
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
        await self._adoption.adopt(foreign)
        await self._offers.drop([entry for entry in over if entry is not None])

    def _id_of(self, row: Row) -> TaskId:
        """The task's, or one for an entry that has none: the same whenever it is read."""
        id = row.fields.get(self._dialect.id_field, "")
        return id if is_id(id) else f"{self._dialect.name}-{row.entry}"

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


def _before(fields: Fields, answer: Answer) -> Fields:
    """As the task was before this answer: a dead letter counts the failure that it tells of."""
    failures = count(fields.get("retry_count", ""))
    return {**fields, "retry_count": str(failures - 1)} if answer.given_up and failures else fields
