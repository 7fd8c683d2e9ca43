"""Of several tasks with one key only one counts: unique and debounce as verdicts of `insert`."""

from __future__ import annotations

import asyncio

import pytest

from onward.core import machine
from onward.core.contended import LIVE, STATES, superseded
from onward.core.contract import Fate, Key, Receipt, Submission, UniqueGuard
from onward.core.outcome import Failed, Outcome, Released, Succeeded
from onward.core.policy import Overrides
from onward.core.task import Priority, State
from onward.faults import Fault
from onward.ledgers import open_backend
from tests.contract.driver import Driver, submission
from tests.contract.peers import SHARED, two_servers
from tests.servers import fresh_url, shared
from tests.support import NOW, PROFILES, a_task

WHILE_LIVE = UniqueGuard(LIVE, returns=True)
KEY = Key("console", "k", "body")
IN_5_S = Overrides(backoff_ms=(5_000,)).encode()


def unique(
    name: str = "u", rule: UniqueGuard = WHILE_LIVE, key: Key | None = None, **fields: object
) -> Submission:
    return submission(a_task(unique_key=name, **fields), unique=rule, key=key)


def debounced(name: str = "d", key: Key | None = None, **fields: object) -> Submission:
    fields.setdefault("run_at", NOW + 100)
    return submission(a_task(debounce_key=name, **fields), key=key)


async def receipt_of(driver: Driver, one: Submission) -> Receipt:
    return (await driver.insert(one)).receipts[0]


@pytest.mark.contract("L-8")
async def test_while_one_is_live_no_other_with_its_unique_key_is_taken(driver: Driver) -> None:
    first, other = unique(), unique("v")
    assert (await receipt_of(driver, first)).fate is Fate.FRESH
    assert (await receipt_of(driver, other)).fate is Fate.FRESH
    refused = unique()
    assert await receipt_of(driver, refused) == Receipt(Fate.HELD, first.task.id)
    assert await driver.store.get([refused.task.id]) == [None]
    (held, _) = await driver.claim(limit=2)
    assert (await receipt_of(driver, unique())).fate is Fate.HELD
    await driver.settle(held, Succeeded("1"))
    assert (await receipt_of(driver, unique())).fate is Fate.FRESH


@pytest.mark.contract("L-8")
@pytest.mark.parametrize("end", ["settle", "release", "retry"])
async def test_while_one_runs_no_other_is_taken(driver: Driver, end: str) -> None:
    while_running = UniqueGuard(STATES["running"], returns=True)
    many = [unique(rule=while_running, overrides=IN_5_S) for _ in range(20)]
    for one in many:
        assert (await receipt_of(driver, one)).fate is Fate.FRESH
    (held,) = await driver.claim()
    assert await receipt_of(driver, unique(rule=while_running)) == Receipt(Fate.HELD, held.id)
    while_queued = UniqueGuard(STATES["queued"], returns=True)
    assert await receipt_of(driver, unique(rule=while_queued)) == Receipt(
        Fate.HELD, many[-1].task.id
    )
    failed = Failed(Fault(kind="ServiceUnavailable", message=""))
    outcomes: dict[str, Outcome] = {
        "settle": Succeeded("1"), "release": Released(), "retry": failed,
    }  # fmt: skip
    await driver.settle(held, outcomes[end])
    assert (await receipt_of(driver, unique(rule=while_running))).fate is Fate.FRESH
    (again,) = await driver.claim()
    assert await receipt_of(driver, unique(rule=while_running)) == Receipt(Fate.HELD, again.id)


@pytest.mark.contract("L-7", "L-8")
async def test_one_that_takes_a_waiting_ones_place_is_met_by_its_own_unique_key(
    driver: Driver,
) -> None:
    first = debounced(unique_key="old")
    await driver.insert(first)
    newer = debounced(unique_key="new")
    found = await driver.task(first.task.id)
    await driver.apply(superseded(found, newer, driver.now, PROFILES["console"]))
    assert await receipt_of(driver, unique("new")) == Receipt(Fate.HELD, first.task.id)
    assert (await receipt_of(driver, unique("old"))).fate is Fate.FRESH
    plain = superseded(
        await driver.task(first.task.id), debounced(), driver.now, PROFILES["console"]
    )
    await driver.apply(plain)
    assert (await receipt_of(driver, unique("new"))).fate is Fate.FRESH


