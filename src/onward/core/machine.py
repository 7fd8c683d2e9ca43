"""The state machine: (task, news, now) → one fully decided Move. Pure; no clock, no store.

Every change of a task's state is decided by a function in this file, except the two that a store
makes by itself because they are the same for everybody: claim (queued → running) and a letter that
wakes its reader (waiting → queued).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from onward.core import moves
from onward.core.approval import (
    EXPIRY,
    WAITS,
    Approval,
    Status,
    approval_of,
    ask,
    asked_again,
    awaited,
    closing,
    open_approval,
)
from onward.core.contract import POSTPONE_MS, Move, Submission
from onward.core.outcome import Canceled, Failed, Lost, Outcome, Parked, Released, Succeeded
from onward.core.policy import (
    CANCEL_GRACE_MS,
    POISON_AFTER,
    Profile,
    fingerprint,
    overrides_of,
)
from onward.core.task import (
    FINAL,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    Claimed,
    Held,
    Instant,
    Json,
    Lane,
    Letter,
    Note,
    State,
    Task,
    WorkerId,
    encode,
)
from onward.faults import Fault, transient

S = State
# What may follow what, and the event that records it. A test walks every decision through it.
TRANSITIONS: Mapping[tuple[State, State], frozenset[str]] = {
    (S.SCHEDULED, S.QUEUED): frozenset({"task.queued"}),
    (S.SCHEDULED, S.SCHEDULED): frozenset({"task.superseded"}),
    (S.SCHEDULED, S.CANCELED): frozenset({"task.canceled"}),
    (S.SCHEDULED, S.FAILED): frozenset({"task.failed"}),
    (S.SCHEDULED, S.DEAD): frozenset({"task.failed", "task.dlq"}),
    (S.QUEUED, S.QUEUED): frozenset({"task.promoted", "task.canceling"}),
    (S.QUEUED, S.RUNNING): frozenset({"task.claimed"}),
    (S.QUEUED, S.CANCELED): frozenset({"task.canceled"}),
    (S.QUEUED, S.FAILED): frozenset({"task.failed"}),
    (S.QUEUED, S.DEAD): frozenset({"task.failed", "task.dlq"}),
    (S.RUNNING, S.SUCCEEDED): frozenset({"task.succeeded"}),
    (S.RUNNING, S.SCHEDULED): frozenset({"task.retrying", "task.released"}),
    (S.RUNNING, S.QUEUED): frozenset({"task.retrying", "task.released", "task.reclaimed"}),
    (S.RUNNING, S.WAITING): frozenset({"task.parked"}),
    (S.RUNNING, S.FAILED): frozenset({"task.failed"}),
    (S.RUNNING, S.DEAD): frozenset({"task.failed", "task.dlq"}),
    (S.RUNNING, S.CANCELED): frozenset({"task.canceled"}),
    (S.RUNNING, S.RUNNING): frozenset({"task.canceling", "task.timeout", "task.delivered"}),
    (S.WAITING, S.QUEUED): frozenset({"task.woken", "approval.approved"}),
    (S.WAITING, S.WAITING): frozenset({"task.parked", "task.canceling"}),
    (S.WAITING, S.SUCCEEDED): frozenset({"task.succeeded"}),
    (S.WAITING, S.SCHEDULED): frozenset({"approval.approved"}),
    (S.WAITING, S.CANCELED): frozenset({"task.canceled"}),
    (S.WAITING, S.FAILED): frozenset({"approval.rejected", "task.failed"}),
    (S.WAITING, S.DEAD): frozenset({"task.failed", "task.dlq"}),
    (S.DEAD, S.FAILED): frozenset({"task.abandoned"}),
    **{
        (over, to): events
        for over in (S.DEAD, S.FAILED, S.CANCELED)
        for to, events in {
            S.QUEUED: frozenset({"task.replayed"}),
            S.SCHEDULED: frozenset({"task.replayed"}),
            S.WAITING: frozenset({"task.replayed", "approval.requested"}),
        }.items()
    },
}

NEVER: Instant = 9 * 10**15  # of what runs and has no clock yet

CANCEL = "cancel"  # the name of the letter that asks a task to end itself
CANCELED: Note = ("task.canceled", None)
TIMED_OUT = Fault(kind="timeout", message="the time allowed for the task is over")
ATTEMPT_TIMED_OUT = Fault(kind="TIMEOUT", message="the attempt took longer than its timeout")
WORKER_LOST = Fault(kind="worker_lost", message="the worker went away while it ran the task")
UNDECIDED = Fault(kind="Rejected", message="it was not approved in time", retryable=False)
POISON = Fault(
    kind="poison", message=f"{POISON_AFTER} workers in a row were lost while they ran the task"
)


def born(task: Task, profile: Profile) -> tuple[Task, tuple[Note, ...]]:
    """A submission as it goes into the ledger: first state, first alarm, first events."""
    if task.expires_at is None and profile.age_ms is not None:
        task = msgspec.structs.replace(task, expires_at=task.created_at + profile.age_ms)
    limit = moves.age_limit(profile, task.expires_at)
    notes: tuple[Note, ...] = (("task.created", None),)
    if task.waiting_for == WAITS:
        asked = approval_of(task) or ask(task.payload, task.created_at)
        task = msgspec.structs.replace(task, approval=asked.encode())
        notes += (asked.requested(),)
        state, due_at = State.WAITING, moves.earliest(asked.expires_at, limit)
    elif task.waiting_for is not None:
        state, due_at = State.WAITING, moves.earliest(task.run_at, limit)
    elif task.run_at is not None and task.run_at > task.created_at:
        state, due_at = State.SCHEDULED, moves.earliest(task.run_at, limit)
    else:
        state, due_at = QUEUED, moves.earliest(task.start_by, limit)
    task = msgspec.structs.replace(
        task, state=state, due_at=due_at, queued_at=task.created_at, events=len(notes)
    )
    return task, notes


def settle(
    held: Held,
    outcome: Outcome,
    now: Instant,
    profile: Profile,
    children: tuple[Submission, ...] = (),
) -> Move:
    if held.cancel_by is not None:
        outcome = _despite_cancel(outcome, profile)
    match outcome:
        case Succeeded():
            return _succeeded(held, outcome, now, profile)
        case Failed(fault, journal, notes, taken_by):
            return failed(held, fault, now, profile, journal, notes, taken_by)
        case Canceled():
            return _stopped(held, outcome, now, profile)
        case Parked():
            return moves.park(held, outcome, now, profile, children)
        case Released(fault):
            return moves.release(held, fault, now, profile)
        case Lost(detail):
            return lost(held, now, profile, detail)


def answer(
    waiting: Held,
    outcome: Parked | Succeeded,
    now: Instant,
    profile: Profile,
    children: tuple[Submission, ...] = (),
) -> Move:
    """A waiting task goes on as if it had been woken and claimed, with the claim it parked with."""
    if isinstance(outcome, Parked):
        return moves.park_again(waiting, outcome, profile, children)
    changes: dict[str, str | int | None] = {
        "result": outcome.result,
        **moves.last_memory(outcome.journal),
        "waiting_for": None,
        "attempt": waiting.attempt,
        "worker": waiting.worker,
    }
    note: Note = ("task.succeeded", None)
    return moves.end(
        waiting, State.WAITING, State.SUCCEEDED, now, profile, changes, *outcome.notes, note
    )


def _succeeded(held: Held, outcome: Succeeded, now: Instant, profile: Profile) -> Move:
    changes: dict[str, str | int | None] = {"result": outcome.result, "error": None, "lost": 0}
    changes |= moves.last_memory(outcome.journal)
    notes = outcome.notes
    if outcome.taken_by is not None:
        changes["worker"], notes = outcome.taken_by, (_delivery(outcome.taken_by), *notes)
    note: Note = ("task.succeeded", None)
    return moves.end(held, RUNNING, SUCCEEDED, now, profile, changes, *notes, note)


def _despite_cancel(outcome: Outcome, profile: Profile) -> Outcome:
    """A cancel that was accepted holds, whatever the worker reports."""
    if profile.winds_down and isinstance(outcome, Succeeded):
        # Its last step was made before it could read the cancel: it reads it now, and undoes.
        return Released()
    if profile.winds_down and isinstance(outcome, Parked | Released | Lost):
        return outcome
    if isinstance(outcome, Succeeded | Failed | Canceled):
        return Canceled(outcome.journal, outcome.notes)
    return Canceled()


def _stopped(held: Held, outcome: Canceled, now: Instant, profile: Profile) -> Move:
    changes = moves.last_memory(outcome.journal)
    return moves.end(
        held, State.RUNNING, State.CANCELED, now, profile, changes, *outcome.notes, CANCELED
    )


def failed(
    held: Held,
    fault: Fault,
    now: Instant,
    profile: Profile,
    journal: Json | None = None,
    notes: tuple[Note, ...] = (),
    taken_by: WorkerId | None = None,
) -> Move:
    """An attempt failed: another try if the fault and the budget allow it, else the end."""
    taken: dict[str, str | int | None] = {}
    before: tuple[Note, ...] = ()
    if taken_by is not None:
        taken, before = {"worker": taken_by}, (_delivery(taken_by),)
    overrides = overrides_of(held.overrides)
    budget = profile.max_retries if overrides.max_retries is None else overrides.max_retries
    if not transient(fault) or held.retries >= budget:
        more = {"failures": held.failures + 1, **moves.last_memory(journal), **taken}
        return moves.fail(held, State.RUNNING, fault, now, profile, more, (*before, *notes))
    return moves.retry(held, fault, now, profile, overrides, taken, before)


def delivered(held: Claimed | Task, worker: WorkerId, now: Instant, until: Instant) -> Move:
    """An offered task has reached a worker: from now on it runs, and its clocks with it."""
    attempt_by = None if held.attempt_ms is None else now + held.attempt_ms
    return moves.guarded(
        held,
        State.RUNNING,
        to=State.RUNNING,
        due_at=moves.earliest(until, attempt_by, held.expires_at, held.cancel_by),
        changes={
            "worker": worker,
            "started_at": now,
            "lease_until": until,
            "attempt_by": attempt_by,
        },
        events=(_delivery(worker),),
    )


def _delivery(worker: WorkerId) -> Note:
    return ("task.delivered", encode({"worker": worker}))


def adopted(task: Task, worker: WorkerId) -> Submission:
    """A task that another program put on a transport: it enters the ledger as offered there."""
    notes: tuple[Note, ...] = (
        ("task.created", None),
        ("task.claimed", encode({"worker": worker, "attempt": 1})),
    )
    offered = msgspec.structs.replace(
        task,
        state=State.RUNNING,
        fence=max(1, task.fence),
        rev=1,
        attempt=1,
        worker=worker,
        started_at=task.created_at,
        due_at=moves.earliest(task.expires_at, NEVER),
        events=len(notes),
    )
    return Submission(offered, notes)


def given_up(task: Task, fault: Fault, now: Instant, profile: Profile) -> Move | None:
    """Its last worker reports that another try is of no use. None: it does not wait for one."""
    if task.state not in (State.SCHEDULED, State.QUEUED):
        return None
    return moves.fail(task, task.state, fault, now, profile)


def lost(held: Held, now: Instant, profile: Profile, detail: Json | None = None) -> Move:
    """The worker went away. No retry is counted, but a task that kills its workers dies."""
    if profile.fails_when_lost:
        return moves.fail(held, State.RUNNING, WORKER_LOST, now, profile)
    if held.lost + 1 >= POISON_AFTER:
        return moves.fail(held, State.RUNNING, POISON, now, profile)
    detail = detail or encode({"from": held.worker, "attempt": held.attempt})
    note = ("task.reclaimed", detail)
    return moves.requeue(held, now, profile, {"lost": held.lost + 1}, note)


def on_due(task: Task, now: Instant, profile: Profile) -> Move | None:
    """The alarm rang: work out which clock struck. None: the task's time in the ledger is over."""
    if task.state in FINAL:
        return None
    move = _struck(task, now, profile)
    return _clocked(move, now)


