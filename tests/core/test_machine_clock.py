"""The state machine when a clock strikes or a caller cancels, without a store."""

from __future__ import annotations

import msgspec
import pytest

from onward.core import machine
from onward.core.contract import Submission
from onward.core.outcome import Outcome, Succeeded
from onward.core.policy import CANCEL_GRACE_MS
from onward.core.task import FINAL, State
from tests.core.test_machine import (
    CONSOLE,
    FUTURE,
    NOTIFIED,
    OUTCOMES,
    PAST,
    SYNC,
    after,
    running,
    types,
)
from tests.support import LEASE_MS, NOW, a_task

# The clock.


def test_a_scheduled_task_is_queued_when_its_time_comes() -> None:
    task = a_task(state=State.SCHEDULED, run_at=PAST, due_at=PAST, start_by=FUTURE)
    move = machine.on_due(task, NOW, CONSOLE)
    assert move is not None
    assert (move.to, move.due_at, types(move)) == (State.QUEUED, FUTURE, ["task.queued"])


def test_a_timer_wakes_a_parked_task() -> None:
    task = a_task(state=State.WAITING, waiting_for="timer", due_at=PAST, expires_at=FUTURE)
    move = machine.on_due(task, NOW, CONSOLE)
    assert move is not None
    assert (move.to, move.due_at, types(move)) == (State.QUEUED, FUTURE, ["task.woken"])
    assert move.changes["waiting_for"] is None


@pytest.mark.contract("S0-5")
def test_work_that_no_worker_started_in_time_is_over() -> None:
    for profile, to in ((SYNC, State.FAILED), (CONSOLE, State.DEAD)):
        task = a_task(profile=profile.name, start_by=PAST, due_at=PAST)
        move = machine.on_due(task, NOW, profile)
        assert move is not None
        assert move.to is to


@pytest.mark.contract("S0-5")
def test_an_attempt_that_takes_too_long_fails_or_is_tried_again() -> None:
    task = running(attempt_by=PAST, due_at=PAST)
    sync, console = machine.on_due(task, NOW, SYNC), machine.on_due(task, NOW, CONSOLE)
    assert sync is not None
    assert console is not None
    assert (sync.to, types(sync)) == (State.FAILED, ["task.failed"])
    assert (console.to, types(console)) == (State.SCHEDULED, ["task.retrying"])
    run_at = console.changes["run_at"]
    assert isinstance(run_at, int)
    assert 2_000 <= run_at - NOW <= 2_200, "a timeout follows the schedule of NetworkTimeout"


@pytest.mark.parametrize("state", [State.SCHEDULED, State.QUEUED, State.RUNNING, State.WAITING])
def test_age_ends_a_task_wherever_it_is(state: State) -> None:
    task = a_task(state=state, expires_at=PAST, due_at=PAST, lease_until=FUTURE)
    move = machine.on_due(task, NOW, CONSOLE)
    assert move is not None
    assert (move.expect, move.to) == (state, State.DEAD)
    move = machine.on_due(task, NOW, SYNC)
    assert move is not None
    assert move.to is State.FAILED


@pytest.mark.contract("S2-7")
def test_an_overdue_task_tells_once_and_goes_on() -> None:
    task = running(profile="notified", expires_at=PAST, due_at=PAST, attempt_by=FUTURE)
    move = machine.on_due(task, NOW, NOTIFIED)
    assert move is not None
    assert (move.to, types(move)) == (State.RUNNING, ["task.timeout"])
    assert move.changes == {"overdue": 1, "expires_at": None}
    task = after(task, move)
    assert task.due_at == NOW + LEASE_MS, "its other clocks go on"
    ended = machine.settle(task, Succeeded("1"), NOW, NOTIFIED)
    assert ended.to is State.SUCCEEDED
    again = machine.on_due(msgspec.structs.replace(task, lease_until=PAST), NOW, NOTIFIED)
    assert again is not None
    assert types(again) == ["task.reclaimed"]


@pytest.mark.contract("S2-7")
def test_an_offered_task_is_overdue_only_once_a_worker_has_it() -> None:
    task = running(profile="notified", expires_at=PAST, due_at=PAST, lease_until=None)
    move = machine.on_due(task, NOW, NOTIFIED)
    assert move is not None
    assert (move.to, types(move), move.due_at) == (State.RUNNING, [], machine.NEVER)
    taken = machine.on_due(msgspec.structs.replace(task, lease_until=FUTURE), NOW, NOTIFIED)
    assert taken is not None
    assert types(taken) == ["task.timeout"]


