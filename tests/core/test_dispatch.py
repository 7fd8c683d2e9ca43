"""The one write path, and the sweep that takes it too, on a ledger in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from onward.core import alarm, dispatch, machine
from onward.core.alarm import Alarm
from onward.core.clock import ManualClock
from onward.core.contract import MAX_LETTERS, Hold, Key, Pulse, Verdict
from onward.core.dispatch import TRIES, Dispatcher
from onward.core.errors import Conflict, KeyReused, LedgerUnavailable, NotFound, QueueFull, TooBusy
from onward.core.outcome import Lost, Outcome, Parked, Released, Succeeded
from onward.core.policy import CANCEL_GRACE_MS
from onward.core.task import FINAL_EVENTS, Letter, State
from onward.core.waiters import Waiters
from tests.core.desk import BAD, BUSY, Desk, before_applying, desk
from tests.support import LEASE_MS, NOW, PROFILES, a_task, an_ask, ids, wait_until

__all__ = ["desk"]


# Coming in.


async def test_a_submission_is_in_the_ledger_when_it_is_answered(desk: Desk) -> None:
    receipt = await desk.submit(a_task(id="t"))
    assert (receipt.task, receipt.running) == ("t", False)
    assert (await desk.task("t")).state is State.QUEUED
    assert +desk.tally == {"task.created": 1}


async def test_concurrent_submissions_share_one_trip(desk: Desk) -> None:
    calls = 0
    insert = desk.backend.tasks.insert

    async def counted(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return await insert(*args, **named)

    desk.backend.tasks.insert = counted  # type: ignore[method-assign]
    await asyncio.gather(*(desk.submit(a_task()) for _ in range(100)))
    receipts = await desk.submit_all([a_task() for _ in range(50)])
    assert (calls, len(receipts)) == (2, 50)


@pytest.mark.contract("S0-6")
async def test_a_full_queue_is_said_so(desk: Desk) -> None:
    await desk.submit(a_task(), cap=1)
    with pytest.raises(QueueFull, match="'q' holds 1 of 1"):
        await desk.submit(a_task(), cap=1)


@pytest.mark.contract("S1-8")
async def test_a_key_is_known_or_reused(desk: Desk) -> None:
    first = await desk.submit(a_task(), key=Key("s", "k", "body"))
    again = await desk.submit(a_task(), key=Key("s", "k", "body"))
    assert again.task == first.task
    with pytest.raises(KeyReused):
        await desk.submit(a_task(), key=Key("s", "k", "another"))


@pytest.mark.contract("S0-10")
async def test_new_work_goes_straight_into_an_idle_hand(desk: Desk) -> None:
    seat = desk.sit(2)
    receipts = []
    for _ in range(3):
        await desk.idle()
        receipts.append(await desk.submit(a_task()))
    assert [receipt.running for receipt in receipts] == [True, True, False]
    assert ids(desk.inbox) == [receipt.task for receipt in receipts[:2]]
    desk.slots.free(seat)
    await wait_until(lambda: len(desk.inbox) == 3)
    assert desk.tally["task.claimed"] == 3


async def test_work_that_waits_is_claimed_when_a_worker_comes(desk: Desk) -> None:
    receipts = [await desk.submit(a_task()) for _ in range(3)]
    desk.sit(2)
    await wait_until(lambda: len(desk.inbox) == 2)
    assert ids(desk.inbox) == [receipt.task for receipt in receipts[:2]]


async def test_a_ledger_that_is_away_costs_no_slots(desk: Desk) -> None:
    seat = desk.sit(2)
    await desk.idle()
    insert = desk.backend.tasks.insert

    async def away(*_: Any, **__: Any) -> Any:
        raise LedgerUnavailable("away")

    desk.backend.tasks.insert = away  # type: ignore[method-assign]
    with pytest.raises(LedgerUnavailable):
        await desk.submit(a_task())
    assert seat.free == 2
    desk.backend.tasks.insert = insert  # type: ignore[method-assign]
    assert (await desk.submit(a_task())).running


async def test_what_was_given_to_nobody_goes_back_even_if_the_ledger_is_away_just_then(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "AGAIN_S", 0.01)
    receipt = await desk.submit(a_task(queue="q"))
    (given,) = await desk.backend.tasks.claim([an_ask("q", worker="gone")], now=NOW)

    async def fail() -> None:
        raise LedgerUnavailable("away")

    before_applying(desk, fail)
    desk._hand_back(given)
    await wait_until(lambda: desk.tally["task.released"])
    task = await desk.task(receipt.task)
    assert (task.state, task.attempt) == (State.QUEUED, 0)


async def test_what_is_done_elsewhere_to_a_task_in_hand_is_looked_at_at_once(
    desk: Desk, clock: ManualClock
) -> None:
    held = await desk.running()
    await Dispatcher(desk.backend, PROFILES, clock).cancel(held.id)
    desk.on_news([], ["somebody else's"], {})
    assert desk.stopped == []
    desk.on_news([], [held.id], {})
    await wait_until(lambda: desk.stopped == [(held.id, False)])


async def test_a_claim_that_failed_is_tried_again_at_the_next_look(desk: Desk) -> None:
    await desk.submit(a_task())
    claim, failed = desk.backend.tasks.claim, asyncio.Event()

    async def away(*_: Any, **__: Any) -> Any:
        failed.set()
        raise LedgerUnavailable("away")

    desk.backend.tasks.claim = away  # type: ignore[method-assign]
    seat = desk.sit()
    await failed.wait()
    await wait_until(lambda: seat.free == 1)
    desk.backend.tasks.claim = claim  # type: ignore[method-assign]
    await desk.reread()
    await wait_until(lambda: len(desk.inbox) == 1)


async def test_work_for_a_worker_who_left_meanwhile_goes_back_unburned(desk: Desk) -> None:
    receipt = await desk.submit(a_task())
    seat = desk.sit()
    claim = desk.backend.tasks.claim

    async def slow(*args: Any, **named: Any) -> Any:
        claimed = await claim(*args, **named)
        desk.slots.remove(seat)
        return claimed

    desk.backend.tasks.claim = slow  # type: ignore[method-assign]
    await wait_until(lambda: desk.tally["task.released"] == 1)
    task = await desk.task(receipt.task)
    assert (task.state, task.attempt, task.fence) == (State.QUEUED, 0, 1)
    assert desk.inbox == []


# Being held.


async def test_a_beat_renews_everything_that_is_held(desk: Desk, clock: ManualClock) -> None:
    held = await desk.running()
    clock.advance(20_000)
    await desk.beat()
    assert (await desk.task(held.id)).lease_until == NOW + 20_000 + LEASE_MS
    await desk.settle(held, Succeeded("1"))
    await desk.beat()
    assert desk.slots.busy() == 0


async def test_who_lost_a_task_is_told_to_drop_it(desk: Desk, clock: ManualClock) -> None:
    held = await desk.running()
    clock.advance(LEASE_MS)
    other = Dispatcher(desk.backend, PROFILES, clock)
    await Alarm(other).sweep()
    await desk.beat()
    assert desk.stopped == [(held.id, True)]
    assert await desk.extend(Hold(held.id, held.fence, NOW)) is Pulse.LOST


async def test_who_is_asked_to_stop_elsewhere_hears_it_at_the_next_beat(
    desk: Desk, clock: ManualClock
) -> None:
    held = await desk.running()
    await Dispatcher(desk.backend, PROFILES, clock).cancel(held.id)
    assert desk.stopped == []
    await desk.beat()
    assert desk.stopped == [(held.id, False)]


# Being settled.


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Succeeded("1"), State.SUCCEEDED),
        (BUSY, State.SCHEDULED),
        (BAD, State.DEAD),
        (Parked(seen=0, journal="{}", waiting_for="event"), State.WAITING),
        (Released(), State.QUEUED),
        (Lost(), State.QUEUED),
    ],
)
async def test_every_outcome_finds_its_state(desk: Desk, outcome: Outcome, state: State) -> None:
    held = await desk.running()
    assert await desk.settle(held, outcome) is Verdict.APPLIED
    assert (await desk.task(held.id)).state is state
    assert desk.slots.busy() == 0


@pytest.mark.parametrize("outcome", [Succeeded("1"), BUSY, Released(), Lost()])
async def test_a_cancel_set_meanwhile_is_never_lost(desk: Desk, outcome: Outcome) -> None:
    """Decided on the claim, refused on its rev, decided again on what is there now."""
    held = await desk.running()
    await desk.cancel(held.id)
    assert await desk.settle(held, outcome) is Verdict.APPLIED
    task = await desk.task(held.id)
    assert (task.state, task.result) == (State.CANCELED, None)


async def test_a_task_that_changes_at_every_try_is_given_up_at_last(desk: Desk) -> None:
    held = await desk.running()

    async def meddle() -> None:
        task = await desk.task(held.id)
        await desk.backend.tasks.apply([machine.event_only(task, "task.remark", None)], now=NOW)

    before_applying(desk, meddle, times=TRIES)
    assert await desk.settle(held, Succeeded("1")) is Verdict.APPLIED
    held = await desk.running()
    before_applying(desk, meddle, times=TRIES + 1)
    assert await desk.settle(held, Succeeded("1")) is Verdict.MOVED


async def test_an_outcome_that_the_ledger_refuses_is_reported_and_costs_nobody_else(
    desk: Desk,
) -> None:
    odd, good = await desk.running(), await desk.running()
    ended = machine.event_only(await desk.task(odd.id), "task.succeeded", None)  # and yet it runs
    await desk.backend.tasks.apply([ended], now=NOW)
    with capture_logs() as logs:
        verdicts = await asyncio.gather(*(desk.settle(one, Succeeded("1")) for one in (odd, good)))
    assert verdicts == [Verdict.REFUSED, Verdict.APPLIED]
    said = [(line["event"], line["task"]) for line in logs if line["log_level"] == "error"]
    assert said == [("the ledger refuses this outcome", odd.id)]


@pytest.mark.contract("S0-5")
async def test_a_late_result_is_recorded_and_not_applied(desk: Desk, clock: ManualClock) -> None:
    stale = await desk.running()
    clock.advance(LEASE_MS)
    await Alarm(desk).sweep()
    assert await desk.settle(stale, Succeeded('"late"')) is Verdict.STALE
    task = await desk.task(stale.id)
    assert (task.state, task.result) == (State.QUEUED, None)
    assert (await desk.history(stale.id))[-1] == "task.late_result"
    desk.sit()
    await wait_until(lambda: len(desk.inbox) == 2)
    assert await desk.settle(stale, BAD) is Verdict.STALE
    assert await desk.settle(desk.inbox[1], Succeeded('"on time"')) is Verdict.APPLIED
    assert (await desk.task(stale.id)).result == '"on time"'
    assert await desk.settle(stale, Succeeded('"late"')) is Verdict.STALE
    history = await desk.history(stale.id)
    assert history.count("task.late_result") == 3
    assert [type_ for type_ in history if type_ in FINAL_EVENTS] == ["task.succeeded"]


async def test_a_late_handing_back_is_not_worth_a_word(desk: Desk, clock: ManualClock) -> None:
    stale = await desk.running()
    clock.advance(LEASE_MS)
    await Alarm(desk).sweep()
    for outcome in (Released(), Lost()):
        assert await desk.settle(stale, outcome) is Verdict.STALE
    assert "task.late_result" not in await desk.history(stale.id)


async def test_a_result_for_a_forgotten_task_is_gone(desk: Desk) -> None:
    held = await desk.running()
    await desk.settle(held, Succeeded("1"))
    await desk.backend.tasks.purge([held.id], now=NOW)
    assert await desk.settle(held, Succeeded("2")) is Verdict.GONE


async def test_one_late_settlement_does_not_hold_up_the_others(desk: Desk) -> None:
    late, fine = await desk.running(), await desk.running()
    await desk.settle(late, Succeeded("1"))
    verdicts = await asyncio.gather(
        desk.settle(late, Succeeded("2")), desk.settle(fine, Succeeded("3"))
    )
    assert list(verdicts) == [Verdict.STALE, Verdict.APPLIED]


# Interventions.


async def test_cancelling_running_work_reaches_its_worker(desk: Desk, clock: ManualClock) -> None:
    held = await desk.running()
    task = await desk.cancel(held.id)
    assert (task.state, task.cancel_by) == (State.RUNNING, NOW + CANCEL_GRACE_MS)
    assert desk.stopped == [(held.id, False)]
    await desk.cancel(held.id)
    assert (await desk.history(held.id)).count("task.canceling") == 1
    clock.advance(CANCEL_GRACE_MS)
    await Alarm(desk).sweep()
    assert (await desk.task(held.id)).state is State.CANCELED
    assert desk.stopped[-1] == (held.id, True)


async def test_a_worker_that_dies_while_it_should_stop_does_not_bring_the_task_back(
    desk: Desk, clock: ManualClock
) -> None:
    held = await desk.running()
    clock.advance(LEASE_MS - 1)
    await desk.cancel(held.id)
    clock.advance(1)
    await Alarm(desk).sweep()
    assert (await desk.task(held.id)).state is State.CANCELED


async def test_cancelling_twice_or_nothing_is_refused(desk: Desk) -> None:
    receipt = await desk.submit(a_task())
    assert (await desk.cancel(receipt.task)).state is State.CANCELED
    with pytest.raises(Conflict, match="canceled already"):
        await desk.cancel(receipt.task)
    for verb in (desk.cancel, desk.replay, desk.abandon):
        with pytest.raises(NotFound):
            await verb("nobody")


async def test_a_cancel_that_was_overtaken_is_decided_again(desk: Desk) -> None:
    receipt = await desk.submit(a_task())

    async def claim() -> None:
        desk.sit()
        await wait_until(lambda: desk.inbox)

    before_applying(desk, claim)
    assert (await desk.cancel(receipt.task)).state is State.RUNNING
    assert (await desk.history(receipt.task))[-1] == "task.canceling"


async def test_a_dead_letter_is_replayed_or_abandoned(desk: Desk) -> None:
    held = await desk.running()
    for verb in (desk.replay, desk.abandon):
        with pytest.raises(Conflict):
            await verb(held.id)
    await desk.settle(held, BAD)
    task = await desk.replay(held.id, payload='{"mended":1}')
    assert (task.state, task.generation, task.payload) == (State.QUEUED, 2, '{"mended":1}')
    desk.sit()
    await wait_until(lambda: len(desk.inbox) == 2)
    await desk.settle(desk.inbox[1], BAD)
    assert (await desk.abandon(held.id)).state is State.FAILED
    with pytest.raises(Conflict, match="no dead letter"):
        await desk.abandon(held.id)


async def test_a_signal_wakes_a_parked_task(desk: Desk) -> None:
    held = await desk.running()
    await desk.settle(held, Parked(seen=0, journal='"j"', waiting_for="event"))
    desk.sit()
    await desk.signal(held.id, "go", '"on"')
    await wait_until(lambda: len(desk.inbox) == 2)
    again = desk.inbox[1]
    assert (again.id, again.journal, again.letters[0].body) == (held.id, '"j"', '"on"')
    await desk.settle(again, Succeeded("1"))
    with pytest.raises(NotFound):
        await desk.signal(held.id, "go", "1")


async def test_children_are_born_by_parking_and_wake_their_parent(desk: Desk) -> None:
    held = await desk.running()
    child = a_task(id="child", queue="c", parent=held.id)
    parked = Parked(seen=0, journal="{}", waiting_for="children", spawn=(child,))
    seat = desk.sit(2, queues="q c")
    await desk.settle(held, parked)
    await wait_until(lambda: len(desk.inbox) == 2)
    await desk.settle(desk.inbox[1], Succeeded("1"))
    await wait_until(lambda: len(desk.inbox) == 3)
    assert (desk.inbox[2].id, desk.inbox[2].letters[0].name) == (held.id, "child")
    assert seat.free == 0


# Waiting.


@pytest.mark.contract("S0-1")
async def test_a_caller_may_wait_for_the_result(desk: Desk) -> None:
    desk.sit()
    waiting = asyncio.create_task(desk.submit_and_wait(a_task(), timeout_ms=60_000))
    await wait_until(lambda: desk.inbox)
    await desk.settle(desk.inbox[0], Succeeded('{"answer":42}'))
    receipt, ending = await waiting
    assert ending is not None
    assert (ending.id, ending.state, ending.result) == (
        receipt.task,
        State.SUCCEEDED,
        '{"answer":42}',
    )
    assert len(desk.waiters) == 0


async def test_a_caller_learns_of_failure_and_of_cancelling_too(desk: Desk) -> None:
    for outcome, state in ((BAD, State.DEAD), (Succeeded("1"), State.SUCCEEDED)):
        held = await desk.running()
        waiting = asyncio.create_task(desk.wait(held.id, timeout_ms=60_000))
        await wait_until(lambda: len(desk.waiters) == 1)
        await desk.settle(held, outcome)
        ending = await waiting
        assert ending is not None
        assert ending.state is state
    receipt = await desk.submit(a_task())
    waiting = asyncio.create_task(desk.wait(receipt.task, timeout_ms=60_000))
    await wait_until(lambda: len(desk.waiters) == 1)
    await desk.cancel(receipt.task)
    ending = await waiting
    assert ending is not None
    assert ending.state is State.CANCELED


async def test_who_waits_too_short_gets_nothing_and_the_task_lives_on(desk: Desk) -> None:
    receipt, ending = await desk.submit_and_wait(a_task(), timeout_ms=1)
    assert ending is None
    assert (await desk.task(receipt.task)).state is State.QUEUED


async def test_who_asks_after_the_end_is_answered_at_once(desk: Desk) -> None:
    held = await desk.running(key="k")
    await desk.settle(held, Succeeded("1"))
    ending = await desk.wait(held.id, timeout_ms=0)
    assert ending is not None
    assert (ending.result, ending.at) == ("1", NOW)
    with pytest.raises(NotFound):
        await desk.wait("nobody", timeout_ms=0)


async def test_a_known_key_waits_for_the_first_ones_result(desk: Desk) -> None:
    key = Key("s", "k", "body")
    desk.sit()
    first = asyncio.create_task(desk.submit_and_wait(a_task(), timeout_ms=60_000, key=key))
    await wait_until(lambda: desk.inbox)
    second = asyncio.create_task(desk.submit_and_wait(a_task(), timeout_ms=60_000, key=key))
    await wait_until(lambda: len(desk.waiters) == 2)
    await desk.settle(desk.inbox[0], Succeeded("1"))
    endings = [ending for _, ending in await asyncio.gather(first, second)]
    assert endings[0] == endings[1] is not None


async def test_an_ending_elsewhere_is_found_by_looking_again(
    desk: Desk, clock: ManualClock
) -> None:
    held = await desk.running()
    waiting = asyncio.create_task(desk.wait(held.id, timeout_ms=60_000))
    await wait_until(lambda: len(desk.waiters) == 1)
    await Dispatcher(desk.backend, PROFILES, clock).settle(held, Succeeded("1"))
    await desk.reread()
    ending = await waiting
    assert ending is not None
    assert ending.result == "1"


async def test_a_caller_who_hangs_up_changes_nothing(desk: Desk) -> None:
    desk.sit()
    waiting = asyncio.create_task(desk.submit_and_wait(a_task(), timeout_ms=60_000))
    await wait_until(lambda: desk.inbox)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert len(desk.waiters) == 0
    assert await desk.settle(desk.inbox[0], Succeeded("1")) is Verdict.APPLIED


async def test_too_many_callers_are_refused_before_anything_is_submitted(desk: Desk) -> None:
    desk.waiters = Waiters(most=0)
    with pytest.raises(TooBusy):
        await desk.submit_and_wait(a_task(id="t"), timeout_ms=1)
    assert await desk.backend.tasks.get(["t"]) == [None]


# The sweep.


async def test_the_sweep_looks_at_everything_that_is_due(
    desk: Desk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarm, "BATCH", 3)
    await desk.submit_all([a_task(run_at=NOW + 10) for _ in range(8)])
    sweep = Alarm(desk).sweep
    assert await sweep() == 0
    clock.advance(10)
    assert await sweep() == 8
    assert await sweep() == 0
    assert desk.tally["task.queued"] == 8
    desk.sit(8)
    await wait_until(lambda: len(desk.inbox) == 8)


async def test_what_is_kept_long_enough_is_forgotten(desk: Desk, clock: ManualClock) -> None:
    held = await desk.running(profile="sync")
    await desk.settle(held, Succeeded("1"))
    clock.advance(PROFILES["sync"].retention_ms - 1)
    await Alarm(desk).sweep()
    assert (await desk.task(held.id)).result == "1"
    clock.advance(1)
    await Alarm(desk).sweep()
    assert await desk.backend.tasks.get([held.id]) == [None]


async def test_of_two_sweepers_one_acts(desk: Desk, clock: ManualClock) -> None:
    held = await desk.running()
    clock.advance(LEASE_MS)
    other = Dispatcher(desk.backend, PROFILES, clock)
    due = await desk.backend.tasks.due(now=clock.now(), limit=10)
    await asyncio.gather(*(one.apply_clock(due, clock.now()) for one in (desk, other)))
    assert (await desk.history(held.id)).count("task.reclaimed") == 1
    assert desk.tally["task.reclaimed"] + other.tally["task.reclaimed"] == 1


@pytest.mark.contract("S2-7")
async def test_an_overdue_task_is_told_of_once_and_may_still_succeed(
    desk: Desk, clock: ManualClock
) -> None:
    held = await desk.running(profile="told", expires_at=NOW + 1_000)
    clock.advance(1_000)
    for _ in range(3):
        await Alarm(desk).sweep()
    assert (await desk.task(held.id)).overdue
    assert await desk.settle(held, Succeeded("1")) is Verdict.APPLIED
    assert (await desk.history(held.id))[2:] == ["task.timeout", "task.succeeded"]


@pytest.mark.contract("R-5")
async def test_a_task_that_takes_its_workers_with_it_dies(desk: Desk, clock: ManualClock) -> None:
    receipt = await desk.submit(a_task())
    desk.sit(10)
    for lost in range(1, 6):
        await wait_until(lambda lost=lost: len(desk.inbox) == lost)  # type: ignore[misc]
        clock.advance(LEASE_MS)
        await Alarm(desk).sweep()
    task = await desk.task(receipt.task)
    assert (task.state, task.failures, task.retries) == (State.DEAD, 0, 0)
    assert (await desk.history(task.id))[-2:] == ["task.failed", "task.dlq"]


async def test_the_sweep_goes_on_when_the_ledger_comes_back(desk: Desk, clock: ManualClock) -> None:
    await desk.submit(a_task(run_at=NOW + 1))
    clock.advance(1)
    due, tried = desk.backend.tasks.due, asyncio.Event()

    async def away(**_: Any) -> Any:
        desk.backend.tasks.due = due  # type: ignore[method-assign]
        tried.set()
        raise LedgerUnavailable("away")

    desk.backend.tasks.due = away  # type: ignore[method-assign]
    running = asyncio.create_task(Alarm(desk, every_ms=1).run())
    await tried.wait()
    await wait_until(lambda: desk.tally["task.queued"] == 1)
    running.cancel()
    await asyncio.wait([running])


async def test_a_signal_to_a_task_that_reads_none_is_refused_in_the_end(desk: Desk) -> None:
    await desk.submit(a_task(id="t"))
    letters = [Letter(to="t", name="s", body="1")] * MAX_LETTERS
    await desk.backend.tasks.post(letters, now=NOW)
    with pytest.raises(Conflict, match="too many unread letters"):
        await desk.signal("t", "s", "1")