def postponed(task: Task, now: Instant) -> Move:
    """What its alarm means cannot be decided here: it rings again later, and changes nothing."""
    return _clocked(moves.of_task(task, now + POSTPONE_MS, front=True), now)


def _struck(task: Task, now: Instant, profile: Profile) -> Move:
    if task.state is State.RUNNING:
        return _struck_running(task, now, profile)
    limit = moves.age_limit(profile, task.expires_at)
    over = moves.earliest(limit, task.start_by if task.state is State.QUEUED else None)
    if task.state is State.QUEUED and (over is None or over > now):
        return _promoted(task, over)
    if over is not None and over <= now:
        changes = closing(task, Status.EXPIRED, now)
        return moves.fail(task, task.state, TIMED_OUT, now, profile, changes)
    if awaited(task):
        return _undecided(task, now, profile)
    event = "task.queued" if task.state is State.SCHEDULED else "task.woken"
    return moves.of_task(
        task,
        moves.patience(profile, task.lane, task.start_by, task.expires_at),
        to=State.QUEUED,
        changes={"run_at": None, "waiting_for": None, "queued_at": now},
        events=((event, None),),
        ahead=task.occupies,
    )


def _promoted(task: Task, due_at: Instant | None) -> Move:
    """A retry that would age out where it stands goes ahead of the others of its lane."""
    return moves.of_task(task, due_at, ahead=True, events=(("task.promoted", None),))


