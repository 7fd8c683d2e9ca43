"""The one write path, on a ledger in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from onward.core import dispatch, machine
from onward.core.alarm import Alarm
from onward.core.clock import ManualClock
from onward.core.contract import MAX_LETTERS, Key, LeaseRenewal, LeaseStatus, Verdict
from onward.core.dispatch import TRIES, Dispatcher
from onward.core.errors import Conflict, KeyReused, LedgerUnavailable, NotFound, QueueFull
from onward.core.outcome import Lost, Outcome, Parked, Released, Succeeded
from onward.core.policy import CANCEL_GRACE_MS
from onward.core.task import FINAL_EVENTS, Letter, State
from tests.core.dispatcher import BAD, BUSY, Observed, before_applying, dispatcher
from tests.support import LEASE_MS, NOW, PROFILES, a_task, an_ask, ids, wait_until

__all__ = ["dispatcher"]


# Coming in.


async def test_a_submission_is_in_the_ledger_when_it_is_answered(dispatcher: Observed) -> None:
    receipt = await dispatcher.submit(a_task(id="t"))
    assert (receipt.task, receipt.running) == ("t", False)
    assert (await dispatcher.task("t")).state is State.QUEUED
    assert +dispatcher.tally == {"task.created": 1}


async def test_concurrent_submissions_share_one_trip(dispatcher: Observed) -> None:
    calls = 0
    insert = dispatcher.backend.tasks.insert

    async def counted(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return await insert(*args, **named)

    dispatcher.backend.tasks.insert = counted  # type: ignore[method-assign]
    await asyncio.gather(*(dispatcher.submit(a_task()) for _ in range(100)))
    receipts = await dispatcher.submit_all([a_task() for _ in range(50)])
    assert (calls, len(receipts)) == (2, 50)


@pytest.mark.contract("S0-6")
async def test_a_full_queue_is_said_so(dispatcher: Observed) -> None:
    await dispatcher.submit(a_task(), cap=1)
    with pytest.raises(QueueFull, match="'q' holds 1 of 1"):
        await dispatcher.submit(a_task(), cap=1)


@pytest.mark.contract("S1-8")
async def test_a_key_is_known_or_reused(dispatcher: Observed) -> None:
    first = await dispatcher.submit(a_task(), key=Key("s", "k", "body"))
    again = await dispatcher.submit(a_task(), key=Key("s", "k", "body"))
    assert again.task == first.task
    with pytest.raises(KeyReused):
        await dispatcher.submit(a_task(), key=Key("s", "k", "another"))


@pytest.mark.contract("S0-10")
async def test_new_work_goes_straight_into_an_idle_hand(dispatcher: Observed) -> None:
    worker_slots = dispatcher.add_worker(2)
    receipts = []
    for _ in range(3):
        await dispatcher.idle()
        receipts.append(await dispatcher.submit(a_task()))
    assert [receipt.running for receipt in receipts] == [True, True, False]
    assert ids(dispatcher.inbox) == [receipt.task for receipt in receipts[:2]]
    dispatcher.slots.free(worker_slots)
    await wait_until(lambda: len(dispatcher.inbox) == 3)
    assert dispatcher.tally["task.claimed"] == 3


async def test_work_that_waits_is_claimed_when_a_worker_comes(dispatcher: Observed) -> None:
    receipts = [await dispatcher.submit(a_task()) for _ in range(3)]
    dispatcher.add_worker(2)
    await wait_until(lambda: len(dispatcher.inbox) == 2)
    assert ids(dispatcher.inbox) == [receipt.task for receipt in receipts[:2]]


async def test_a_ledger_that_is_away_costs_no_slots(dispatcher: Observed) -> None:
    worker_slots = dispatcher.add_worker(2)
    await dispatcher.idle()
    insert = dispatcher.backend.tasks.insert

    async def away(*_: Any, **__: Any) -> Any:
        raise LedgerUnavailable("away")

    dispatcher.backend.tasks.insert = away  # type: ignore[method-assign]
    with pytest.raises(LedgerUnavailable):
        await dispatcher.submit(a_task())
    assert worker_slots.free == 2
    dispatcher.backend.tasks.insert = insert  # type: ignore[method-assign]
    assert (await dispatcher.submit(a_task())).running


async def test_an_undelivered_claim_goes_back_even_if_the_ledger_is_away_just_then(
    dispatcher: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "AGAIN_S", 0.01)
    receipt = await dispatcher.submit(a_task(queue="q"))
    (given,) = await dispatcher.backend.tasks.claim([an_ask("q", worker="gone")], now=NOW)

    async def fail() -> None:
        raise LedgerUnavailable("away")

    before_applying(dispatcher, fail)
    dispatcher._release(given)
    await wait_until(lambda: dispatcher.tally["task.released"])
    task = await dispatcher.task(receipt.task)
    assert (task.state, task.attempt) == (State.QUEUED, 0)


async def test_what_is_done_elsewhere_to_a_task_in_hand_is_looked_at_at_once(
    dispatcher: Observed, clock: ManualClock
) -> None:
    held = await dispatcher.running()
    await Dispatcher(dispatcher.backend, PROFILES, clock).cancel(held.id)
    dispatcher.on_news([], ["somebody else's"], {})
    assert dispatcher.stopped == []
    dispatcher.on_news([], [held.id], {})
    await wait_until(lambda: dispatcher.stopped == [(held.id, False)])


async def test_a_claim_that_failed_is_tried_again_at_the_next_look(dispatcher: Observed) -> None:
    await dispatcher.submit(a_task())
    claim, failed = dispatcher.backend.tasks.claim, asyncio.Event()

    async def away(*_: Any, **__: Any) -> Any:
        failed.set()
        raise LedgerUnavailable("away")

    dispatcher.backend.tasks.claim = away  # type: ignore[method-assign]
    worker_slots = dispatcher.add_worker()
    await failed.wait()
    await wait_until(lambda: worker_slots.free == 1)
    dispatcher.backend.tasks.claim = claim  # type: ignore[method-assign]
    await dispatcher.reread()
    await wait_until(lambda: len(dispatcher.inbox) == 1)


async def test_work_for_a_worker_who_left_meanwhile_goes_back_unburned(
    dispatcher: Observed,
) -> None:
    receipt = await dispatcher.submit(a_task())
    worker_slots = dispatcher.add_worker()
    claim = dispatcher.backend.tasks.claim

    async def slow(*args: Any, **named: Any) -> Any:
        claimed = await claim(*args, **named)
        dispatcher.slots.remove(worker_slots)
        return claimed

    dispatcher.backend.tasks.claim = slow  # type: ignore[method-assign]
    await wait_until(lambda: dispatcher.tally["task.released"] == 1)
    task = await dispatcher.task(receipt.task)
    assert (task.state, task.attempt, task.fence) == (State.QUEUED, 0, 1)
    assert dispatcher.inbox == []


# Being held.


async def test_a_beat_renews_everything_that_is_held(
    dispatcher: Observed, clock: ManualClock
) -> None:
    held = await dispatcher.running()
    clock.advance(20_000)
    await dispatcher.beat()
    assert (await dispatcher.task(held.id)).lease_until == NOW + 20_000 + LEASE_MS
    await dispatcher.settle(held, Succeeded("1"))
    await dispatcher.beat()
    assert dispatcher.slots.busy() == 0


async def test_who_lost_a_task_is_told_to_drop_it(dispatcher: Observed, clock: ManualClock) -> None:
    held = await dispatcher.running()
    clock.advance(LEASE_MS)
    other = Dispatcher(dispatcher.backend, PROFILES, clock)
    await Alarm(other).sweep()
    await dispatcher.beat()
    assert dispatcher.stopped == [(held.id, True)]
    assert await dispatcher.extend(LeaseRenewal(held.id, held.fence, NOW)) is LeaseStatus.LOST


async def test_who_is_asked_to_stop_elsewhere_hears_it_at_the_next_beat(
    dispatcher: Observed, clock: ManualClock
) -> None:
    held = await dispatcher.running()
    await Dispatcher(dispatcher.backend, PROFILES, clock).cancel(held.id)
    assert dispatcher.stopped == []
    await dispatcher.beat()
    assert dispatcher.stopped == [(held.id, False)]


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
async def test_every_outcome_finds_its_state(
    dispatcher: Observed, outcome: Outcome, state: State
) -> None:
    held = await dispatcher.running()
    assert await dispatcher.settle(held, outcome) is Verdict.APPLIED
    assert (await dispatcher.task(held.id)).state is state
    assert dispatcher.slots.busy() == 0


@pytest.mark.parametrize("outcome", [Succeeded("1"), BUSY, Released(), Lost()])
async def test_a_cancel_set_meanwhile_is_never_lost(dispatcher: Observed, outcome: Outcome) -> None:
    """Decided on the claim, refused on its rev, decided again on what is there now."""
    held = await dispatcher.running()
    await dispatcher.cancel(held.id)
    assert await dispatcher.settle(held, outcome) is Verdict.APPLIED
    task = await dispatcher.task(held.id)
    assert (task.state, task.result) == (State.CANCELED, None)


async def test_a_task_that_changes_at_every_try_is_given_up_at_last(dispatcher: Observed) -> None:
    held = await dispatcher.running()

    async def meddle() -> None:
        task = await dispatcher.task(held.id)
        await dispatcher.backend.tasks.apply(
            [machine.event_only(task, "task.remark", None)], now=NOW
        )

    before_applying(dispatcher, meddle, times=TRIES)
    assert await dispatcher.settle(held, Succeeded("1")) is Verdict.APPLIED
    held = await dispatcher.running()
    before_applying(dispatcher, meddle, times=TRIES + 1)
    assert await dispatcher.settle(held, Succeeded("1")) is Verdict.MOVED


async def test_an_outcome_that_the_ledger_refuses_is_reported_and_costs_no_other(
    dispatcher: Observed,
) -> None:
    odd, good = await dispatcher.running(), await dispatcher.running()
    ended = machine.event_only(
        await dispatcher.task(odd.id), "task.succeeded", None
    )  # and yet it runs
    await dispatcher.backend.tasks.apply([ended], now=NOW)
    with capture_logs() as logs:
        verdicts = await asyncio.gather(
            *(dispatcher.settle(one, Succeeded("1")) for one in (odd, good))
        )
    assert verdicts == [Verdict.REFUSED, Verdict.APPLIED]
    said = [(line["event"], line["task"]) for line in logs if line["log_level"] == "error"]
    assert said == [("the ledger refuses this outcome", odd.id)]


@pytest.mark.contract("S0-5")
async def test_a_late_result_is_recorded_and_not_applied(
    dispatcher: Observed, clock: ManualClock
) -> None:
    stale = await dispatcher.running()
    clock.advance(LEASE_MS)
    await Alarm(dispatcher).sweep()
    assert await dispatcher.settle(stale, Succeeded('"late"')) is Verdict.STALE
    task = await dispatcher.task(stale.id)
    assert (task.state, task.result) == (State.QUEUED, None)
    assert (await dispatcher.history(stale.id))[-1] == "task.late_result"
    dispatcher.add_worker()
    await wait_until(lambda: len(dispatcher.inbox) == 2)
    assert await dispatcher.settle(stale, BAD) is Verdict.STALE
    assert await dispatcher.settle(dispatcher.inbox[1], Succeeded('"on time"')) is Verdict.APPLIED
    assert (await dispatcher.task(stale.id)).result == '"on time"'
    assert await dispatcher.settle(stale, Succeeded('"late"')) is Verdict.STALE
    history = await dispatcher.history(stale.id)
    assert history.count("task.late_result") == 3
    assert [type_ for type_ in history if type_ in FINAL_EVENTS] == ["task.succeeded"]


async def test_a_late_handing_back_is_not_worth_a_word(
    dispatcher: Observed, clock: ManualClock
) -> None:
    stale = await dispatcher.running()
    clock.advance(LEASE_MS)
    await Alarm(dispatcher).sweep()
    for outcome in (Released(), Lost()):
        assert await dispatcher.settle(stale, outcome) is Verdict.STALE
    assert "task.late_result" not in await dispatcher.history(stale.id)


async def test_a_result_for_a_forgotten_task_is_gone(dispatcher: Observed) -> None:
    held = await dispatcher.running()
    await dispatcher.settle(held, Succeeded("1"))
    await dispatcher.backend.tasks.purge([held.id], now=NOW)
    assert await dispatcher.settle(held, Succeeded("2")) is Verdict.GONE


async def test_one_late_settlement_does_not_hold_up_the_others(dispatcher: Observed) -> None:
    late, fine = await dispatcher.running(), await dispatcher.running()
    await dispatcher.settle(late, Succeeded("1"))
    verdicts = await asyncio.gather(
        dispatcher.settle(late, Succeeded("2")), dispatcher.settle(fine, Succeeded("3"))
    )
    assert list(verdicts) == [Verdict.STALE, Verdict.APPLIED]


# Interventions.


async def test_cancelling_running_work_reaches_its_worker(
    dispatcher: Observed, clock: ManualClock
) -> None:
    held = await dispatcher.running()
    task = await dispatcher.cancel(held.id)
    assert (task.state, task.cancel_by) == (State.RUNNING, NOW + CANCEL_GRACE_MS)
    assert dispatcher.stopped == [(held.id, False)]
    await dispatcher.cancel(held.id)
    assert (await dispatcher.history(held.id)).count("task.canceling") == 1
    clock.advance(CANCEL_GRACE_MS)
    await Alarm(dispatcher).sweep()
    assert (await dispatcher.task(held.id)).state is State.CANCELED
    assert dispatcher.stopped[-1] == (held.id, True)


async def test_a_worker_that_dies_while_it_should_stop_does_not_bring_the_task_back(
    dispatcher: Observed, clock: ManualClock
) -> None:
    held = await dispatcher.running()
    clock.advance(LEASE_MS - 1)
    await dispatcher.cancel(held.id)
    clock.advance(1)
    await Alarm(dispatcher).sweep()
    assert (await dispatcher.task(held.id)).state is State.CANCELED


async def test_cancelling_twice_or_nothing_is_refused(dispatcher: Observed) -> None:
    receipt = await dispatcher.submit(a_task())
    assert (await dispatcher.cancel(receipt.task)).state is State.CANCELED
    with pytest.raises(Conflict, match="already over: canceled"):
        await dispatcher.cancel(receipt.task)
    for verb in (dispatcher.cancel, dispatcher.replay, dispatcher.abandon):
        with pytest.raises(NotFound):
            await verb("nobody")


async def test_a_cancel_that_was_overtaken_is_decided_again(dispatcher: Observed) -> None:
    receipt = await dispatcher.submit(a_task())

    async def claim() -> None:
        dispatcher.add_worker()
        await wait_until(lambda: dispatcher.inbox)

    before_applying(dispatcher, claim)
    assert (await dispatcher.cancel(receipt.task)).state is State.RUNNING
    assert (await dispatcher.history(receipt.task))[-1] == "task.canceling"


async def test_a_dead_letter_is_replayed_or_abandoned(dispatcher: Observed) -> None:
    held = await dispatcher.running()
    for verb in (dispatcher.replay, dispatcher.abandon):
        with pytest.raises(Conflict):
            await verb(held.id)
    await dispatcher.settle(held, BAD)
    task = await dispatcher.replay(held.id, payload='{"mended":1}')
    assert (task.state, task.generation, task.payload) == (State.QUEUED, 2, '{"mended":1}')
    dispatcher.add_worker()
    await wait_until(lambda: len(dispatcher.inbox) == 2)
    await dispatcher.settle(dispatcher.inbox[1], BAD)
    assert (await dispatcher.abandon(held.id)).state is State.FAILED
    with pytest.raises(Conflict, match="no dead letter"):
        await dispatcher.abandon(held.id)


async def test_a_signal_wakes_a_parked_task(dispatcher: Observed) -> None:
    held = await dispatcher.running()
    await dispatcher.settle(held, Parked(seen=0, journal='"j"', waiting_for="event"))
    dispatcher.add_worker()
    await dispatcher.signal(held.id, "go", '"on"')
    await wait_until(lambda: len(dispatcher.inbox) == 2)
    again = dispatcher.inbox[1]
    assert (again.id, again.journal, again.letters[0].body) == (held.id, '"j"', '"on"')
    await dispatcher.settle(again, Succeeded("1"))
    with pytest.raises(NotFound):
        await dispatcher.signal(held.id, "go", "1")


async def test_children_are_born_by_parking_and_wake_their_parent(dispatcher: Observed) -> None:
    held = await dispatcher.running()
    child = a_task(id="child", queue="c", parent=held.id)
    parked = Parked(seen=0, journal="{}", waiting_for="children", spawn=(child,))
    worker_slots = dispatcher.add_worker(2, queues="q c")
    await dispatcher.settle(held, parked)
    await wait_until(lambda: len(dispatcher.inbox) == 2)
    await dispatcher.settle(dispatcher.inbox[1], Succeeded("1"))
    await wait_until(lambda: len(dispatcher.inbox) == 3)
    assert (dispatcher.inbox[2].id, dispatcher.inbox[2].letters[0].name) == (held.id, "child")
    assert worker_slots.free == 0


@pytest.mark.contract("K-5")
async def test_children_have_the_owner_of_their_parent(dispatcher: Observed) -> None:
    held = await dispatcher.running(owner="key")
    child = a_task(id="child", queue="c", parent=held.id, owner="forged")
    parked = Parked(seen=0, journal="{}", waiting_for="children", spawn=(child,))
    await dispatcher.settle(held, parked)
    assert (await dispatcher.task("child")).owner == "key"


async def test_a_signal_to_a_task_that_reads_none_is_refused_in_the_end(
    dispatcher: Observed,
) -> None:
    await dispatcher.submit(a_task(id="t"))
    letters = [Letter(to="t", name="s", body="1")] * MAX_LETTERS
    await dispatcher.backend.tasks.post(letters, now=NOW)
    with pytest.raises(Conflict, match="too many unread letters"):
        await dispatcher.signal("t", "s", "1")
