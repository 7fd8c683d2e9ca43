"""Looking: due, get, find, position, counts and the event log."""

from __future__ import annotations

import msgspec
import pytest

from onward.core import machine
from onward.core.contract import LeaseRenewal, Query, Without
from onward.core.outcome import Failed, Lost, Parked, Released
from onward.core.policy import Overrides
from onward.core.task import Event, Lane, Priority, State, Task
from onward.faults import Fault
from tests.contract.driver import Driver, submission
from tests.support import LEASE_MS, NOW, a_task, an_ask, ids, replay

BAD = Failed(Fault(kind="InvalidInput", message="no such needle"))
NO_DELAY = Overrides(backoff_ms=(0,)).encode()


# Due.


async def test_what_is_due_comes_soonest_first_and_bounded(driver: Driver) -> None:
    late = await driver.submit(run_at=NOW + 30)
    soon = await driver.submit(run_at=NOW + 10)
    await driver.submit(run_at=NOW + 31)
    await driver.submit()
    assert await driver.store.due(now=NOW + 9, limit=10) == []
    assert await driver.store.due(now=NOW + 10, limit=10) == [soon]
    assert await driver.store.due(now=NOW + 30, limit=10) == [soon, late]
    assert await driver.store.due(now=NOW + 30, limit=1) == [soon]


async def test_every_kind_of_alarm_rings(driver: Driver) -> None:
    lease = await driver.running(queue="lease")
    attempt = await driver.running(queue="attempt", attempt_ms=1_000)
    age = await driver.submit(queue="age", expires_at=NOW + 2_000)
    start = await driver.submit(queue="start", start_by=NOW + 3_000)
    over = await driver.finished(queue="over", profile="sync")
    due = await driver.store.due(now=NOW + LEASE_MS, limit=10)
    assert ids(due) == [attempt.id, age.id, start.id, lease.id]
    assert ids(await driver.store.due(now=NOW + 3_600_000, limit=10))[-1] == over.id


async def test_the_dead_are_never_due(driver: Driver) -> None:
    held = await driver.running()
    await driver.settle(held, BAD)
    assert await driver.store.due(now=NOW + 10**12, limit=10) == []


# Get and find.


async def test_get_answers_in_the_order_asked(driver: Driver) -> None:
    one, two = await driver.submit_some(2)
    assert await driver.store.get([two.id, "nobody", one.id, two.id]) == [two, None, one, two]
    assert await driver.store.get([]) == []


async def test_get_takes_a_long_list(driver: Driver) -> None:
    batch = [submission(a_task()) for _ in range(600)]
    await driver.insert(*batch)
    found = await driver.store.get([item.task.id for item in batch])
    assert [task.id for task in found if task] == [item.task.id for item in batch]


async def test_find_is_newest_first_in_pages(driver: Driver) -> None:
    tasks = await driver.submit_some(7)
    newest = ids(tasks)[::-1]
    found: list[str] = []
    after, pages = None, 0
    while True:
        page = await driver.store.find(Query(limit=3, after=after))
        found += ids(page.items)
        pages += 1
        after = page.next
        if after is None:
            break
    assert (found, pages) == (newest, 3)


async def test_a_page_that_is_just_full_says_whether_more_follows(driver: Driver) -> None:
    await driver.submit_some(3)
    assert (await driver.store.find(Query(limit=3))).next is None
    assert (await driver.store.find(Query(limit=2))).next is not None
    assert (await driver.store.find(Query(queue="nobody's"))).items == []