def _struck_running(task: Task, now: Instant, profile: Profile) -> Move:
    def struck(at: Instant | None) -> bool:
        return at is not None and at <= now

    nearest = moves.earliest(task.lease_until, task.attempt_by, task.expires_at, task.cancel_by)
    if not struck(nearest):
        # A move set the alarm from a reading that a heartbeat has overtaken: no clock struck yet.
        return moves.of_task(task, nearest)
    if struck(task.expires_at) and profile.notifies_at_expiry and not struck(task.cancel_by):
        return _notify(task, now)
    if task.cancel_by is not None and not profile.winds_down:
        # Asked to stop and then lost, late or too old: not claimed again, and no failure.
        return moves.end(task, task.state, State.CANCELED, now, profile, {}, CANCELED)
    if struck(task.expires_at):
        return moves.fail(task, task.state, TIMED_OUT, now, profile)
    if struck(task.attempt_by):
        if profile.fails_at_attempt_end:
            return moves.fail(task, task.state, TIMED_OUT, now, profile)
        return failed(task, ATTEMPT_TIMED_OUT, now, profile)
    return lost(task, now, profile)


def _notify(task: Task, now: Instant) -> Move:
    if task.lease_until is None:
        # Only offered: no worker has it yet. The event is written once one does.
        return moves.of_task(task, moves.earliest(task.cancel_by, NEVER))
    return moves.of_task(
        task,
        moves.earliest(task.lease_until, task.attempt_by, task.cancel_by),
        changes={"overdue": 1, "expires_at": None},
        events=(("task.timeout", encode(_spent(task, now))),),
    )


