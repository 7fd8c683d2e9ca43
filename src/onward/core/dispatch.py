"""The Dispatcher: submit, claim, extend, settle, cancel, approve, replay, abandon, signal, wait.

The one write path. It asks the machine what should happen, batches the answers, has the ledger
apply them, and wakes those that wait. It holds no truth: kill it at any line and the ledger stands.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import structlog

from onward.core import machine
from onward.core.approval import Decision
from onward.core.clock import Clock
from onward.core.coalesce import Coalescer, call_in_halves
from onward.core.contract import (
    APPLIED,
    Ask,
    Backend,
    LeaseRenewal,
    LeaseStatus,
    Move,
    Moved,
    Verdict,
)
from onward.core.decisions import Decisions, Reader, ending_of, queued_counts
from onward.core.errors import Conflict, LedgerUnavailable, NextStep, NotFound, Step
from onward.core.intake import Intake
from onward.core.intervene import (
    NO_TASK,
    Decide,
    DecideReplay,
    Guards,
    check_same_request,
    dead_only,
    move_or_why,
    unguarded,
)
from onward.core.lanes import RETRY_SHARE, RetryShare
from onward.core.measures import Measures
from onward.core.outcome import (
    Failed,
    Outcome,
    Released,
    Succeeded,
    invalid_outcome,
    size_of,
    storable,
)
from onward.core.policy import Profile
from onward.core.pressure.bounds import Pressure
from onward.core.pressure.breaker import BreakerRules
from onward.core.slots import HeldTask, Slots, renewals_of
from onward.core.task import (
    FINAL,
    Claimed,
    Ending,
    Instant,
    Json,
    Letter,
    Note,
    State,
    Task,
    TaskId,
    WorkerId,
    encode,
)
from onward.core.troubles import Troubles
from onward.core.waiters import Waiters, outcome_within
from onward.faults import Fault

log = structlog.get_logger("onward.dispatch")

T = TypeVar("T")

# What a ledger's own encoding raises for an item that it cannot keep, before anything is written.
UNSTORABLE = (TypeError, ValueError, OverflowError)
CHUNK = 256  # moves in one call of the ledger
TRIES = 5  # how often a decision is taken anew when the task has changed under it
AGAIN_S = 0.5  # between two tries at a ledger that is away


class Dispatcher(Intake):
    def __init__(
        self,
        backend: Backend,
        profiles: Mapping[str, Profile],
        clock: Clock,
        *,
        waiters: Waiters | None = None,
        breaker: BreakerRules | None = None,
        retry_share: RetryShare = RETRY_SHARE,
    ) -> None:
        self.backend = backend
        self.clock = clock
        self.profiles = profiles
        self.lease_ms = min(rules.lease_ms for rules in profiles.values())
        self.slots = Slots(wake=self._go_claiming)
        self.pressure = Pressure(
            backend, profiles, clock, self.slots, breaker=breaker, retry_share=retry_share
        )
        self.waiters = Waiters() if waiters is None else waiters
        self.troubles = Troubles()
        self.tally: Counter[str] = Counter()  # events written through this process, by type
        self.measures = Measures()
        self.reader: Reader | None = None  # decides for a parent whose state it knows
        self.guards: Callable[[], Awaitable[Guards]] = unguarded  # as services are declared now
        self.decisions = Decisions(profiles)
        super().__init__()
        self._settlements = Coalescer(self._settle, size=lambda item: size_of(item[1]))
        self._renewals = Coalescer(self._extend, size=size_of)
        self._claiming: asyncio.Task[None] | None = None
        self._loose: set[asyncio.Task[Any]] = set()

    # Work goes out.

    def _go_claiming(self) -> None:
        if self._claiming is None:
            self._claiming = asyncio.get_running_loop().create_task(self._claim())

    async def _claim(self) -> None:
        try:
            while asks := self.slots.ask_pending():
                now = self.clock.now()
                with self._under_way(asks) as claimed:
                    claimed += await self.backend.tasks.claim(asks, now=now)
                self.troubles.went_well("claim")
                await self.pressure.limits.held_back(asks, claimed, now)
        except Exception as error:  # the next bell, or the next second, tries again
            log.warning("claim failed", error=repr(error))
            self.troubles.failed("claim", error)
        finally:
            self._claiming = None

    @contextmanager
    def _under_way(self, asks: Sequence[Ask]) -> Iterator[list[Claimed]]:
        """While these asks are under way; what was found is delivered when they are back."""
        claimed: list[Claimed] = []
        back: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking[back] = frozenset(want.queue for ask in asks for want in ask.wants)
        try:
            yield claimed
        finally:
            del self._asking[back]
            back.set_result(None)
            self._deliver(asks, claimed)

    def _deliver(self, asks: Sequence[Ask], claimed: Sequence[Claimed]) -> None:
        self.tally["task.claimed"] += len(claimed)
        self.measures.claimed(claimed)
        self.backend.bell.ring(*[f"task:{task.id}" for task in claimed])
        for task in self.slots.give_back(asks, claimed):
            self._release(task)

    def _release(self, task: Claimed) -> None:
        """Its worker left while the ask was under way: no attempt began, so none is counted."""
        self.spawn(self.settle_surely(task, Released()))

    # Work is held.

    async def extend(self, renewal: LeaseRenewal) -> LeaseStatus:
        return await self._renewals.one(renewal)

    async def note(self, task: Claimed, *notes: Note, progress: Json | None = None) -> LeaseStatus:
        """Events of an attempt that is held here; they renew its lease."""
        until = self.clock.now() + self.lease_ms
        return await self.extend(LeaseRenewal(task.id, task.fence, until, progress, notes))

    async def _extend(self, renewals: Sequence[LeaseRenewal]) -> Sequence[LeaseStatus]:
        statuses = await self.backend.tasks.extend(renewals, now=self.clock.now())
        self.backend.bell.ring(
            *{f"task:{renewal.task}" for renewal in renewals if renewal.notes}, "log"
        )
        for renewal, status in zip(renewals, statuses, strict=True):
            for event, _ in renewal.notes:
                self.tally[event] += 1
            if status is not LeaseStatus.HELD:
                self.slots.stop(renewal.task, renewal.fence, revoked=status is LeaseStatus.LOST)
        return statuses

    async def delivered(
        self, news: Sequence[tuple[Claimed, WorkerId, Instant]]
    ) -> Sequence[Claimed | None]:
        """Offered tasks have reached a worker: their clocks start, with a lease until then.

        None: this one has changed since; read it again.
        """
        now = self.clock.now()
        found: list[Claimed | None] = []
        for at in range(0, len(news), CHUNK):
            part = news[at : at + CHUNK]
            moves = [machine.delivered(task, worker, now, until) for task, worker, until in part]
            verdicts = await self._apply_each(moves, now)
            found += [
                msgspec.structs.replace(task, rev=task.rev + 1, worker=worker, started_at=now)
                if verdict is Verdict.APPLIED
                else None
                for (task, worker, _), verdict in zip(part, verdicts, strict=True)
            ]
        return found

    async def beat(self) -> None:
        """Renew the lease of everything that is held in this process."""
        await self._renew(self.slots.held())

    async def _renew(self, held: Iterable[HeldTask]) -> None:
        renewals = renewals_of(held, self.clock.now())
        if renewals:
            await self._renewals.many(renewals)

    # Work is over.

    async def settle(self, task: Claimed, outcome: Outcome) -> Verdict:
        """STALE or GONE: too late. What came late is in the event log, and changes nothing."""
        return await self.settle_soon(task, outcome)

    async def settle_surely(self, task: Claimed, outcome: Outcome) -> None:
        """The same, again and again while the ledger is away and the task may still be ours."""
        for _ in range(max(1, int(self.lease_ms / 1000 / AGAIN_S))):
            try:
                await self.settle(task, outcome)
            except LedgerUnavailable:
                await asyncio.sleep(AGAIN_S)
            else:
                return

    def settle_soon(self, task: Claimed, outcome: Outcome) -> asyncio.Future[Verdict]:
        """The same for a caller that does not wait."""
        self.slots.put_down(task.id, task.fence)
        return self._settlements.one((task, outcome))

    async def _settle(
        self, batch: Sequence[tuple[Claimed, Outcome]]
    ) -> Sequence[Verdict | asyncio.Future[Verdict]]:
        now = self.clock.now()
        batch = [(task, storable(outcome)) for task, outcome in batch]
        decided = [self.decisions.settlement(*each, now) for each in batch]
        moves = self.decisions.answered(decided, self.reader, now)
        try:
            moved = await self._apply(moves, now)
        except UNSTORABLE as error:
            if len(batch) > 1:
                raise  # tried again in halves, down to the one that it is
            task, outcome = batch[0]
            if moves[0].answer is None:  # else what its parent answers may be what cannot be kept
                outcome = invalid_outcome(error)
            return [self._beside(self._settle_again(task, outcome))]
        self.pressure.note(batch, moved.verdicts)
        # Those that are refused are read and decided again beside the batch: the others' results
        # are in the ledger, and neither wait for that nor get its errors.
        return [
            verdict if verdict is APPLIED else self._beside(self._settle_again(*each))
            for each, verdict in zip(batch, moved.verdicts, strict=True)
        ]

    async def _settle_again(self, held: Claimed, outcome: Outcome) -> Verdict:
        for _ in range(TRIES):
            task = await self._get(held.id)
            if task is None:
                return Verdict.GONE
            now = self.clock.now()
            late = task.fence != held.fence or task.state is not State.RUNNING
            if late:
                if not isinstance(outcome, Succeeded | Failed):
                    return Verdict.STALE
                data = encode({"worker": held.worker, "fence": held.fence})
                move = machine.event_only(task, "task.late_result", data)
            else:
                # Changed under us with the fence unchanged (a cancel, say): decide on what is now.
                move = self.decisions.settlement(task, outcome, now)
            verdict = (await self._apply([move], now)).verdicts[0]
            if verdict is Verdict.APPLIED and late:
                return Verdict.STALE
            if verdict is Verdict.REFUSED and not late:  # it runs until its lease ends
                log.error("the ledger refuses this outcome", task=held.id)
            if verdict in (Verdict.APPLIED, Verdict.GONE, Verdict.REFUSED):
                self.pressure.note([(held, outcome)], [verdict])
                return verdict
        log.error("settlement given up", task=held.id, tries=TRIES)
        return Verdict.MOVED

    async def _apply(self, moves: Sequence[Move], now: Instant) -> Moved:
        answers = [move.answer for move in moves if move.answer is not None]
        asks = self.slots.borrow(
            queued_counts(child.task for move in (*moves, *answers) for child in move.spawn)
        )
        frees = self.pressure.limits.freed((*moves, *answers))
        with self._under_way(asks) as claimed:
            moved = await self.backend.tasks.apply(moves, asks, now=now, frees=frees)
            claimed += moved.claimed
        applied = [
            move for move, verdict in zip(moves, moved.verdicts, strict=True) if verdict is APPLIED
        ]
        applied += [answer for answer in answers if answer.task in moved.answered]
        for move in applied:
            for event, _ in move.events:
                self.tally[event] += 1
            over = move.to in FINAL and move.expect not in FINAL
            self.measures.moved(move, now, over=over)
            if over:
                self.waiters.end(ending_of(move, now))
        ready = moved.awake | frees if applied else moved.awake
        self._announce(ready, [move.task for move in applied])
        return moved

    async def _apply_each(
        self, moves: Sequence[Move], now: Instant
    ) -> Sequence[Verdict | Exception]:
        """The same for moves that do not depend on each other."""

        async def apply(part: Sequence[Move]) -> Sequence[Verdict]:
            return (await self._apply(part, now)).verdicts

        return await call_in_halves(apply, moves)

    def _announce(self, ready: set[str] | frozenset[str], touched: Sequence[TaskId]) -> None:
        if ready:
            self.slots.notify(ready)
        self.backend.bell.ring(
            *[f"queue:{queue}" for queue in ready], *[f"task:{task}" for task in touched], "log"
        )

    # A person, or the clock, intervenes.

    async def apply_clock(self, tasks: Sequence[Task], now: Instant) -> Iterable[TaskId]:
        """The alarms of these live tasks have rung; returns those of which nothing came.

        One that cannot be decided rings again later, so that it does not hold up the others.
        """
        left = {task.id: task for task in tasks}
        moves = self.decisions.alarms(tasks, now)
        for each, verdict in zip(moves, await self._apply_each(moves, now), strict=True):
            if isinstance(verdict, Exception):
                self.decisions.undecided(each.task, verdict)
            elif verdict is Verdict.APPLIED:
                task = left.pop(each.task)
                if each.expect is State.RUNNING is not each.to:
                    self.pressure.note_lateness(task, each)
                    self.slots.stop(each.task, each.fence, revoked=True)
        return left.keys()

    async def cancel(self, task: TaskId) -> Task:
        """Over at once, or asked to stop if it runs. Conflict when it is over already."""
        found = await self._intervene(task, self._cancel)
        if found.state is State.RUNNING:
            self.slots.stop(found.id, found.fence, revoked=False)
        return found

    async def cancel_all(self, ids: Sequence[TaskId]) -> Mapping[TaskId, str]:
        """The same of many. Returns which were refused, and why."""
        refused = await self._intervene_all(ids, self._cancel)
        if held := self.slots.of(ids):  # their renewal learns that they are to stop
            self.spawn(self._renew(held))
        return refused

    def _cancel(self, found: Task, now: Instant) -> Move | None:
        if found.state in FINAL:
            raise Conflict(f"the task is already over: {found.state}")
        return machine.cancel(found, now, self.profiles[found.profile])

    async def approve(
        self, task: TaskId, decision: Decision, *, payload: Json | None = None
    ) -> Task:
        """Let it run, perhaps with a corrected payload. Conflict when it is decided already."""

        def decide(found: Task, now: Instant) -> Move:
            profile = self.profiles[found.profile]
            move = machine.approve(found, now, profile, decision.by, decision.comment, payload)
            return check_same_request(found, decision, move)

        return await self._intervene(task, decide)

    async def reject(self, task: TaskId, decision: Decision) -> Task:
        def decide(found: Task, now: Instant) -> Move:
            profile = self.profiles[found.profile]
            move = machine.reject(found, now, profile, decision.by, decision.comment)
            return check_same_request(found, decision, move)

        return await self._intervene(task, decide)

    async def replay(self, task: TaskId, *, payload: Json | None = None) -> Task:
        payloads = {} if payload is None else {task: payload}
        return await self._intervene(
            task, DecideReplay(self.profiles, payloads, await self.guards())
        )

    async def retry_all(self, generations: Mapping[TaskId, int]) -> Mapping[TaskId, str]:
        """However they ended, each in this generation alone; returns why some were refused."""
        decide = DecideReplay(self.profiles, {}, await self.guards(), generations=generations)
        return await self._intervene_all(list(generations), decide)

    async def replay_all(
        self, starts: Mapping[TaskId, Instant], payloads: Mapping[TaskId, Json] = {}
    ) -> Mapping[TaskId, str]:
        """Dead letters, each from its instant on. Returns which were refused, and why.
        The ledger holds when each one starts: this process need not be there then.
        """
        decide = DecideReplay(self.profiles, payloads, await self.guards(), starts)
        return await self._intervene_all(list(starts), dead_only(decide))

    async def abandon(self, task: TaskId) -> Task:
        return await self._intervene(task, dead_only(self._abandon))

    async def abandon_all(self, ids: Sequence[TaskId]) -> Mapping[TaskId, str]:
        return await self._intervene_all(ids, dead_only(self._abandon))

    def _abandon(self, found: Task, now: Instant) -> Move | None:
        return machine.abandon(found, now, self.profiles[found.profile])

    async def give_up(self, task: TaskId, fault: Fault) -> Task:
        """Its last worker reports that another try is of no use."""
        return await self._intervene(
            task,
            lambda found, now: machine.given_up(found, fault, now, self.profiles[found.profile]),
        )

    async def signal(self, task: TaskId, name: str, body: Json) -> None:
        now = self.clock.now()
        moved = await self.backend.tasks.post([Letter(to=task, name=name, body=body)], now=now)
        if moved.verdicts[0] is Verdict.REFUSED:
            raise Conflict("the task has too many unread letters", hint="send it again later")
        if moved.verdicts[0] is not Verdict.APPLIED:
            raise NotFound("no live task has this id")
        self._announce(moved.awake, [task])

    async def _intervene(self, id: TaskId, decide: Decide) -> Task:
        for _ in range(TRIES):
            task = await self._get(id)
            if task is None:
                raise NotFound(NO_TASK)
            now = self.clock.now()
            move = decide(task, now)
            if move is None:
                return task
            verdict = (await self._apply([move], now)).verdicts[0]
            if verdict is Verdict.APPLIED:
                return await self._get(id) or task
            if verdict is Verdict.GONE:
                raise Conflict(
                    "the task has left the ledger for the archive", hint="submit it anew"
                )
            if verdict is Verdict.REFUSED:
                raise Conflict(
                    "the ledger refuses this change of the task", step=NextStep(Step.CHECK_LEDGER)
                )
        raise Conflict("the task keeps changing; try again")

    async def _intervene_all(self, ids: Sequence[TaskId], decide: Decide) -> Mapping[TaskId, str]:
        refused: dict[TaskId, str] = {}
        for at in range(0, len(ids), CHUNK):
            part = ids[at : at + CHUNK]
            now = self.clock.now()
            moves: list[Move] = []
            found = await call_in_halves(self.backend.tasks.get, part)
            for id, task in zip(part, found, strict=True):
                decided = move_or_why(decide, task, now)
                if isinstance(decided, str):
                    refused[id] = decided
                else:
                    moves.append(decided)
            for move, verdict in zip(moves, await self._apply_each(moves, now), strict=True):
                if verdict is not Verdict.APPLIED:
                    try:
                        await self._intervene(move.task, decide)
                    except (Conflict, NotFound) as error:
                        refused[move.task] = str(error)
        return refused

    # Callers wait.

    async def wait(self, task: TaskId, *, timeout_ms: int) -> Ending | None:
        """How it ended, or None when the time is over first."""
        with self.waiters.expect(task) as future:
            found = await self._get(task)
            if found is None:
                raise NotFound(NO_TASK)
            if found.state in FINAL:
                return Ending.of(found)
            return await outcome_within(future, timeout_ms)

    def on_news(
        self, queues: Sequence[str], tasks: Sequence[TaskId], ended: Mapping[TaskId, Ending | None]
    ) -> None:
        """Something happened on another server: look for work, and for what is waited for here."""
        self.slots.notify(queues)
        held = self.slots.of(tasks)
        if held:  # what is held here may have to stop
            self.spawn(self._renew(held))
        for ending in ended.values():
            if ending is not None:
                self.waiters.end_unborn(ending)
        waited = self.waiters.of(ended)
        if waited:
            self.spawn(self._look_for_endings(waited))

    async def reread(self) -> None:
        """What a lost bell cannot hide: look for work, and for the endings that are waited for."""
        self.slots.notify_all()
        await self._look_for_endings(self.waiters.waited_for())

    async def _look_for_endings(self, waited: Sequence[TaskId]) -> None:
        for at in range(0, len(waited), CHUNK):
            for task in await call_in_halves(self.backend.tasks.get, waited[at : at + CHUNK]):
                if isinstance(task, Task) and task.state in FINAL:
                    self.waiters.end(Ending.of(task))

    async def _get(self, task: TaskId) -> Task | None:
        return (await self.backend.tasks.get([task]))[0]

    async def finish(self, timeout_ms: int) -> None:
        """Wait, but not for ever, for what is under way without a caller."""
        # A claim that was sent before the workers left comes back afterwards, and its tasks are
        # released by work that is spawned only then.
        self.pressure.limits.close()
        if self._claiming is not None:
            await asyncio.wait([self._claiming], timeout=timeout_ms / 1000)
        if self._loose:
            await asyncio.wait(self._loose, timeout=timeout_ms / 1000)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something without a caller, and keep it from being collected meanwhile."""
        _ = self._beside(work)

    def _beside(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)
        return task