async def test_pages_are_not_disturbed_by_what_comes_meanwhile(driver: Driver) -> None:
    tasks = await driver.submit_some(4)
    page = await driver.store.find(Query(limit=2))
    await driver.submit_some(3)
    rest = await driver.store.find(Query(limit=2, after=page.next))
    assert ids([*page.items, *rest.items]) == ids(tasks)[::-1]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (Query(states=frozenset({State.QUEUED, State.SCHEDULED})), "cba"),
        (Query(states=frozenset({State.DEAD})), "d"),
        (Query(profiles=frozenset({"sync"})), "b"),
        (Query(profiles=frozenset({"sync", "console"})), "dcba"),
        (Query(type="other"), "a"),
        (Query(queue="qb"), "b"),
        (Query(session="s"), "ca"),
        (Query(owner="k"), "ba"),
        (Query(owner="k", session="s"), "a"),
        (Query(parent="p"), "b"),
        (Query(text="needle"), "dc"),
        (Query(text="id-a"), "a"),
        (Query(text="othe"), "a"),
        (Query(text="%"), ""),
        (Query(session="s", type="mail"), "c"),
        (Query(session="s", limit=1), "c"),
        (Query(states=frozenset({State.RUNNING})), ""),
        (Query(finished_from=NOW), "d"),
        (Query(finished_before=NOW), ""),
        (Query(finished_from=NOW, finished_before=NOW + 1_000), "d"),
        (Query(without=Without(type=frozenset({"other"}))), "dcb"),
        (Query(without=Without(queue=frozenset({"qa", "qb"}))), "dc"),
        (Query(without=Without(session=frozenset({"s"}))), "db"),
        (Query(without=Without(session=frozenset({"other"}))), "dcba"),
        (Query(session="s", without=Without(queue=frozenset({"qa"}))), "c"),
    ],
)
async def test_find_filters(driver: Driver, query: Query, expected: str) -> None:
    await driver.submit(id="id-a", queue="qa", type="other", session="s", owner="k")
    await driver.submit(id="id-b", queue="qb", profile="sync", parent="p", owner="k")
    await driver.submit(id="id-c", queue="qc", session="s", payload='["needle"]', run_at=NOW + 9)
    held = await driver.running(id="id-d", queue="qd")
    await driver.settle(held, BAD)
    page = await driver.store.find(query)
    assert "".join(task.id[-1] for task in page.items) == expected


async def test_find_leaves_out_tags_batches_and_partitions(driver: Driver) -> None:
    await driver.submit(id="id-a", tags='["red"]', batch="b1", partition="p1")
    await driver.submit(id="id-b", tags='["blue","red"]', partition="p2")
    await driver.submit(id="id-c", tags='["blue"]', batch="b2")
    await driver.submit(id="id-d")
    for without, expected in (
        (Without(tags=frozenset({"red"})), "dc"),
        (Without(tags=frozenset({"red", "blue"})), "d"),
        (Without(batch=frozenset({"b1"})), "dcb"),
        (Without(partition=frozenset({"p1", "p2"})), "dc"),
        (Without(partition=frozenset({"p2"}), tags=frozenset({"blue"})), "da"),
    ):
        page = await driver.store.find(Query(without=without))
        assert "".join(task.id[-1] for task in page.items) == expected, without


async def test_find_by_fingerprint_groups_the_dead(driver: Driver) -> None:
    for _ in range(2):
        await driver.settle(await driver.running(), BAD)
    await driver.settle(await driver.running(), Failed(Fault(kind="AuthError", message="x")))
    dead = await driver.all()
    page = await driver.store.find(Query(fingerprint=dead[0].fingerprint))
    assert ids(page.items) == ids(dead[1::-1])


# What has waited longest.


@pytest.mark.contract("N-5")
async def test_open_approvals_are_found_the_longest_open_first(driver: Driver) -> None:
    asked = []
    for _ in range(3):
        driver.now += 1_000
        asked.append(await driver.submit(waiting_for="approval", type="deploy"))
    found = await driver.store.open_approvals(2)
    assert [(one.task, one.type, one.generation, one.asked_at) for one in found] == [
        (task.id, "deploy", 1, task.created_at) for task in asked[:2]
    ]
    await driver.intervene(asked[0], machine.cancel)
    await driver.submit(waiting_for="timer")
    assert [one.task for one in await driver.store.open_approvals(9)] == ids(asked[1:])


# Position.


@pytest.mark.contract("S0-3")
async def test_position_counts_from_one(driver: Driver) -> None:
    tasks = await driver.submit_some(3)
    assert [await driver.store.position(task.id) for task in tasks] == [1, 2, 3]
    await driver.claim()
    assert [await driver.store.position(task.id) for task in tasks] == [None, 1, 2]


@pytest.mark.contract("S0-3")
async def test_urgent_work_stands_before_everybody_else(driver: Driver) -> None:
    low = await driver.submit(priority=Priority.LOW)
    normal = await driver.submit()
    high = await driver.submit(priority=Priority.HIGH)
    await driver.submit(queue="other", priority=Priority.HIGH)
    positions = [await driver.store.position(task.id) for task in (high, normal, low)]
    assert positions == [1, 2, 3]