@pytest.mark.contract("S2-7")
def test_a_queued_task_is_not_called_overdue() -> None:
    task = a_task(profile="notified", state=State.SCHEDULED, expires_at=PAST, due_at=PAST)
    move = machine.on_due(task, NOW, NOTIFIED)
    assert move is not None
    assert (move.to, types(move)) == (State.QUEUED, ["task.queued"])


def test_a_lease_that_ran_out_is_a_lost_worker() -> None:
    move = machine.on_due(running(lease_until=PAST, due_at=PAST), NOW, CONSOLE)
    assert move is not None
    assert (move.to, types(move)) == (State.QUEUED, ["task.reclaimed"])


def test_an_alarm_older_than_the_lease_is_only_set_again() -> None:
    """A cancel or a late result read the task, then a heartbeat came, then the move was applied
    with the alarm as it was read: at that alarm no clock has struck."""
    task = running(due_at=PAST, lease_until=FUTURE, attempt_by=FUTURE + 1)
    for cancel_by, due_at in ((None, FUTURE), (NOW + 5, NOW + 5)):
        read = msgspec.structs.replace(task, cancel_by=cancel_by)
        move = machine.on_due(read, NOW, CONSOLE)
        assert move is not None
        assert (move.to, move.due_at, move.events) == (State.RUNNING, due_at, ())
        assert move.changes == {}


def test_a_finished_task_has_nothing_left_but_to_be_forgotten() -> None:
    for state in FINAL:
        assert machine.on_due(a_task(state=state, due_at=PAST), NOW, CONSOLE) is None


# Cancelling.


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_cancel_wins_over_whatever_the_worker_came_back_with(outcome: Outcome) -> None:
    child = Submission(*machine.born(a_task(), CONSOLE))
    move = machine.settle(running(cancel_by=FUTURE), outcome, NOW, CONSOLE, (child,))
    assert (move.to, types(move)) == (State.CANCELED, ["task.canceled"])
    assert move.spawn == ()


@pytest.mark.parametrize("clock", ["lease_until", "attempt_by", "cancel_by", "expires_at"])
def test_a_cancel_wins_over_whichever_clock_strikes(clock: str) -> None:
    """The worker died between the cancel and its grace: it must not be run again."""
    clocks = {"cancel_by": FUTURE, clock: PAST}
    move = machine.on_due(running(due_at=PAST, **clocks), NOW, CONSOLE)
    assert move is not None
    assert (move.to, types(move)) == (State.CANCELED, ["task.canceled"])


def test_becoming_overdue_takes_nothing_from_the_grace_of_a_cancel() -> None:
    task = running(profile="notified", cancel_by=FUTURE, expires_at=PAST, due_at=PAST)
    move = machine.on_due(task, NOW, NOTIFIED)
    assert move is not None
    assert (move.to, types(move), move.due_at) == (State.RUNNING, ["task.timeout"], NOW + LEASE_MS)


def test_running_work_is_asked_to_stop_and_given_some_time() -> None:
    task = running(due_at=NOW + 60_000)
    move = machine.cancel(task, NOW, CONSOLE)
    assert move is not None
    assert (move.to, types(move)) == (State.RUNNING, ["task.canceling"])
    assert move.due_at == NOW + CANCEL_GRACE_MS
    assert machine.cancel(after(task, move), NOW, CONSOLE) is None, "once is enough"


@pytest.mark.parametrize("state", [State.SCHEDULED, State.QUEUED, State.WAITING])
def test_work_that_does_not_run_is_canceled_at_once(state: State) -> None:
    move = machine.cancel(a_task(state=state, parent="p"), NOW, CONSOLE)
    assert move is not None
    assert (move.to, types(move)) == (State.CANCELED, ["task.canceled"])
    assert [letter.to for letter in move.letters] == ["p"]


def test_what_is_over_cannot_be_canceled() -> None:
    for state in FINAL:
        assert machine.cancel(a_task(state=state), NOW, CONSOLE) is None
