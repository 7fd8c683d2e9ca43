"""Approvals, decision by decision: who may let a task run, when, and with what."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from onward.core import machine
from onward.core.approval import Approval, Status, approval_of, ask
from onward.core.contract import Move
from onward.core.policy import Profile
from onward.core.task import Lane, State, Task, fault_of
from tests.support import NOW, PROFILES, a_task, replay

CONSOLE, SYNC = PROFILES["console"], PROFILES["sync"]
HOUR = 3_600_000


def asked(
    *, profile: Profile = CONSOLE, terms: dict[str, Any] | None = None, **fields: Any
) -> Task:
    payload = fields.get("payload", "{}")
    record = ask(payload, NOW, **(terms or {})).encode()
    task = a_task(waiting_for="approval", approval=record, profile=profile.name, **fields)
    return machine.born(task, profile)[0]


def after(task: Task, move: Move | None) -> Task:
    assert move is not None
    changes: dict[str, Any] = dict(move.changes)
    return msgspec.structs.replace(
        task, state=move.to, rev=task.rev + 1, due_at=move.due_at, **changes
    )


def record(task: Task) -> Approval:
    found = approval_of(task)
    assert found is not None
    return found


def notes(move: Move | None) -> dict[str, Any]:
    assert move is not None
    return {
        type_: None if data is None else msgspec.json.decode(data) for type_, data in move.events
    }


@pytest.mark.contract("S1-11", "S1-9")
def test_a_task_that_needs_approval_is_born_waiting_with_what_is_asked() -> None:
    task, events = machine.born(a_task(waiting_for="approval", payload='{"n":1}'), CONSOLE)
    assert (task.state, task.due_at) == (State.WAITING, None)
    assert record(task) == ask('{"n":1}', NOW, salt=record(task).salt)
    assert [type_ for type_, _ in events] == ["task.created", "approval.requested"]
    assert msgspec.json.decode(str(events[1][1])) == {"digest": record(task).digest}
    assert task.events == 2


@pytest.mark.contract("S1-11", "S1-9")
def test_an_approved_task_is_queued() -> None:
    task = asked(start_by=NOW + 1)
    move = machine.approve(task, NOW + HOUR, CONSOLE, by="ada", comment="go")
    done = after(task, move)
    assert (done.state, done.due_at, done.waiting_for) == (State.QUEUED, None, None)
    assert done.start_by is None, "the time that a person took is not held against it"
    said = record(done)
    assert (said.status, said.by, said.comment) == (Status.APPROVED, "ada", "go")
    assert said.decided_at == NOW + HOUR
    assert notes(move) == {
        "approval.approved": {"by": "ada", "comment": "go", "digest": record(task).digest}
    }


def test_an_approved_task_still_waits_for_its_hour() -> None:
    task = asked(run_at=NOW + HOUR)
    early = after(task, machine.approve(task, NOW + 1, CONSOLE))
    assert (early.state, early.due_at, early.run_at) == (State.SCHEDULED, NOW + HOUR, NOW + HOUR)
    late = after(task, machine.approve(task, NOW + HOUR, CONSOLE))
    assert (late.state, late.due_at, late.run_at) == (State.QUEUED, None, None)


def test_a_payload_can_be_mended_when_it_is_approved() -> None:
    done = after(task := asked(), machine.approve(task, NOW, CONSOLE, payload='{"n":2}'))
    assert (done.payload, record(done).digest) == ('{"n":2}', record(task).digest_of('{"n":2}'))


@pytest.mark.contract("S1-11", "S1-9")
@pytest.mark.parametrize("profile", [CONSOLE, SYNC])
def test_a_rejected_task_has_failed_and_is_no_dead_letter(profile: Profile) -> None:
    task = asked(profile=profile, parent="p")
    move = machine.reject(task, NOW + 5, profile, by="ada")
    done = after(task, move)
    assert (done.state, done.finished_at, done.waiting_for) == (State.FAILED, NOW + 5, None)
    fault = fault_of(done.error)
    assert fault is not None
    assert (fault.kind, fault.message, fault.retryable) == ("Rejected", "rejected by ada", False)
    assert record(done).status is Status.REJECTED
    assert list(notes(move)) == ["approval.rejected", "task.failed"]
    assert move is not None
    assert [letter.to for letter in move.letters] == ["p"]


def test_a_comment_says_why_it_was_rejected() -> None:
    done = after(task := asked(), machine.reject(task, NOW, CONSOLE, "ada", "too dear"))
    fault = fault_of(done.error)
    assert fault is not None
    assert fault.message == "too dear"


@pytest.mark.contract("N-5")
def test_nobody_decides_twice_or_about_what_waits_for_something_else() -> None:
    task = asked()
    for decided in (
        after(task, machine.approve(task, NOW, CONSOLE)),
        after(task, machine.reject(task, NOW, CONSOLE)),
        after(task, machine.cancel(task, NOW, CONSOLE)),
        machine.born(a_task(waiting_for="event"), CONSOLE)[0],
        a_task(),
    ):
        assert machine.approve(decided, NOW, CONSOLE) is None
        assert machine.reject(decided, NOW, CONSOLE) is None


# Time.


@pytest.mark.contract("S1-11")
def test_without_a_time_it_waits_for_ever() -> None:
    assert asked().due_at is None


@pytest.mark.contract("S1-9")
@pytest.mark.parametrize(
    ("default", "state", "event"),
    [("approve", State.QUEUED, "approval.approved"), ("reject", State.FAILED, "approval.rejected")],
)
def test_when_nobody_decides_in_time_the_default_does(
    default: str, state: State, event: str
) -> None:
    task = asked(terms={"expires_ms": HOUR, "default": default})
    assert task.due_at == NOW + HOUR
    move = machine.on_due(task, NOW + HOUR, CONSOLE)
    done = after(task, move)
    assert done.state is state
    assert notes(move)[event] == {"by": "expiry"}
    assert (record(done).status, record(done).by) == (Status.EXPIRED, "expiry")


def test_the_default_is_to_reject() -> None:
    task = asked(terms={"expires_ms": HOUR})
    assert after(task, machine.on_due(task, NOW + HOUR, CONSOLE)).state is State.FAILED


def test_a_word_that_comes_after_the_time_is_too_late_even_before_the_sweep() -> None:
    task = asked(terms={"expires_ms": HOUR})
    assert machine.approve(task, NOW + HOUR, CONSOLE) is None
    assert machine.reject(task, NOW + HOUR, CONSOLE) is None
    assert machine.approve(task, NOW + HOUR - 1, CONSOLE) is not None


def test_a_task_ages_while_its_approval_is_open() -> None:
    task = asked(expires_at=NOW + 10, terms={"expires_ms": HOUR, "default": "approve"})
    assert task.due_at == NOW + 10
    done = after(task, machine.on_due(task, NOW + 10, CONSOLE))
    assert (done.state, record(done).status) == (State.DEAD, Status.EXPIRED)


# Cancel and replay.


def test_a_cancel_closes_what_was_asked() -> None:
    done = after(task := asked(), machine.cancel(task, NOW + 1, CONSOLE))
    assert (done.state, done.waiting_for) == (State.CANCELED, None)
    assert (record(done).status, record(done).decided_at) == (Status.CANCELED, NOW + 1)


@pytest.mark.contract("S1-11", "S1-10")
def test_what_was_refused_or_stopped_is_asked_about_again() -> None:
    task = asked(terms={"expires_ms": HOUR, "reason": "money"})
    later = NOW + 5 * HOUR
    approved = after(task, machine.approve(task, NOW, CONSOLE))
    for over in (
        after(task, machine.reject(task, NOW, CONSOLE)),
        after(task, machine.cancel(task, NOW, CONSOLE)),
        after(task, machine.on_due(task, NOW + HOUR, CONSOLE)),
        after(approved, machine.cancel(approved, NOW, CONSOLE)),
    ):
        move = replay(over, later)
        again = after(over, move)
        assert (again.state, again.generation, again.lane) == (State.WAITING, 2, Lane.RETRY)
        assert list(notes(move)) == ["task.replayed", "approval.requested"]
        assert (again.waiting_for, again.due_at) == ("approval", later + HOUR)
        salt = record(again).salt
        assert record(again) == ask("{}", later, expires_ms=HOUR, reason="money", salt=salt)


@pytest.mark.contract("S1-11", "S1-10")
def test_an_approval_covers_the_payload_it_was_given_for_and_no_other() -> None:
    approved = after(task := asked(), machine.approve(task, NOW, CONSOLE))
    dead = msgspec.structs.replace(approved, state=State.DEAD)
    assert after(dead, replay(dead, NOW)).state is State.QUEUED
    assert after(dead, replay(dead, NOW, payload="{}")).state is State.QUEUED
    mended = after(dead, replay(dead, NOW, payload='{"to":"me"}'))
    assert mended.state is State.WAITING
    assert record(mended).digest == record(mended).digest_of('{"to":"me"}')


def test_a_yes_by_default_is_nobodys_word_and_is_not_carried_over() -> None:
    task = asked(terms={"expires_ms": HOUR, "default": "approve"})
    let_go = after(task, machine.on_due(task, NOW + HOUR, CONSOLE))
    dead = msgspec.structs.replace(let_go, state=State.DEAD)
    assert after(dead, replay(dead, NOW + HOUR)).state is State.WAITING


# Replay at a rate.


@pytest.mark.contract("N-5")
def test_a_replay_may_be_put_off_in_the_ledger_itself() -> None:
    dead = a_task(state=State.DEAD, run_at=NOW - 5)
    later = after(dead, replay(dead, NOW, run_at=NOW + 10))
    assert (later.state, later.lane, later.run_at) == (State.SCHEDULED, Lane.RETRY, NOW + 10)
    assert later.due_at == NOW + 10
    at_once = after(dead, replay(dead, NOW, run_at=NOW))
    assert (at_once.state, at_once.run_at, at_once.due_at) == (State.QUEUED, None, None)
