"""The sweep: what the clock does, what cannot be decided, and a process that was paused."""

from __future__ import annotations

import msgspec
import pytest
from structlog.testing import capture_logs

from onward.core import alarm, machine
from onward.core.alarm import Alarm
from onward.core.clock import LOOKS, SYNC_MS, ManualClock, SharedClock
from onward.core.contract import POSTPONE_MS, Submission
from onward.core.errors import LedgerUnavailable
from onward.core.policy import Profile
from onward.core.task import State, Task
from tests.core.dispatcher import Observed
from tests.core.dispatcher import dispatcher as dispatcher
from tests.support import LEASE_MS, NOW, PROFILES, a_task


async def insert(
    dispatcher: Observed, *tasks: Task, profile: Profile = PROFILES["console"]
) -> None:
    items = [Submission(*machine.born(task, profile)) for task in tasks]
    await dispatcher.backend.tasks.insert(items, (), now=NOW)


def odd(n: int = 0) -> Task:
    """Of a profile that only a newer server knows; due before everything else."""
    return a_task(id=f"odd-{n:04}", profile="of a newer server", run_at=NOW + 1)


async def test_a_task_that_cannot_be_decided_stops_no_other_alarm(
    dispatcher: Observed, clock: ManualClock
) -> None:
    late = a_task(run_at=NOW + 5)
    await insert(dispatcher, odd(), late)
    asked, events = machine.born(
        a_task(waiting_for="approval", id="odd approval"), PROFILES["console"]
    )
    edited = _with(asked, approval='{"status": "of a newer server"}', due_at=NOW + 2)
    await dispatcher.backend.tasks.insert([Submission(edited, events)], (), now=NOW)
    clock.advance(10)
    with capture_logs() as logs:
        for _ in range(3):
            await Alarm(dispatcher).sweep()
    assert (await dispatcher.task(late.id)).state is State.QUEUED
    for id, state in {"odd-0000": State.SCHEDULED, "odd approval": State.WAITING}.items():
        found = await dispatcher.task(id)
        assert found.state is state
        assert found.due_at == clock.now() + POSTPONE_MS, "out of the sweep's way"
    told = [line["task"] for line in logs if line["log_level"] == "error"]
    assert sorted(told) == ["odd approval", "odd-0000"], "each is reported once"
    clock.advance(POSTPONE_MS)
    with capture_logs() as logs:
        await Alarm(dispatcher).sweep()
    assert not logs


def _with(task: Task, **fields: object) -> Task:
    return msgspec.structs.replace(task, **fields)


async def test_a_finished_task_of_an_unknown_profile_is_forgotten_all_the_same(
    dispatcher: Observed, clock: ManualClock
) -> None:
    over = _with(odd(), state=State.SUCCEEDED, due_at=NOW)
    await dispatcher.backend.tasks.insert([Submission(over, ())], (), now=NOW)
    await Alarm(dispatcher).sweep()
    assert await dispatcher.backend.tasks.get([over.id]) == [None]


def refuse_odd(dispatcher: Observed) -> None:
    """From now on the ledger refuses to move rows that are odd."""
    apply = dispatcher.backend.tasks.apply

    async def refusing(moves, asks=(), *, now, frees=()):  # type: ignore[no-untyped-def]
        if any(move.task.startswith("odd") for move in moves):
            raise RuntimeError("no such row")
        return await apply(moves, asks, now=now, frees=frees)

    dispatcher.backend.tasks.apply = refusing  # type: ignore[method-assign]


