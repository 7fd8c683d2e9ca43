"""A task that waits for a person, on every ledger: nothing but a decision lets it go."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from onward.core import machine
from onward.core.approval import ask
from onward.core.contract import Moved, Query, Verdict
from onward.core.outcome import Failed, Parked, Succeeded
from onward.core.task import State, Task
from onward.faults import Fault
from tests.contract.driver import Driver, submission
from tests.support import NOW, PROFILES, a_task, ids, replay

HOUR = 3_600_000
BAD = Failed(Fault(kind="InvalidInput", message="no"))


async def asked(driver: Driver, **fields: object) -> Task:
    return await driver.submit(waiting_for="approval", **fields)


@pytest.mark.contract("S1-11", "S4-10")
async def test_a_letter_cannot_forge_an_approval(driver: Driver) -> None:
    task = await asked(driver)
    moved = await driver.post(task.id, '{"approved":true}', '"yes"')
    assert moved == Moved([Verdict.APPLIED] * 2, frozenset()), "they lie there"
    assert await driver.task(task.id) == task
    assert await driver.claim() == []


@pytest.mark.contract("S1-11", "S4-10")
async def test_a_childs_end_cannot_forge_an_approval(driver: Driver) -> None:
    parent = await asked(driver)
    child = await driver.running(parent=parent.id, queue="c")
    assert await driver.settle(child, Succeeded("true")) is Verdict.APPLIED
    assert (await driver.task(parent.id)).state is State.WAITING


@pytest.mark.contract("S4-10")
async def test_a_letter_before_the_parking_cannot_forge_an_approval(driver: Driver) -> None:
    held = await driver.running()
    await driver.post(held.id, "1")
    await driver.settle(held, Parked(seen=0, journal="{}", waiting_for="approval"))
    assert (await driver.task(held.id)).state is State.WAITING


@pytest.mark.contract("S1-11", "S1-9")
async def test_an_approved_task_runs_with_its_letters(driver: Driver) -> None:
    task = await asked(driver)
    await driver.post(task.id, '"note"')
    assert await driver.intervene(task, machine.approve) is Verdict.APPLIED
    (held,) = await driver.claim()
    assert (held.id, [letter.body for letter in held.letters]) == (task.id, ['"note"'])
    assert await driver.history(task.id) == [
        "task.created", "approval.requested", "approval.approved", "task.claimed",
    ]  # fmt: skip


@pytest.mark.contract("S1-11", "S1-9", "S1-3")
async def test_a_rejected_task_has_failed_with_one_final_event(driver: Driver) -> None:
    task = await asked(driver)
    assert await driver.intervene(task, machine.reject) is Verdict.APPLIED
    assert (await driver.task(task.id)).state is State.FAILED
    assert await driver.history(task.id) == [
        "task.created", "approval.requested", "approval.rejected", "task.failed",
    ]  # fmt: skip
    assert await driver.claim() == []
    assert await driver.store.counts() == await driver.recount()


@pytest.mark.contract("N-5")
async def test_of_two_who_decide_at_once_one_is_refused(driver: Driver) -> None:
    for first, second in (
        (machine.approve, machine.reject),
        (machine.reject, machine.approve),
        (machine.approve, machine.approve),
        (machine.approve, machine.cancel),
    ):
        task = await asked(driver)
        verdicts = await asyncio.gather(
            driver.intervene(task, first), driver.intervene(task, second)
        )
        assert sorted(verdicts) == [Verdict.APPLIED, Verdict.MOVED]
        assert (await driver.task(task.id)).rev == task.rev + 1


@pytest.mark.contract("S1-11")
async def test_what_waits_for_a_person_is_never_due_unless_they_were_given_a_time(
    driver: Driver,
) -> None:
    await asked(driver)
    timed = await asked(driver, approval=ask("{}", NOW, expires_ms=HOUR).encode())
    assert await driver.store.due(now=NOW + HOUR - 1, limit=10) == []
    assert ids(await driver.store.due(now=NOW + 10**12, limit=10)) == [timed.id]


async def test_a_word_and_the_clock_at_once_are_one_decision(driver: Driver) -> None:
    task = await asked(driver, approval=ask("{}", NOW, expires_ms=HOUR).encode())
    profile = PROFILES[task.profile]
    word = machine.approve(task, NOW + HOUR - 1, profile)
    clock = machine.on_due(task, NOW + HOUR, profile)
    moved = await asyncio.gather(driver.apply(word), driver.apply(clock))
    assert [one.verdicts[0] for one in moved] == [Verdict.APPLIED, Verdict.MOVED]


@pytest.mark.contract("N-5")
async def test_approvals_are_found_by_what_is_waited_for_and_by_what_was_said(
    driver: Driver,
) -> None:
    plain = await driver.submit()
    parked = await driver.submit(waiting_for="event")
    open_, approved, rejected, canceled = [await asked(driver) for _ in range(4)]
    await driver.intervene(approved, machine.approve)
    await driver.intervene(rejected, machine.reject)
    await driver.intervene(canceled, machine.cancel)

    async def found(**fields: object) -> list[str]:
        return ids((await driver.store.find(msgspec.convert(fields, Query))).items)

    assert await found(waiting_for="approval") == [open_.id]
    assert await found(waiting_for="event") == [parked.id]
    assert await found(approval="open") == [open_.id]
    assert await found(approval="approved") == [approved.id]
    assert await found(approval="rejected", states=[State.FAILED]) == [rejected.id]
    assert await found(approval="expired") == []
    everybody = [canceled.id, rejected.id, approved.id, open_.id]
    assert await found(approval="all") == everybody
    assert plain.id not in everybody


@pytest.mark.contract("N-5")
async def test_approvals_come_a_page_at_a_time(driver: Driver) -> None:
    tasks = [await asked(driver) for _ in range(5)]
    first = await driver.store.find(Query(waiting_for="approval", limit=3))
    rest = await driver.store.find(Query(waiting_for="approval", limit=3, after=first.next))
    assert ids([*first.items, *rest.items]) == ids(tasks[::-1])
    assert rest.next is None


@pytest.mark.contract("S1-11", "S1-10")
async def test_a_replay_that_must_be_approved_waits_in_a_new_generation(driver: Driver) -> None:
    task = await asked(driver)
    await driver.intervene(task, machine.reject)
    rejected = await driver.task(task.id)
    await driver.apply(replay(rejected, driver.now, payload="[1]"))
    again = await driver.task(task.id)
    assert (again.state, again.generation, again.payload) == (State.WAITING, 2, "[1]")
    assert again.fingerprint is None
    assert await driver.intervene(again, machine.reject) is Verdict.APPLIED
    events = await driver.events_of(task.id)
    finals = [event.generation for event in events if event.type == "task.failed"]
    assert finals == [1, 2]


@pytest.mark.contract("S1-10", "N-5")
async def test_a_replay_at_a_rate_stands_in_the_ledger(driver: Driver) -> None:
    dead: list[Task] = []
    for _ in range(3):
        held = await driver.running()
        await driver.settle(held, BAD)
        dead.append(await driver.task(held.id))
    moves = [replay(task, driver.now, run_at=NOW + turn * 500) for turn, task in enumerate(dead)]
    assert (await driver.apply(*moves)).verdicts == [Verdict.APPLIED] * 3
    assert ids(await driver.claim(limit=3)) == [dead[0].id]
    assert ids(await driver.store.due(now=NOW + 999, limit=10)) == [dead[1].id]
    assert await driver.store.counts() == await driver.recount()


@pytest.mark.contract("S1-10")
async def test_two_replays_of_one_death_are_one_generation(driver: Driver) -> None:
    held = await driver.running()
    await driver.settle(held, BAD)
    dead = await driver.task(held.id)
    moved = await driver.apply(replay(dead, NOW), replay(dead, NOW))
    assert moved.verdicts == [Verdict.APPLIED, Verdict.MOVED]
    assert (await driver.task(held.id)).generation == 2


async def test_an_approval_holds_no_place_against_the_cap(driver: Driver) -> None:
    await asked(driver)
    inserted = await driver.insert(submission(a_task(), cap=1))
    assert inserted.receipts[0].fate == "fresh"