def looked_at(flavour: str) -> int:
    """How often fields of tasks were read."""
    stats = shared(flavour).client.info("commandstats")
    found = (stats.get(f"cmdstat_{name}", {}) for name in ("hget", "hmget"))
    return sum(int(one.get("calls", 0)) for one in found)


@pytest.mark.contract("L-8")
@pytest.mark.parametrize("flavour", ["redis7", "valkey"])
async def test_what_waits_behind_one_that_runs_costs_a_submission_nothing(flavour: str) -> None:
    """On Redis nothing else goes on meanwhile: it may not look at each that is queued."""
    url = fresh_url(flavour)
    driver = Driver(open_backend(url))
    rule = UniqueGuard(STATES["running"], returns=True)
    for _ in range(4):
        await driver.insert(*[unique(rule=rule) for _ in range(100)])
    before = looked_at(flavour)
    await driver.insert(*[unique(rule=rule) for _ in range(50)])
    assert looked_at(flavour) - before < 400
    await driver.backend.close()


@pytest.mark.contract("L-8")
async def test_a_replay_holds_its_unique_key_again(driver: Driver) -> None:
    first = unique()
    await driver.insert(first)
    (held,) = await driver.claim()
    await driver.settle(held, Failed(Fault(kind="InvalidInput", message="no")))
    await driver.intervene(await driver.task(held.id), machine.replay)
    assert await receipt_of(driver, unique()) == Receipt(Fate.HELD, first.task.id)


@pytest.mark.contract("L-8")
async def test_only_the_states_that_count_refuse(driver: Driver) -> None:
    queued = UniqueGuard(STATES["queued"], returns=True)
    running = UniqueGuard(STATES["running"], returns=True)
    first = unique(rule=queued)
    await driver.insert(first)
    assert (await receipt_of(driver, unique(rule=queued))).fate is Fate.HELD
    await driver.claim()
    assert await receipt_of(driver, unique(rule=running)) == Receipt(Fate.HELD, first.task.id)
    second = unique(rule=queued)
    assert (await receipt_of(driver, second)).fate is Fate.FRESH
    assert await receipt_of(driver, unique()) == Receipt(Fate.HELD, second.task.id)


@pytest.mark.contract("L-8")
async def test_in_one_call_the_first_of_a_unique_key_is_taken(driver: Driver) -> None:
    batch = [unique() for _ in range(4)]
    receipts = (await driver.insert(*batch)).receipts
    first = batch[0].task.id
    assert receipts == [Receipt(Fate.FRESH, first)] + [Receipt(Fate.HELD, first)] * 3


@pytest.mark.contract("L-8")
async def test_the_idempotency_key_is_looked_at_first_and_goes_to_the_holder(
    driver: Driver,
) -> None:
    first, second = unique(), unique(key=KEY)
    await driver.insert(first)
    assert await receipt_of(driver, second) == Receipt(Fate.HELD, first.task.id)
    assert await receipt_of(driver, unique(key=KEY)) == Receipt(Fate.KNOWN, first.task.id)
    (held,) = await driver.claim()
    await driver.settle(held, Succeeded("1"))
    assert await receipt_of(driver, unique(key=KEY)) == Receipt(Fate.KNOWN, first.task.id)


@pytest.mark.contract("L-8")
async def test_the_key_of_one_that_was_refused_is_free(driver: Driver) -> None:
    refuse = UniqueGuard(LIVE, returns=False)
    await driver.insert(unique())
    assert (await receipt_of(driver, unique(rule=refuse, key=KEY))).fate is Fate.HELD
    other = submission(a_task(), key=KEY)
    assert await receipt_of(driver, other) == Receipt(Fate.FRESH, other.task.id)