async def test_a_row_that_the_ledger_refuses_to_move_is_looked_past(
    dispatcher: Observed, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even postponed: a whole batch of these stands before the rest, and is no endless loop."""
    monkeypatch.setattr(alarm, "BATCH", 4)
    late = a_task(run_at=NOW + 5)
    await insert(dispatcher, *map(odd, range(8)), late)
    refuse_odd(dispatcher)
    clock.advance(10)
    assert await Alarm(dispatcher).sweep() == 9
    assert (await dispatcher.task(late.id)).state is State.QUEUED


async def test_large_tasks_that_are_refused_do_not_stand_before_the_rest(
    dispatcher: Observed, clock: ManualClock
) -> None:
    """More than one answer of the ledger holds; and more than one of those that move, behind."""
    large = f'"{"x" * (3 << 20)}"'
    stuck = [_with(odd(n), payload=large) for n in range(4)]
    late = [a_task(run_at=NOW + 5, payload=large) for _ in range(4)]
    await insert(dispatcher, *stuck, *late)
    refuse_odd(dispatcher)
    clock.advance(10)
    assert await Alarm(dispatcher).sweep() == 8
    assert {(await dispatcher.task(task.id)).state for task in late} == {State.QUEUED}


async def test_a_finished_task_that_is_neither_purged_nor_postponed_ends_the_sweep(
    dispatcher: Observed, clock: ManualClock
) -> None:
    over = _with(a_task(), state=State.SUCCEEDED, due_at=NOW)
    await dispatcher.backend.tasks.insert([Submission(over, ())], (), now=NOW)

    async def none(ids, *, now, postpone_ms=0):  # type: ignore[no-untyped-def]
        return 0

    dispatcher.backend.tasks.purge = none  # type: ignore[method-assign]
    assert await Alarm(dispatcher).sweep() == 1


async def test_a_ledger_that_is_away_fails_the_sweep(
    dispatcher: Observed, clock: ManualClock
) -> None:
    await insert(dispatcher, a_task(run_at=NOW + 5))

    async def away(moves, asks=(), *, now, frees=()):  # type: ignore[no-untyped-def]
        raise LedgerUnavailable("away")

    dispatcher.backend.tasks.apply = away  # type: ignore[method-assign]
    clock.advance(10)
    with pytest.raises(LedgerUnavailable):
        await Alarm(dispatcher).sweep()


async def test_a_process_that_was_paused_renews_its_leases_before_it_sweeps(
    dispatcher: Observed, clock: ManualClock
) -> None:
    held = await dispatcher.running()
    uptime = [0]
    alarm = Alarm(dispatcher, uptime_ms=lambda: uptime[0])
    await alarm.sweep()
    clock.advance(LEASE_MS + 1)  # nobody has renewed anything, for everything stood still
    uptime[0] += LEASE_MS + 1
    await alarm.sweep()
    assert (await dispatcher.task(held.id)).state is State.RUNNING
    assert not dispatcher.stopped


async def test_a_step_forward_renews_what_is_held_before_it_sweeps(dispatcher: Observed) -> None:
    uptime, reference = [0], [NOW]
    dispatcher.clock = SharedClock(lambda: reference[0] - uptime[0], uptime_ms=lambda: uptime[0])
    held = await dispatcher.running()
    timer = a_task(run_at=NOW + 30_000)
    await insert(dispatcher, timer)
    alarm = Alarm(dispatcher, uptime_ms=lambda: uptime[0])
    await alarm.sweep()
    reference[0] += 2 * LEASE_MS
    for _ in range(LOOKS + 1):
        uptime[0] += SYNC_MS
        reference[0] += SYNC_MS
        await alarm.sweep()
    assert dispatcher.clock.now() == reference[0], "it has stepped"
    assert (await dispatcher.task(held.id)).state is State.RUNNING
    assert not dispatcher.stopped
    assert (await dispatcher.task(timer.id)).state is State.QUEUED, "a timer comes due"


async def test_a_lease_that_lapses_while_the_sweep_runs_is_lost(
    dispatcher: Observed, clock: ManualClock
) -> None:
    held = await dispatcher.running()
    uptime = [0]
    alarm = Alarm(dispatcher, uptime_ms=lambda: uptime[0])
    await alarm.sweep()
    clock.advance(LEASE_MS + 1)
    uptime[0] += 100
    await alarm.sweep()
    assert (await dispatcher.task(held.id)).state is State.QUEUED


async def test_a_paused_process_does_not_take_back_what_another_server_has_taken(
    dispatcher: Observed, clock: ManualClock
) -> None:
    held = await dispatcher.running()
    uptime = [0]
    alarm = Alarm(dispatcher, uptime_ms=lambda: uptime[0])
    await alarm.sweep()
    clock.advance(LEASE_MS + 1)
    await Alarm(Observed(dispatcher.backend, clock)).sweep()  # the other server's
    uptime[0] += LEASE_MS + 1
    await alarm.sweep()
    assert (await dispatcher.task(held.id)).state is State.QUEUED
    assert dispatcher.stopped == [(held.id, True)]
