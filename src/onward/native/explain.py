"""Why is it not running? One sentence, a machine's reason, when it will be, and what to do."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from onward.core.approval import Status, approval_of
from onward.core.contended import PREDECESSOR
from onward.core.dispatch import Dispatcher
from onward.core.errors import NextStep, Step
from onward.core.machine import NEVER
from onward.core.phase import Phase, phase
from onward.core.pressure.breaker import BreakerReading, Circuit
from onward.core.pressure.pauses import QueuePause
from onward.core.task import Instant, State, Task, fault_of
from onward.faults import UNKNOWN_SERVICE
from onward.native.limits import LimitUses
from onward.native.views import progress_of
from onward.wire.limits import LimitUse
from onward.workers.roster import Roster, group_of

WAITS_FOR = {
    "children": "the tasks that it submitted",
    "event": "a signal",
    "tasks": "the tasks of its batch",
    "timer": "a timer",
}
UsualMs = Callable[[str], int | None]  # by queue: how long its tasks run


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A door makes an `Explanation` of it: how to do the next step depends on who reads it."""

    id: str
    phase: Phase
    reason: str
    sentence: str
    eta: Instant | None = None
    step: NextStep | str | None = None
    limit: LimitUse | None = None


def explain(  # noqa: PLR0913 all that the answer depends on
    task: Task,
    now: Instant,
    *,
    served: bool,
    position: int | None,
    shut: BreakerReading | None = None,  # the service's breaker, if no work goes there
    paused: QueuePause | None = None,
    usual_ms: int | None = None,  # that tasks of this queue run
    slots: int = 1,  # that its workers have, together
    limit: LimitUse | None = None,  # that holds it back
) -> Explained:
    now_in = phase(task)
    if not (served and task.state is State.QUEUED):
        limit = None
    if paused is not None and task.state is State.QUEUED:
        reason, sentence, eta, step = _paused(task, paused)
    elif shut is not None and task.state is State.QUEUED:
        reason, sentence, eta, step = _left_alone(task, shut, now)
    elif limit is not None:
        reason, sentence, eta, step = _limited(task, limit, now)
        if eta is None and usual_ms is not None and position is not None and limit.max:
            eta = now + usual_ms * -(-position // limit.max)
    else:
        limit = None
        reason, sentence, eta, step = _reason(now_in, task, now, served=served, position=position)
        if reason == "workers_busy" and usual_ms is not None and position is not None:
            eta = now + usual_ms * -(-position // slots)
        elif eta is None and now_in in (Phase.RUNNING, Phase.OVERDUE):
            eta = expected_end(task, now, usual_ms)
    return Explained(
        id=task.id,
        phase=now_in,
        reason=reason,
        sentence=sentence,
        eta=eta,
        step=step,
        limit=limit,
    )


class Explainer:
    """The same, with what there is to know about a task's queue looked up."""

    def __init__(
        self, dispatcher: Dispatcher, roster: Roster, limits: LimitUses, usual_ms: UsualMs
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._limits = limits
        self.usual_ms = usual_ms

    async def explain(self, task: Task) -> Explained:
        dispatcher, roster = self._dispatcher, self._roster
        pressure = dispatcher.pressure
        serving = [member.slots for member in roster.members() if task.queue in member.queues]
        return explain(
            task,
            dispatcher.clock.now(),
            served=dispatcher.slots.served(task.queue) or await roster.serves(task.queue),
            position=await dispatcher.backend.tasks.position(task.id),
            shut=pressure.breakers.shut(task.queue),
            paused=pressure.pauses.paused().get(task.queue),
            usual_ms=self.usual_ms(task.queue),
            slots=max(1, sum(serving)),
            limit=await self._limits.holding(task),
        )


_Reason = tuple[str, str, Instant | None, NextStep | str | None]


def _reason(
    now_in: Phase, task: Task, now: Instant, *, served: bool, position: int | None
) -> _Reason:
    fault = fault_of(task.error)
    why = f": {fault.message}" if fault is not None else ""
    match now_in:
        case Phase.SCHEDULED | Phase.RETRY_WAIT if fault and fault.kind == UNKNOWN_SERVICE:
            return _put_off(task, fault.message, now)
        case Phase.SCHEDULED:
            return "scheduled", f"It starts in {span(task.run_at, now)}.", task.run_at, None
        case Phase.RETRY_WAIT:
            sentence = f"Attempt {task.attempt} failed{why}. It is tried again in "
            return "retry_wait", sentence + f"{span(task.run_at, now)}.", task.run_at, None
        case Phase.QUEUED | Phase.RETRYING | Phase.REQUEUED:
            return _queued(task, served=served, position=position)
        case Phase.WAITING_APPROVAL:
            step = NextStep(Step.APPROVE, f"{task.id}.{task.generation}")
            return "waiting_approval", "It waits for a person's approval.", None, step
        case Phase.PARKED:
            what = WAITS_FOR.get(task.waiting_for or "", task.waiting_for or "something")
            if what == PREDECESSOR:
                what = f"the end of task {task.predecessor}, whose place it takes"
            return "parked", f"It waits for {what}; no worker is held.", task.due_at, None
        case _:
            return _underway_or_over(now_in, task, now, why)


def _put_off(task: Task, why: str, now: Instant) -> _Reason:
    sentence = (
        f"A worker claimed it from queue {task.queue!r} but cannot do {task.type!r}: {why}. This"
        f" counts as no attempt; it is queued again in {span(task.run_at, now)}."
    )
    hint = f"start a worker that serves {task.type!r} and claims {task.queue!r}: Worker(queues=[…])"
    return "unknown_service", sentence, task.run_at, hint


def _paused(task: Task, paused: QueuePause) -> _Reason:
    by = f" by {paused.by}" if paused.by else ""
    why = f": {paused.reason}" if paused.reason else ""
    sentence = f"Queue {task.queue!r} was paused{by}{why}."
    return "queue_paused", sentence, None, NextStep(Step.RESUME_QUEUE, task.queue)


def _left_alone(task: Task, shut: BreakerReading, now: Instant) -> _Reason:
    failed = f"{shut.failures} of its last {shut.calls} calls failed"
    if shut.state is Circuit.HALF_OPEN:
        sentence = (
            f"Service {task.queue!r} was down ({failed}); one task is trying whether it is back."
        )
        return "breaker_half_open", sentence, None, None
    sentence = (
        f"Service {task.queue!r} seems to be down: {failed}. The task waits, uses no attempt, "
        f"and the service is tried again in {span(shut.until, now)}."
    )
    return "breaker_open", sentence, shut.until, NextStep(Step.SHOW_BREAKERS)


def _limited(task: Task, limit: LimitUse, now: Instant) -> _Reason:
    of = f" of partition {task.partition!r}" if limit.per == "partition" and task.partition else ""
    if limit.kind == "rate":
        sentence = (
            f"Limit {limit.name!r} lets {limit.max} start{of} in {span(limit.per_ms, 0)}; the next"
            f" may start in {span(limit.next_at, now)}."
        )
        return "rate", sentence, limit.next_at, None
    sentence = (
        f"Limit {limit.name!r} lets {limit.max} run{of} at once, and {limit.used} do; it starts"
        " when one of them is over."
    )
    return "concurrency", sentence, None, None


def _queued(task: Task, *, served: bool, position: int | None) -> _Reason:
    if not served:
        group = group_of(task.queue)
        who = f"worker of group {group!r}" if group else f"worker for {task.queue!r}"
        which = "in that group" if group else f"that serves {task.queue!r}"
        sentence = f"No {who} is connected; it waits in queue {task.queue!r}."
        return "no_worker", sentence, None, NextStep(Step.START_WORKER, which)
    if position is None:
        return "starting", "It has just been taken by a worker.", None, None
    ahead = "it is next" if position == 1 else f"{position - 1} tasks are ahead of it"
    sentence = f"Every worker of queue {task.queue!r} is busy; {ahead}."
    return "workers_busy", sentence, None, "add workers, or raise their concurrency"


def _underway_or_over(now_in: Phase, task: Task, now: Instant, why: str) -> _Reason:
    ran = span(now, task.started_at or now)
    match now_in:
        case Phase.OFFERED:
            sentence = "It is on a stream, and no worker has taken it yet."
            return "offered", sentence, None, NextStep(Step.START_STREAM_WORKER)
        case Phase.RUNNING:
            sentence = f"Worker {task.worker} has been running it for {ran}."
            return "running", sentence, None, None
        case Phase.OVERDUE:
            sentence = f"It is past its time; worker {task.worker} is still running it."
            return "overdue", sentence, None, None
        case Phase.CANCELING:
            if task.cancel_by == NEVER:
                return (
                    "canceling",
                    "It was canceled, and undoes what it has done so far.",
                    None,
                    None,
                )
            sentence = f"Worker {task.worker} was asked to stop."
            return "canceling", sentence, task.cancel_by, None
        case Phase.SUCCEEDED:
            return "succeeded", f"It succeeded after {_attempts(task)}.", None, None
        case Phase.CANCELED:
            return "canceled", "It was canceled.", None, _run_again(task)
        case Phase.DEAD:
            sentence = f"It failed permanently after {_attempts(task)}{why}."
            return "dead", sentence, None, NextStep(Step.REPLAY_DEAD, task.id)
        case _:
            return _failed(task, why)


def _attempts(task: Task) -> str:
    return "1 attempt" if task.attempt == 1 else f"{task.attempt} attempts"


def _failed(task: Task, why: str) -> _Reason:
    asked, ask_again = approval_of(task), NextStep(Step.ASK_AGAIN, task.id)
    if asked is not None and asked.status is Status.REJECTED:
        by = f" by {asked.by}" if asked.by else ""
        why = f": {asked.comment}" if asked.comment else ""
        return "rejected", f"It was rejected{by}{why}. It never ran.", None, ask_again
    if asked is not None and asked.status is Status.EXPIRED and asked.default == "reject":
        return "rejected", "Nobody approved it in time. It never ran.", None, ask_again
    return "failed", f"It failed{why}.", None, _run_again(task)


def _run_again(task: Task) -> NextStep:
    return NextStep(Step.RUN_AGAIN, task.id)


def expected_end(task: Task, now: Instant, usual_ms: int | None) -> Instant | None:
    """A guess: at the pace that its progress has shown so far, or as long as others took."""
    if task.started_at is None:
        return None
    done = progress_of(task).progress
    if not done:
        end = None if usual_ms is None else task.started_at + usual_ms
        return None if end is None or end <= now else end
    return now + round((now - task.started_at) * (1 - done) / done)


def span(until: Instant | None, now: Instant) -> str:
    ms = max(0, (until or now) - now)
    if ms < 1_000:
        return f"{ms} ms"
    seconds = ms / 1000
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3600:.1f} h"