@pytest.mark.contract("L-8", "L-7")
@pytest.mark.parametrize("name", SHARED)
async def test_of_two_servers_that_insert_at_once_one_is_first(name: str) -> None:
    async with two_servers(name) as (one, other):
        drivers = Driver(one), Driver(other)
        for turn in range(10):
            for made in (unique, debounced):
                key = f"{made.__name__}{turn}"
                receipts = await asyncio.gather(
                    *[receipt_of(driver, made(key)) for driver in drivers for _ in range(3)]
                )
                fresh = [each.task for each in receipts if each.fate is Fate.FRESH]
                assert len(fresh) == 1
                assert {each.task for each in receipts} == set(fresh)


@pytest.mark.contract("L-7")
async def test_a_debounced_one_meets_the_one_that_waits(driver: Driver) -> None:
    first, second = debounced(), debounced(key=KEY)
    await driver.insert(first)
    assert await receipt_of(driver, second) == Receipt(Fate.WAITS, first.task.id)
    third = submission(a_task(), key=KEY)  # nothing has taken the key yet
    assert (await receipt_of(driver, third)).fate is Fate.FRESH
    assert (await receipt_of(driver, debounced("e"))).fate is Fate.FRESH


@pytest.mark.contract("L-7")
async def test_what_waits_becomes_the_newest_in_all_that_it_does(driver: Driver) -> None:
    first = debounced(payload='{"n":1}', queue="slow")
    await driver.insert(first)
    newest = debounced(
        payload='{"n":2}' + " " * 5_000, queue="fast", priority=Priority.HIGH, run_at=NOW + 900,
        tags='["x"]', attempt_ms=7, key=KEY,
    )  # fmt: skip
    assert (await receipt_of(driver, newest)).fate is Fate.WAITS
    found = await driver.task(first.task.id)
    move = superseded(found, newest, NOW, PROFILES[found.profile])
    await driver.apply(move)
    assert (await driver.apply(move)).verdicts[0] == "moved"
    now = await driver.task(first.task.id)
    assert (now.payload, now.queue, now.priority) == (newest.task.payload, "fast", Priority.HIGH)
    assert (now.tags, now.attempt_ms, now.run_at, now.due_at) == ('["x"]', 7, NOW + 900, NOW + 900)
    assert (now.state, now.created_at, now.fence) == (State.SCHEDULED, found.created_at, 0)
    assert await driver.history(now.id) == ["task.created", "task.superseded"]
    assert await driver.store.counts() == await driver.recount()
    assert await receipt_of(driver, debounced(key=KEY)) == Receipt(Fate.KNOWN, now.id)
    driver.now = NOW + 900
    await driver.intervene(now, machine.on_due)
    assert [task.payload for task in await driver.claim("fast")] == [newest.task.payload]
    assert await driver.store.counts() == await driver.recount()


@pytest.mark.contract("L-7")
async def test_a_retry_that_waits_is_no_longer_debounced(driver: Driver) -> None:
    first = debounced()
    await driver.insert(first)
    driver.now = NOW + 100
    await driver.intervene(await driver.task(first.task.id), machine.on_due)
    (held,) = await driver.claim()
    await driver.settle(held, Failed(Fault(kind="NetworkTimeout", message="later")))
    assert (await driver.task(held.id)).state is State.SCHEDULED
    second = debounced(run_at=NOW + 500)
    assert (await receipt_of(driver, second)).fate is Fate.FRESH
    third = debounced(run_at=NOW + 600)
    assert await receipt_of(driver, third) == Receipt(Fate.WAITS, second.task.id)


@pytest.mark.contract("L-7")
async def test_a_canceled_one_is_waited_with_no_longer(driver: Driver) -> None:
    first = debounced()
    await driver.insert(first)
    await driver.intervene(await driver.task(first.task.id), machine.cancel)
    assert (await receipt_of(driver, debounced())).fate is Fate.FRESH


@pytest.mark.contract("B-3")
async def test_tasks_are_found_by_when_they_were_made(driver: Driver) -> None:
    from onward.core.contract import Query

    made = [await driver.submit(created_at=NOW + at) for at in (0, 10, 20)]
    found = await driver.store.find(Query(created_from=NOW + 10, created_before=NOW + 20))
    assert [task.id for task in found.items] == [made[1].id]
