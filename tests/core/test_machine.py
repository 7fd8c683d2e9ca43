"""The state machine, decision by decision, without a store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, product
from typing import Any, Literal

import msgspec
import pytest

from onward.core import machine, moves
from onward.core.approval import Status, ask
from onward.core.contended import pointed_at, replaced, superseded
from onward.core.contract import Move, Submission
from onward.core.machine import TRANSITIONS
from onward.core.outcome import Canceled, Failed, Lost, Outcome, Parked, Released, Succeeded
from onward.core.policy import POISON_AFTER, Overrides, Profile
from onward.core.task import FINAL, FINAL_EVENTS, Lane, State, Task, fault_of
from onward.faults import Fault
from tests.support import LEASE_MS, NOW, PROFILES, a_task, replay

SYNC, CONSOLE, NOTIFIED = PROFILES["sync"], PROFILES["console"], PROFILES["notified"]
BUSY = Fault(kind="ServiceUnavailable", message="try later")
BAD_INPUT = Fault(kind="InvalidInput", message="no such field")
PAST, FUTURE = NOW - 1, NOW + 60_000
PARKED = Parked(seen=1, journal="[]", waiting_for="children")
OUTCOMES: tuple[Outcome, ...] = (
    Succeeded('"done"'),
    Failed(BUSY),
    Failed(BAD_INPUT),
    Failed(Fault(kind="Odd", message="", retryable=True, retry_after_ms=0)),
    Canceled("[]"),
    PARKED,
    Released(),
    Released(BUSY),
    Lost(),
)


def running(**fields: Any) -> Task:
    return a_task(
        **{
            "state": State.RUNNING,
            "fence": 1,
            "rev": 1,
            "attempt": 1,
            "worker": "w",
            "lease_until": NOW + LEASE_MS,
            "due_at": NOW + LEASE_MS,
            **fields,
        }
    )


def after(task: Task, move: Move) -> Task:
    """The task as any store leaves it, or a worker finds it: fields only."""
    changes = {name: value for name, value in move.changes.items() if name != "lane"}
    return msgspec.structs.replace(
        task, state=move.to, rev=task.rev + 1, due_at=move.due_at, **changes
    )


def types(move: Move) -> list[str]:
    return [type_ for type_, _ in move.events]


def every_task() -> Iterator[Task]:
    clocks = ("expires_at", "attempt_by", "cancel_by", "lease_until", "start_by")
    for state, profile, age, lost, retries in product(
        State, PROFILES, (None, PAST, FUTURE), (0, POISON_AFTER - 1), (0, 3)
    ):
        for struck in (None, *clocks):
            fields: dict[str, Any] = {"expires_at": age}
            if struck is not None:
                fields[struck] = PAST
            if state is not State.RUNNING:
                fields.pop("cancel_by", None)  # only running work can be asked to stop
            yield a_task(
                state=state,
                profile=profile,
                fence=3,
                rev=7,
                attempt=2,
                lost=lost,
                retries=retries,
                overrides=Overrides(backoff_ms=(0,)).encode() if retries else None,
                parent="parent",
                due_at=PAST,
                **fields,
            )


def every_asked_task() -> Iterator[Task]:
    """Somebody was asked about these: still open, approved, or turned down."""
    defaults: tuple[Literal["approve", "reject"], ...] = ("approve", "reject")
    for state, profile, default, run_at in product(State, PROFILES, defaults, (None, FUTURE)):
        asked = ask("{}", PAST, default=default)
        approved = asked.closed(Status.APPROVED, PAST)
        for approval, age in ((asked, None), (asked, PAST), (approved, None)):
            yield a_task(
                state=state,
                profile=profile,
                fence=3,
                rev=7,
                attempt=2,
                parent="parent",
                run_at=run_at,
                expires_at=age,
                due_at=PAST,
                waiting_for="approval" if approval is asked else None,
                approval=approval.encode(),
            )


def decisions(task: Task, profile: Profile) -> Iterator[tuple[str, Move | None]]:
    if task.state is State.RUNNING:
        for outcome in OUTCOMES:
            yield "settle", machine.settle(task, outcome, NOW, profile)
        at_once = msgspec.structs.replace(
            task, retries=0, overrides=Overrides(backoff_ms=(0,)).encode()
        )
        yield "settle", machine.settle(at_once, Failed(BUSY), NOW, profile)
        yield "delivered", machine.delivered(task, "w", NOW, FUTURE)
    if task.state is State.WAITING:
        for heard in (Parked(seen=0, journal="{}", waiting_for="timer"), Succeeded("1")):
            yield "answer", machine.answer(task, heard, NOW, profile)
    yield "given up", machine.given_up(task, BUSY, NOW, profile)
    yield "clock", machine.on_due(task, NOW, profile)
    yield "cancel", machine.cancel(task, NOW, profile)
    yield "approve", machine.approve(task, NOW, profile, payload='{"mended":1}')
    yield "reject", machine.reject(task, NOW, profile)
    yield "replay", replay(task, NOW, payload='{"mended":1}')
    yield "replay", replay(task, NOW, run_at=FUTURE)
    yield "abandon", machine.abandon(task, NOW, profile)
    newer = Submission(msgspec.structs.replace(task, id="newer"), ())
    yield "superseded", superseded(task, newer, NOW, profile)
    yield "replaced", replaced(task, newer, NOW, profile)
    yield "pointed at", pointed_at(task, "newer")


def every_decision() -> Iterator[tuple[Task, str, Move]]:
    debounced = a_task(
        state=State.SCHEDULED, debounce_key="d", run_at=FUTURE, due_at=FUTURE, parent="parent"
    )
    for task in chain(every_task(), every_asked_task(), [debounced]):
        for source, move in decisions(task, PROFILES[task.profile]):
            if move is not None:
                yield task, source, move


def test_every_decision_is_a_known_transition_with_its_events() -> None:
    for _, _, move in every_decision():
        assert set(types(move)) <= TRANSITIONS[move.expect, move.to], move


def test_every_transition_but_the_claim_is_decided_here() -> None:
    reached: dict[tuple[State, State], set[str]] = defaultdict(set)
    for _, _, move in every_decision():
        reached[move.expect, move.to].update(types(move))
    claim = (State.QUEUED, State.RUNNING)
    assert dict(reached) == {pair: set(e) for pair, e in TRANSITIONS.items() if pair != claim}


def test_every_move_is_guarded_by_what_was_read() -> None:
    for task, source, move in every_decision():
        assert (move.task, move.expect, move.fence, move.rev) == (
            task.id,
            task.state,
            task.fence,
            task.rev,
        )
        # Only the clock decides on an alarm, so only its moves must still find it ringing.
        assert move.due_by == (NOW if source == "clock" else None)


def test_no_move_touches_what_the_store_counts() -> None:
    kept = {"id", "state", "fence", "rev", "due_at", "events", "queue", "priority", "created_at"}
    plain = set(Task.__struct_fields__) - kept
    for _, source, move in every_decision():
        # Of what is scheduled the priority is not counted, and its queue is counted anew.
        more = {"queue", "priority"} if source == "superseded" else set()
        assert set(move.changes) <= plain | more


@pytest.mark.contract("S1-3")
def test_every_ending_writes_exactly_one_final_event() -> None:
    for _, _, move in every_decision():
        ends = move.to in FINAL and move.expect not in FINAL
        assert len([t for t in types(move) if t in FINAL_EVENTS]) == int(ends)
        assert ("finished_at" in move.changes and move.changes["finished_at"] == NOW) == ends
        to_parent = [letter for letter in move.letters if letter.to == "parent"]
        assert len(to_parent) == int(ends), "the parent hears of an end, and of nothing else"


def test_only_the_dead_are_kept_without_an_alarm() -> None:
    for task, _, move in every_decision():
        if move.to is State.DEAD:
            assert move.due_at is None
        elif move.to in FINAL:
            assert move.due_at == NOW + PROFILES[task.profile].retention_ms


# Birth.


def test_a_submission_is_queued_at_once() -> None:
    task, events = machine.born(a_task(start_by=FUTURE, expires_at=FUTURE + 1), CONSOLE)
    assert (task.state, task.due_at, task.queued_at) == (State.QUEUED, FUTURE, NOW)
    assert events == (("task.created", None),)
    assert task.events == 1


def test_a_submission_for_later_is_scheduled() -> None:
    task, _ = machine.born(a_task(run_at=FUTURE), CONSOLE)
    assert (task.state, task.due_at) == (State.SCHEDULED, FUTURE)
    assert machine.born(a_task(run_at=NOW), CONSOLE)[0].state is State.QUEUED


def test_a_submission_that_needs_a_word_first_waits() -> None:
    task, _ = machine.born(a_task(waiting_for="approval", expires_at=FUTURE), CONSOLE)
    assert (task.state, task.due_at) == (State.WAITING, FUTURE)
    notes = machine.born(a_task(waiting_for="approval"), CONSOLE)[1]
    assert [type_ for type_, _ in notes] == ["task.created", "approval.requested"]


def test_where_expiry_only_tells_it_is_no_alarm_before_the_task_runs() -> None:
    assert machine.born(a_task(expires_at=FUTURE), NOTIFIED)[0].due_at is None


# Settlement.


def test_success_is_the_end() -> None:
    move = machine.settle(running(lost=2), Succeeded("42"), NOW, CONSOLE)
    assert (move.to, types(move)) == (State.SUCCEEDED, ["task.succeeded"])
    assert move.changes == {"result": "42", "error": None, "lost": 0, "finished_at": NOW}


@pytest.mark.contract("S1-7", "S2-8")
def test_a_failing_task_is_executed_once_and_three_times_more() -> None:
    task, executions, events = running(), 1, list[str]()
    while True:
        move = machine.settle(task, Failed(BUSY), NOW, CONSOLE)
        events += types(move)
        task = after(task, move)
        if task.state in FINAL:
            break
        executions += 1
        task = msgspec.structs.replace(task, state=State.RUNNING)
    assert (executions, task.failures, task.retries) == (4, 4, 3)
    assert task.state is State.DEAD
    assert events == ["task.retrying"] * 3 + ["task.failed", "task.dlq"]


def test_a_retry_waits_its_turn_in_the_retry_lane() -> None:
    move = machine.settle(running(lost=3), Failed(BUSY), NOW, CONSOLE)
    run_at = move.changes["run_at"]
    assert isinstance(run_at, int)
    assert 5_000 <= run_at - NOW <= 5_500
    assert (move.to, move.due_at) == (State.SCHEDULED, run_at)
    assert move.changes["lane"] is Lane.RETRY
    assert move.changes["lost"] == 0, "a worker that answers ends a row of lost ones"


def test_a_retry_never_outlives_the_age_of_the_task() -> None:
    move = machine.settle(running(expires_at=NOW + 10), Failed(BUSY), NOW, CONSOLE)
    assert move.due_at == NOW + 10


def test_a_retry_without_delay_goes_straight_to_the_queue() -> None:
    task = running(overrides=Overrides(backoff_ms=(0,)).encode())
    move = machine.settle(task, Failed(BUSY), NOW, CONSOLE)
    assert (move.to, move.due_at, move.front) == (State.QUEUED, None, False)


@pytest.mark.contract("R-5")
def test_a_permanent_error_is_not_tried_again() -> None:
    move = machine.settle(running(), Failed(BAD_INPUT), NOW, CONSOLE)
    assert (move.to, types(move)) == (State.DEAD, ["task.failed", "task.dlq"])
    assert move.changes["failures"] == 1


@pytest.mark.contract("S1-7")
def test_a_submission_may_set_its_own_budget() -> None:
    none = running(overrides=Overrides(max_retries=0).encode())
    assert machine.settle(none, Failed(BUSY), NOW, CONSOLE).to is State.DEAD
    one = running(profile="sync", overrides=Overrides(max_retries=1).encode())
    assert machine.settle(one, Failed(BUSY), NOW, SYNC).to is State.SCHEDULED


def test_the_sync_door_fails_at_once_and_keeps_no_dead_letter() -> None:
    move = machine.settle(running(profile="sync"), Failed(BUSY), NOW, SYNC)
    assert (move.to, types(move)) == (State.FAILED, ["task.failed"])
    assert move.due_at == NOW + SYNC.retention_ms


def test_the_error_is_kept_with_a_fingerprint() -> None:
    move = machine.settle(running(), Failed(BAD_INPUT), NOW, CONSOLE)
    assert fault_of(str(move.changes["error"])) == BAD_INPUT
    assert str(move.changes["fingerprint"]).startswith("InvalidInput:")


def test_released_work_is_as_if_it_had_never_been_claimed() -> None:
    move = machine.settle(running(expires_at=FUTURE, lost=2), Released(), NOW, CONSOLE)
    assert (move.to, move.front, move.due_at) == (State.QUEUED, True, FUTURE)
    assert move.changes == {"attempt": 0, "worker": None, "queued_at": NOW, "start_by": None}


def test_parking_compares_the_letters_seen() -> None:
    child = Submission(*machine.born(a_task(parent="p"), CONSOLE))
    parked = Parked(seen=2, journal="{}", waiting_for="children", until=FUTURE)
    move = machine.settle(running(attempt=3), parked, NOW, CONSOLE, (child,))
    assert (move.to, move.seen, move.spawn) == (State.WAITING, 2, (child,))
    assert move.due_at == FUTURE
    assert move.changes["attempt"] == 2, "once woken it goes on with the same attempt"


def test_a_parked_task_still_grows_old() -> None:
    parked = Parked(seen=0, journal="{}", waiting_for="event", until=FUTURE)
    for until, expires_at, due_at in (
        (FUTURE, NOW + 5, NOW + 5),
        (None, NOW + 5, NOW + 5),
        (FUTURE, None, FUTURE),
    ):
        outcome = msgspec.structs.replace(parked, until=until)
        task = running(expires_at=expires_at)
        assert machine.settle(task, outcome, NOW, CONSOLE).due_at == due_at
    assert machine.settle(running(expires_at=NOW + 5), parked, NOW, NOTIFIED).due_at == FUTURE


def test_a_task_that_has_run_is_not_failed_for_having_waited_to_start() -> None:
    parked = Parked(seen=0, journal="{}", waiting_for="timer", until=FUTURE)
    for outcome in (parked, Released(), Lost(), Failed(BUSY)):
        task = running(start_by=PAST)
        task = after(task, machine.settle(task, outcome, NOW, CONSOLE))
        if task.state is not State.QUEUED:
            woken = machine.on_due(task, FUTURE, CONSOLE)
            assert woken is not None
            task = after(task, woken)
        assert (task.state, task.due_at) == (State.QUEUED, None)


def test_the_parent_hears_who_ended_and_how_but_not_the_result() -> None:
    task = running(parent="p")
    (letter,) = machine.settle(task, Succeeded('"secret"'), NOW, CONSOLE).letters
    assert (letter.to, letter.name) == ("p", "child")
    assert msgspec.json.decode(letter.body) == {
        "child": task.id,
        "ok": True,
        "state": "succeeded",
        "size": 8,
    }
    (letter,) = machine.settle(task, Failed(BAD_INPUT), NOW, CONSOLE).letters
    assert msgspec.json.decode(letter.body)["ok"] is False
    assert machine.settle(task, Failed(BUSY), NOW, CONSOLE).letters == ()


# Lost workers.


@pytest.mark.contract("R-5", "S1-6")
def test_a_lost_delivery_burns_no_retry() -> None:
    move = machine.settle(running(), Lost(), NOW, CONSOLE)
    assert (move.to, move.front, types(move)) == (State.QUEUED, True, ["task.reclaimed"])
    assert move.changes["lost"] == 1
    assert not {"retries", "failures"} & set(move.changes)


@pytest.mark.contract("R-5")
def test_five_lost_deliveries_in_a_row_are_poison() -> None:
    task, deliveries = running(), 0
    while task.state not in FINAL:
        deliveries += 1
        task = after(task, machine.settle(task, Lost(), NOW, CONSOLE))
        if task.state is State.QUEUED:
            task = msgspec.structs.replace(task, state=State.RUNNING)
    assert (deliveries, task.state) == (5, State.DEAD)
    fault = fault_of(task.error)
    assert fault is not None
    assert fault.kind == "poison"


@pytest.mark.contract("S0-8")
def test_at_the_sync_door_a_lost_worker_is_a_failure() -> None:
    move = machine.settle(running(profile="sync"), Lost(), NOW, SYNC)
    assert (move.to, types(move)) == (State.FAILED, ["task.failed"])
    fault = fault_of(str(move.changes["error"]))
    assert fault is not None
    assert fault.kind == "worker_lost"


# A person intervenes.


@pytest.mark.contract("S1-10")
def test_a_replay_begins_a_new_generation() -> None:
    over = a_task(
        state=State.DEAD,
        fence=4,
        attempt=4,
        failures=4,
        retries=3,
        lost=1,
        error="{}",
        fingerprint="x",
        finished_at=PAST,
        expires_at=PAST,
        cancel_by=PAST,
        run_at=PAST,
        waiting_for="event",
        overdue=True,
    )
    move = replay(over, NOW, payload='{"mended":1}')
    assert move is not None
    task = after(over, move)
    assert (task.state, task.generation, task.payload) == (State.QUEUED, 2, '{"mended":1}')
    assert (task.attempt, task.failures, task.retries, task.lost) == (0, 0, 0, 0)
    assert move.changes["lane"] is Lane.RETRY
    left = ("error", "fingerprint", "finished_at", "expires_at", "cancel_by", "run_at")
    assert [getattr(task, name) for name in (*left, "waiting_for", "due_at")] == [None] * 8
    assert not task.overdue
    assert task.fence == 4, "an old worker's fence must stay old"


def test_only_what_went_wrong_can_be_replayed() -> None:
    may = {state for state in State if replay(a_task(state=state), NOW) is not None}
    assert may == {State.DEAD, State.FAILED, State.CANCELED}


def test_abandoning_a_dead_letter_writes_no_second_ending() -> None:
    for state in State:
        move = machine.abandon(a_task(state=state), NOW, CONSOLE)
        assert (move is not None) == (state is State.DEAD)
        if move is not None:
            assert (move.to, types(move)) == (State.FAILED, ["task.abandoned"])
            assert move.due_at == NOW + CONSOLE.retention_ms


@pytest.mark.parametrize("state", list(State))
def test_a_remark_changes_nothing(state: State) -> None:
    task = a_task(state=state, fence=2, rev=5, due_at=FUTURE)
    move = machine.event_only(task, "task.late_result", "{}")
    assert (move.expect, move.to, move.fence, move.rev) == (state, state, 2, 5)
    assert (move.due_at, move.changes, move.letters) == (FUTURE, {}, ())
    assert move.front, "a queued task keeps its place"
    assert move.events == (("task.late_result", "{}"),)


def test_the_nearest_of_the_clocks_is_the_alarm() -> None:
    assert moves.earliest() is None
    assert moves.earliest(None, None) is None
    assert moves.earliest(None, 7, 3, None, 5) == 3