async def test_only_queued_work_has_a_position(driver: Driver) -> None:
    waiting = await driver.submit(waiting_for="event")
    scheduled = await driver.submit(run_at=NOW + 1)
    over = await driver.finished()
    for id in (waiting.id, scheduled.id, over.id, "nobody"):
        assert await driver.store.position(id) is None


async def test_position_is_exact_up_to_a_thousand(driver: Driver) -> None:
    batch = [submission(a_task()) for _ in range(1_005)]
    await driver.insert(*batch)
    at = [await driver.store.position(batch[n].task.id) for n in (0, 998, 999, 1_000, 1_004)]
    assert at == [1, 999, 1_000, 1_001, 1_001]
    low = await driver.submit(priority=Priority.LOW)
    assert await driver.store.position(low.id) == 1_001


async def test_what_is_only_offered_is_found_and_counted_as_queued(driver: Driver) -> None:
    offered, leased, waiting = [submission(a_task(queue=queue)) for queue in "ooq"]
    await driver.insert(offered, asks=(an_ask("o", lease_ms=None),))
    await driver.insert(leased, asks=(an_ask("o"),))
    await driver.insert(waiting)

    async def found(*states: State, offered: bool | None) -> list[str]:
        query = Query(states=frozenset(states), offered=offered)
        return [task.id for task in (await driver.store.find(query)).items]

    newest_first = [waiting.task.id, leased.task.id, offered.task.id]
    assert await found(State.QUEUED, offered=True) == [newest_first[0], newest_first[2]]
    assert await found(State.QUEUED, offered=None) == newest_first[:1]
    assert await found(State.RUNNING, offered=False) == newest_first[1:2]
    assert await found(State.RUNNING, offered=None) == newest_first[1:]
    assert await found(State.QUEUED, State.RUNNING, offered=True) == newest_first
    assert await found(State.SCHEDULED, offered=True) == newest_first[2:]
    assert await found(offered=False) == newest_first[:2]
    counts = {("o", Lane.PRIMARY, State.QUEUED): 1, ("o", Lane.PRIMARY, State.RUNNING): 1}
    assert await driver.store.counts() == counts | {("q", Lane.PRIMARY, State.QUEUED): 1}
    await driver.store.extend([LeaseRenewal(offered.task.id, 1, NOW + 5)], now=NOW)
    assert await driver.store.counts() == await driver.recount()
    assert await found(State.QUEUED, offered=True) == newest_first[:1], "somebody holds it"


async def test_what_was_offered_is_counted_as_what_becomes_of_it(driver: Driver) -> None:
    await driver.submit_some(4)
    held = await driver.claim(limit=4, lease_ms=None)
    assert await driver.store.counts() == {(held[0].queue, Lane.PRIMARY, State.QUEUED): 4}
    await driver.apply(machine.delivered(held[0], "v", NOW, NOW + LEASE_MS))
    await driver.settle(held[1], Released())
    await driver.settle(held[2], BAD)
    assert await driver.store.counts() == await driver.recount()


# Counts.


async def test_the_age_of_a_queue_is_that_of_its_earliest_head(driver: Driver) -> None:
    """Of all lanes and priorities; behind a head nothing is looked at."""
    await driver.submit(queue="a", priority=Priority.LOW)
    driver.now += 10
    await driver.submit(queue="a", priority=Priority.HIGH)
    await driver.submit(queue="b")
    driver.now += 10
    await driver.submit(queue="b")
    await driver.submit(queue="later", run_at=driver.now + 1_000)
    queues = ["a", "b", "later", "none"]
    assert await driver.store.oldest(queues) == {"a": NOW, "b": NOW + 10}
    await driver.claim("b")
    assert await driver.store.oldest(queues) == {"a": NOW, "b": NOW + 20}
    assert await driver.store.oldest([]) == {}


async def test_what_is_tried_again_counts_from_when_it_was_queued_again(driver: Driver) -> None:
    held = await driver.running(overrides=NO_DELAY)
    driver.now += 500
    await driver.settle(held, Failed(Fault(kind="TimeoutError", message="no answer")))
    assert (await driver.task(held.id)).lane is Lane.RETRY
    assert await driver.store.oldest(["q"]) == {"q": driver.now}


