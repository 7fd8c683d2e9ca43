"""Lives with a bound on their age, and tasks that end themselves when asked to stop."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from onward.core import machine
from onward.core.contract import Move
from onward.core.outcome import Canceled, Failed, Lost, Parked, Succeeded
from onward.core.task import Lane, State, Task
from onward.faults import Fault
from tests.support import NOW, PROFILES, a_task, replay

BUSY = Fault(kind="ServiceUnavailable", message="busy")
BAD_INPUT = Fault(kind="InvalidInput", message="no")
PAST = NOW - 1
PARKED = Parked(seen=1, journal="[]", waiting_for="children")


def decided(move: Move | None) -> Move:
    assert move is not None
    return move


def types(move: Move) -> list[str]:
    return [type_ for type_, _ in move.events]


def after(task: Task, move: Move) -> Task:
    changes = {name: value for name, value in move.changes.items() if name != "lane"}
    return msgspec.structs.replace(task, state=move.to, due_at=move.due_at, **changes)


# Age and the old retry.

TASKS, FLOW = PROFILES["tasks"], PROFILES["flow"]


@pytest.mark.contract("S3-9")
def test_a_profile_with_an_age_bounds_a_life_and_each_replay_of_it() -> None:
    assert TASKS.age_ms is not None
    task, _ = machine.born(a_task(profile="tasks"), TASKS)
    assert task.expires_at == task.due_at == NOW + TASKS.age_ms
    dead = msgspec.structs.replace(task, state=State.DEAD, due_at=None)
    assert after(dead, decided(replay(dead, NOW + 7))).expires_at == NOW + 7 + TASKS.age_ms


def test_a_retry_that_would_age_out_in_its_queue_goes_ahead() -> None:
    assert TASKS.promote_ms is not None
    end = NOW + TASKS.promote_ms
    task = a_task(
        profile="tasks", state=State.QUEUED, lane=Lane.RETRY, expires_at=end, due_at=NOW, rev=1
    )
    move = decided(machine.on_due(task, NOW, TASKS))
    assert (move.to, move.ahead, types(move)) == (State.QUEUED, True, ["task.promoted"])
    assert move.due_at == end, "the next alarm is its end"
    assert decided(machine.on_due(task, end, TASKS)).to is State.DEAD


def test_new_work_is_never_promoted() -> None:
    task, _ = machine.born(a_task(profile="tasks"), TASKS)
    assert task.due_at == task.expires_at


# A task that ends itself.


def parked_run(**fields: Any) -> Task:
    run = {"profile": "flow", "state": State.WAITING, "fence": 1, "rev": 3, "journal": "[]"}
    return a_task(**{**run, **fields})


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.WAITING])
def test_a_task_that_winds_down_is_told_to_and_stays_alive(state: State) -> None:
    run = parked_run(state=state)
    move = decided(machine.cancel(run, NOW, FLOW))
    assert (move.to, move.front, types(move)) == (state, True, ["task.canceling"])
    assert [(letter.to, letter.name) for letter in move.letters] == [(run.id, "cancel")]
    assert machine.cancel(after(run, move), NOW, FLOW) is None, "asked once"


def test_what_never_began_has_nothing_to_wind_down() -> None:
    move = decided(machine.cancel(parked_run(state=State.QUEUED, fence=0), NOW, FLOW))
    assert move.to is State.CANCELED


def test_winding_down_may_park_and_ends_canceled() -> None:
    run = parked_run(state=State.RUNNING, cancel_by=machine.NEVER)
    assert machine.settle(run, PARKED, NOW, FLOW).to is State.WAITING
    assert machine.settle(run, Lost(), NOW, FLOW).to is State.QUEUED
    for outcome in (Canceled("[1]"), Failed(BUSY, "[1]")):
        move = machine.settle(run, outcome, NOW, FLOW)
        assert (move.to, move.changes["journal"]) == (State.CANCELED, "[1]")
    # It was done before it had read of the cancel: it reads it, and undoes what it did.
    assert machine.settle(run, Succeeded("1", "[1]"), NOW, FLOW).to is State.QUEUED


def test_a_server_lost_while_winding_down_does_not_end_it() -> None:
    run = parked_run(
        state=State.RUNNING, cancel_by=machine.NEVER, lease_until=PAST, due_at=PAST, worker="w"
    )
    assert decided(machine.on_due(run, NOW, FLOW)).to is State.QUEUED


def test_the_events_of_a_step_come_before_the_one_that_ends_it() -> None:
    note = ("node.finished", None)
    run = parked_run(state=State.RUNNING)
    for outcome, last in (
        (Succeeded("1", notes=(note,)), "task.succeeded"),
        (Failed(BAD_INPUT, notes=(note,)), "task.failed"),
        (Canceled(notes=(note,)), "task.canceled"),
        (Parked(seen=0, journal="[]", waiting_for="timer", notes=(note,)), "task.parked"),
    ):
        assert types(machine.settle(run, outcome, NOW, FLOW)) == ["node.finished", last]