def _spent(task: Task, now: Instant) -> dict[str, int]:
    allowed_ms = (task.expires_at or now) - task.created_at
    return {"elapsed_ms": now - task.created_at, "timeout_ms": allowed_ms}


def _clocked(move: Move, now: Instant) -> Move:
    # A heartbeat that came between reading the alarm and this move has set the alarm anew without
    # raising rev: the store refuses the move if the task is due later by now.
    return msgspec.structs.replace(move, due_by=now)


def cancel(task: Task, now: Instant, profile: Profile) -> Move | None:
    """None: there is nothing left to cancel."""
    if task.cancel_by is not None and task.state not in FINAL:
        return None
    if profile.winds_down and task.fence and task.state in (S.QUEUED, S.RUNNING, S.WAITING):
        # The letter, not the flag, is what it sees: one that comes while a step is under way keeps
        # the step from parking.
        return moves.of_task(
            task,
            task.due_at,
            changes={"cancel_by": NEVER},
            events=(("task.canceling", None),),
            front=True,
            letters=(Letter(to=task.id, name=CANCEL, body="null"),),
        )
    if task.state is State.RUNNING:
        cancel_by = now + CANCEL_GRACE_MS
        return moves.of_task(
            task,
            moves.earliest(task.due_at, cancel_by),
            changes={"cancel_by": cancel_by},
            events=(("task.canceling", None),),
        )
    if task.state in FINAL:
        return None
    changes = closing(task, Status.CANCELED, now)
    return moves.end(task, task.state, State.CANCELED, now, profile, changes, CANCELED)


def approve(
    task: Task,
    now: Instant,
    profile: Profile,
    by: str | None = None,
    comment: str | None = None,
    payload: Json | None = None,
) -> Move | None:
    """It may run, perhaps with a corrected payload. None: no approval is open (any more)."""
    asked = open_approval(task, now)
    if asked is None:
        return None
    closed = asked.closed(Status.APPROVED, now, by=by, comment=comment)
    if payload is not None:
        closed = msgspec.structs.replace(closed, digest=closed.digest_of(payload))
    return _let_go(task, now, profile, closed, payload)


def reject(
    task: Task, now: Instant, profile: Profile, by: str | None = None, comment: str | None = None
) -> Move | None:
    """It will not run: failed, and never a dead letter. None: no approval is open (any more)."""
    asked = open_approval(task, now)
    if asked is None:
        return None
    closed = asked.closed(Status.REJECTED, now, by=by, comment=comment)
    message = comment or (f"rejected by {by}" if by else "rejected")
    fault = Fault(kind="Rejected", message=message, retryable=False)
    return _refuse(task, now, profile, closed, fault)