async def test_counts_are_those_of_a_recount(driver: Driver) -> None:
    async def check() -> None:
        assert await driver.store.counts() == await driver.recount()

    await check()
    await driver.submit_some(3)
    await driver.submit(queue="b", run_at=NOW + 5)
    parent = await driver.submit(queue="b", waiting_for="event")
    await check()
    one, two, three = await driver.claim(limit=3)
    await check()
    await driver.settle(one, Lost())
    await driver.settle(two, Parked(seen=0, journal="{}", waiting_for="x"), a_task(queue="child"))
    await driver.settle(three, BAD)
    await check()
    await driver.post(parent.id, "1")
    await driver.apply(replay(await driver.task(three.id), driver.now))
    await check()
    retried = await driver.running(queue="r", overrides=NO_DELAY)
    await driver.settle(retried, Failed(Fault(kind="Odd", message="")))
    await check()
    assert (await driver.store.counts())["r", Lane.RETRY, State.QUEUED] == 1
    await driver.intervene(await driver.task(parent.id), machine.cancel)
    await driver.store.purge([parent.id], now=driver.now)
    await check()


# The event log.


async def test_the_log_is_read_by_cursor_in_order(driver: Driver) -> None:
    task = await driver.submit()
    other = await driver.finished(queue="other")
    log = await driver.log()
    told = [(e.task, e.n, e.type) for e in log]
    assert told == [
        (task.id, 1, "task.created"),
        (other.id, 1, "task.created"),
        (other.id, 2, "task.claimed"),
        (other.id, 3, "task.succeeded"),
    ]
    read: list[Event] = []
    cursor = ""
    while True:
        page = await driver.store.events(after=cursor, limit=1)
        assert page.next is not None, "a log has no end: whoever reads it can always go on"
        if not page.items:
            assert page.next == cursor
            break
        read += page.items
        cursor = page.next
    assert read == log
    await driver.submit(id="new")
    page = await driver.store.events(after=cursor, limit=10)
    assert [event.task for event in page.items] == ["new"]


async def test_a_reader_may_begin_at_the_end_of_the_log(driver: Driver) -> None:
    page = await driver.store.events(after="$", limit=10)
    assert page.items == []
    assert page.next is not None
    task = await driver.submit()
    assert [e.task for e in await driver.log(page.next)] == [task.id]
    page = await driver.store.events(after="$", limit=10)
    assert page.next is not None
    assert await driver.log(page.next) == []


async def test_a_tasks_own_events_are_read_by_number(driver: Driver) -> None:
    await driver.submit()
    task = await driver.finished(queue="mine")
    page = await driver.store.events(after="", limit=2, task=task.id)
    assert ([e.n for e in page.items], page.next) == ([1, 2], "2")
    page = await driver.store.events(after="2", limit=10, task=task.id)
    assert ([e.type for e in page.items], page.next) == (["task.succeeded"], "3")
    page = await driver.store.events(after="3", limit=10, task=task.id)
    assert (list(page.items), page.next) == ([], "3")
    assert (await driver.store.events(after="", limit=10, task="nobody")).items == []


async def test_the_numbers_of_a_task_have_no_gaps(driver: Driver) -> None:
    held = await driver.running()
    await driver.hold(held, ("task.chunk", "1"), ("task.chunk", "2"))
    await driver.intervene(await driver.task(held.id), machine.cancel)
    assert await driver.settle(held, Released()) == "moved"
    await driver.settle(await driver.task(held.id), Released())
    await driver.apply(replay(await driver.task(held.id), driver.now))
    await driver.apply(machine.event_only(await driver.task(held.id), "task.late_result", None))
    (held,) = await driver.claim()
    await driver.settle(held, BAD)
    events = await driver.events_of(held.id)
    assert [event.n for event in events] == list(range(1, len(events) + 1))
    assert (await driver.task(held.id)).events == len(events)


async def test_what_a_field_holds_comes_back_as_it_went(driver: Driver) -> None:
    full = a_task(
        state=State.QUEUED,
        priority=Priority.HIGH,
        payload='"\\u0000 \U0001f600 é"',
        run_at=NOW - 1,
        start_by=NOW + 1,
        attempt_ms=1,
        expires_at=NOW + 2,
        journal="{}",
        progress="0.5",
        session="s",
        owner="k",
        parent="p",
        key="k" * 200,
    )
    await driver.insert(submission(full))
    found = await driver.task(full.id)
    assert found == submission(full).task
    assert isinstance(found, Task)
    assert all(
        type(value) is type(getattr(submission(full).task, name))
        for name, value in msgspec.structs.asdict(found).items()
    )