def _undecided(task: Task, now: Instant, profile: Profile) -> Move:
    asked = approval_of(task) or ask(task.payload, now)
    closed = asked.closed(Status.EXPIRED, now, by=EXPIRY)
    if asked.default == "approve":
        return _let_go(task, now, profile, closed)
    return _refuse(task, now, profile, closed, UNDECIDED)


def _let_go(
    task: Task, now: Instant, profile: Profile, closed: Approval, payload: Json | None = None
) -> Move:
    limit = moves.age_limit(profile, task.expires_at)
    later = task.run_at if task.run_at is not None and task.run_at > now else None
    changes: dict[str, str | int | None] = {
        "approval": closed.encode(),
        "waiting_for": None,
        "run_at": later,
        "start_by": None,  # it is not failed for the time that a person took
        "queued_at": now,
    }
    if payload is not None:
        changes["payload"] = payload
    return moves.of_task(
        task,
        moves.earliest(later, limit),
        to=State.QUEUED if later is None else State.SCHEDULED,
        changes=changes,
        events=(("approval.approved", closed.decision()),),
    )


def _refuse(task: Task, now: Instant, profile: Profile, closed: Approval, fault: Fault) -> Move:
    return moves.end(
        task,
        task.state,
        State.FAILED,
        now,
        profile,
        {
            "approval": closed.encode(),
            "waiting_for": None,
            "error": fault.encode(),
            "fingerprint": fingerprint(fault),
        },
        ("approval.rejected", closed.decision()),
        ("task.failed", encode({"error": fault, "attempt": task.attempt})),
    )


def replay(
    task: Task,
    now: Instant,
    profile: Profile,
    *,
    payload: Json | None = None,
    run_at: Instant | None = None,
    guarded: bool = False,
) -> Move | None:
    """From the beginning again, as a new generation. None: it is not over, or it went well.

    One that waits for its next try has that try now, with its retries before it again.
    """
    if task.state is State.SCHEDULED and task.failures and payload is None and run_at is None:
        return _at_once(task, now, profile)
    if task.state not in (State.DEAD, State.FAILED, State.CANCELED):
        return None
    later = run_at if run_at is not None and run_at > now else None
    expires_at = None if profile.age_ms is None else (later or now) + profile.age_ms
    if later is None:
        to, due_at = State.QUEUED, moves.patience(profile, Lane.RETRY, None, expires_at)
    else:
        to, due_at = State.SCHEDULED, later
    notes: tuple[Note, ...] = (("task.replayed", encode({"generation": task.generation + 1})),)
    changes: dict[str, str | int | None] = {
        **dict.fromkeys(("result", "error", "fingerprint", "finished_at", "worker"), None),
        "started_at": None,
        **dict.fromkeys(("start_by", "cancel_by", "waiting_for"), None),
        **dict.fromkeys(("journal", "bulk", "progress"), None),
        **dict.fromkeys(("attempt", "failures", "retries", "lost", "overdue"), 0),
        "generation": task.generation + 1,
        "lane": Lane.RETRY,
        "expires_at": expires_at,
        "run_at": later,
        "queued_at": now,
    }
    if payload is not None:
        changes["payload"] = payload
    shown = task.payload if payload is None else payload
    asked = asked_again(task, shown, now, guarded=guarded)
    if asked is not None:
        to, due_at = State.WAITING, asked.expires_at
        changes |= {"approval": asked.encode(), "waiting_for": WAITS}
        notes += (asked.requested(),)
    return moves.of_task(task, due_at, to=to, changes=changes, events=notes)


def _at_once(task: Task, now: Instant, profile: Profile) -> Move:
    return moves.of_task(
        task,
        moves.patience(profile, task.lane, None, task.expires_at),
        to=State.QUEUED,
        changes={"run_at": None, "retries": 0, "queued_at": now},
        events=(("task.queued", None),),
        ahead=task.occupies,
    )


def abandon(task: Task, now: Instant, profile: Profile) -> Move | None:
    """A dead letter that is not to be replayed. Its final event was written when it died."""
    if task.state is not State.DEAD:
        return None
    return moves.of_task(
        task, now + profile.retention_ms, to=State.FAILED, events=(("task.abandoned", None),)
    )


def event_only(task: Task, event: str, data: Json | None) -> Move:
    """Write an event without changing the task: a late result, for example."""
    # `front`: a queued task keeps its place.
    return moves.of_task(task, task.due_at, events=((event, data),), front=True)
