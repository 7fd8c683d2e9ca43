"""Looking: due, get, find, position, counts and the event log."""

from __future__ import annotations

import msgspec
import pytest

from onward.core import machine
from onward.core.contract import Hold, Query
from onward.core.outcome import Failed, Lost, Parked, Released
from onward.core.policy import Overrides
from onward.core.task import Event, Fault, Lane, Priority, State, Task
from tests.contract.desk import Desk, submission
from tests.support import LEASE_MS, NOW, a_task, an_ask, ids, replay

BAD = Failed(Fault(kind="InvalidInput", message="no such needle"))
NO_DELAY = Overrides(backoff_ms=(0,)).encode()


# Due.


async def test_what_is_due_comes_soonest_first_and_bounded(desk: Desk) -> None:
    late = await desk.submit(run_at=NOW + 30)
    soon = await desk.submit(run_at=NOW + 10)
    await desk.submit(run_at=NOW + 31)
    await desk.submit()
    assert await desk.store.due(now=NOW + 9, limit=10) == []
    assert await desk.store.due(now=NOW + 10, limit=10) == [soon]
    assert await desk.store.due(now=NOW + 30, limit=10) == [soon, late]
    assert await desk.store.due(now=NOW + 30, limit=1) == [soon]


async def test_every_kind_of_alarm_rings(desk: Desk) -> None:
    lease = await desk.running(queue="lease")
    attempt = await desk.running(queue="attempt", attempt_ms=1_000)
    age = await desk.submit(queue="age", expires_at=NOW + 2_000)
    start = await desk.submit(queue="start", start_by=NOW + 3_000)
    over = await desk.finished(queue="over", profile="sync")
    due = await desk.store.due(now=NOW + LEASE_MS, limit=10)
    assert ids(due) == [attempt.id, age.id, start.id, lease.id]
    assert ids(await desk.store.due(now=NOW + 3_600_000, limit=10))[-1] == over.id


async def test_the_dead_are_never_due(desk: Desk) -> None:
    held = await desk.running()
    await desk.settle(held, BAD)
    assert await desk.store.due(now=NOW + 10**12, limit=10) == []


# Get and find.


async def test_get_answers_in_the_order_asked(desk: Desk) -> None:
    one, two = await desk.submit_some(2)
    assert await desk.store.get([two.id, "nobody", one.id, two.id]) == [two, None, one, two]
    assert await desk.store.get([]) == []


async def test_get_takes_a_long_list(desk: Desk) -> None:
    batch = [submission(a_task()) for _ in range(600)]
    await desk.insert(*batch)
    found = await desk.store.get([item.task.id for item in batch])
    assert [task.id for task in found if task] == [item.task.id for item in batch]


async def test_find_is_newest_first_in_pages(desk: Desk) -> None:
    tasks = await desk.submit_some(7)
    newest = ids(tasks)[::-1]
    found: list[str] = []
    after, pages = None, 0
    while True:
        page = await desk.store.find(Query(limit=3, after=after))
        found += ids(page.items)
        pages += 1
        after = page.next
        if after is None:
            break
    assert (found, pages) == (newest, 3)


async def test_a_page_that_is_just_full_says_whether_more_follows(desk: Desk) -> None:
    await desk.submit_some(3)
    assert (await desk.store.find(Query(limit=3))).next is None
    assert (await desk.store.find(Query(limit=2))).next is not None
    assert (await desk.store.find(Query(queue="nobody's"))).items == []


async def test_pages_are_not_disturbed_by_what_comes_meanwhile(desk: Desk) -> None:
    tasks = await desk.submit_some(4)
    page = await desk.store.find(Query(limit=2))
    await desk.submit_some(3)
    rest = await desk.store.find(Query(limit=2, after=page.next))
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
        (Query(parent="p"), "b"),
        (Query(text="needle"), "dc"),
        (Query(text="id-a"), "a"),
        (Query(text="othe"), "a"),
        (Query(text="%"), ""),
        (Query(session="s", type="mail"), "c"),
        (Query(session="s", limit=1), "c"),
        (Query(states=frozenset({State.RUNNING})), ""),
    ],
)
async def test_find_filters(desk: Desk, query: Query, expected: str) -> None:
    await desk.submit(id="id-a", queue="qa", type="other", session="s")
    await desk.submit(id="id-b", queue="qb", profile="sync", parent="p")
    await desk.submit(id="id-c", queue="qc", session="s", payload='["needle"]', run_at=NOW + 9)
    held = await desk.running(id="id-d", queue="qd")
    await desk.settle(held, BAD)
    page = await desk.store.find(query)
    assert "".join(task.id[-1] for task in page.items) == expected


async def test_find_by_fingerprint_groups_the_dead(desk: Desk) -> None:
    for _ in range(2):
        await desk.settle(await desk.running(), BAD)
    await desk.settle(await desk.running(), Failed(Fault(kind="AuthError", message="x")))
    dead = await desk.all()
    page = await desk.store.find(Query(fingerprint=dead[0].fingerprint))
    assert ids(page.items) == ids(dead[1::-1])


# Position.


@pytest.mark.contract("S0-3")
async def test_position_counts_from_one(desk: Desk) -> None:
    tasks = await desk.submit_some(3)
    assert [await desk.store.position(task.id) for task in tasks] == [1, 2, 3]
    await desk.claim()
    assert [await desk.store.position(task.id) for task in tasks] == [None, 1, 2]


@pytest.mark.contract("S0-3")
async def test_urgent_work_stands_before_everybody_else(desk: Desk) -> None:
    low = await desk.submit(priority=Priority.LOW)
    normal = await desk.submit()
    high = await desk.submit(priority=Priority.HIGH)
    await desk.submit(queue="other", priority=Priority.HIGH)
    positions = [await desk.store.position(task.id) for task in (high, normal, low)]
    assert positions == [1, 2, 3]


async def test_only_queued_work_has_a_position(desk: Desk) -> None:
    waiting = await desk.submit(waiting_for="event")
    scheduled = await desk.submit(run_at=NOW + 1)
    over = await desk.finished()
    for id in (waiting.id, scheduled.id, over.id, "nobody"):
        assert await desk.store.position(id) is None


async def test_position_is_exact_up_to_a_thousand(desk: Desk) -> None:
    batch = [submission(a_task()) for _ in range(1_005)]
    await desk.insert(*batch)
    at = [await desk.store.position(batch[n].task.id) for n in (0, 998, 999, 1_000, 1_004)]
    assert at == [1, 999, 1_000, 1_001, 1_001]
    low = await desk.submit(priority=Priority.LOW)
    assert await desk.store.position(low.id) == 1_001


async def test_what_is_only_offered_is_found_and_counted_as_queued(desk: Desk) -> None:
    offered, leased, waiting = [submission(a_task(queue=queue)) for queue in "ooq"]
    await desk.insert(offered, asks=(an_ask("o", lease_ms=None),))
    await desk.insert(leased, asks=(an_ask("o"),))
    await desk.insert(waiting)

    async def found(*states: State, offered: bool | None) -> list[str]:
        query = Query(states=frozenset(states), offered=offered)
        return [task.id for task in (await desk.store.find(query)).items]

    newest_first = [waiting.task.id, leased.task.id, offered.task.id]
    assert await found(State.QUEUED, offered=True) == [newest_first[0], newest_first[2]]
    assert await found(State.QUEUED, offered=None) == newest_first[:1]
    assert await found(State.RUNNING, offered=False) == newest_first[1:2]
    assert await found(State.RUNNING, offered=None) == newest_first[1:]
    assert await found(State.QUEUED, State.RUNNING, offered=True) == newest_first
    assert await found(State.SCHEDULED, offered=True) == newest_first[2:]
    assert await found(offered=False) == newest_first[:2]
    counts = {("o", Lane.PRIMARY, State.QUEUED): 1, ("o", Lane.PRIMARY, State.RUNNING): 1}
    assert await desk.store.counts() == counts | {("q", Lane.PRIMARY, State.QUEUED): 1}
    await desk.store.extend([Hold(offered.task.id, 1, NOW + 5)], now=NOW)
    assert await desk.store.counts() == await desk.recount()
    assert await found(State.QUEUED, offered=True) == newest_first[:1], "somebody holds it"


async def test_what_was_offered_is_counted_as_what_becomes_of_it(desk: Desk) -> None:
    await desk.submit_some(4)
    held = await desk.claim(limit=4, lease_ms=None)
    assert await desk.store.counts() == {(held[0].queue, Lane.PRIMARY, State.QUEUED): 4}
    await desk.apply(machine.delivered(held[0], "v", NOW, NOW + LEASE_MS))
    await desk.settle(held[1], Released())
    await desk.settle(held[2], BAD)
    assert await desk.store.counts() == await desk.recount()


# Counts.


async def test_counts_are_those_of_a_recount(desk: Desk) -> None:
    async def check() -> None:
        assert await desk.store.counts() == await desk.recount()

    await check()
    await desk.submit_some(3)
    await desk.submit(queue="b", run_at=NOW + 5)
    parent = await desk.submit(queue="b", waiting_for="event")
    await check()
    one, two, three = await desk.claim(limit=3)
    await check()
    await desk.settle(one, Lost())
    await desk.settle(two, Parked(seen=0, journal="{}", waiting_for="x"), a_task(queue="child"))
    await desk.settle(three, BAD)
    await check()
    await desk.post(parent.id, "1")
    await desk.apply(replay(await desk.task(three.id), desk.now))
    await check()
    retried = await desk.running(queue="r", overrides=NO_DELAY)
    await desk.settle(retried, Failed(Fault(kind="Odd", message="")))
    await check()
    assert (await desk.store.counts())["r", Lane.RETRY, State.QUEUED] == 1
    await desk.intervene(await desk.task(parent.id), machine.cancel)
    await desk.store.purge([parent.id], now=desk.now)
    await check()


# The event log.


async def test_the_log_is_read_by_cursor_in_order(desk: Desk) -> None:
    task = await desk.submit()
    other = await desk.finished(queue="other")
    log = await desk.log()
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
        page = await desk.store.events(after=cursor, limit=1)
        assert page.next is not None, "a log has no end: whoever reads it can always go on"
        if not page.items:
            assert page.next == cursor
            break
        read += page.items
        cursor = page.next
    assert read == log
    await desk.submit(id="new")
    page = await desk.store.events(after=cursor, limit=10)
    assert [event.task for event in page.items] == ["new"]


async def test_a_reader_may_begin_at_the_end_of_the_log(desk: Desk) -> None:
    page = await desk.store.events(after="$", limit=10)
    assert page.items == []
    assert page.next is not None
    task = await desk.submit()
    assert [e.task for e in await desk.log(page.next)] == [task.id]
    page = await desk.store.events(after="$", limit=10)
    assert page.next is not None
    assert await desk.log(page.next) == []


async def test_a_tasks_own_events_are_read_by_number(desk: Desk) -> None:
    await desk.submit()
    task = await desk.finished(queue="mine")
    page = await desk.store.events(after="", limit=2, task=task.id)
    assert ([e.n for e in page.items], page.next) == ([1, 2], "2")
    page = await desk.store.events(after="2", limit=10, task=task.id)
    assert ([e.type for e in page.items], page.next) == (["task.succeeded"], "3")
    page = await desk.store.events(after="3", limit=10, task=task.id)
    assert (list(page.items), page.next) == ([], "3")
    assert (await desk.store.events(after="", limit=10, task="nobody")).items == []


async def test_the_numbers_of_a_task_have_no_gaps(desk: Desk) -> None:
    held = await desk.running()
    await desk.hold(held, ("task.chunk", "1"), ("task.chunk", "2"))
    await desk.intervene(await desk.task(held.id), machine.cancel)
    assert await desk.settle(held, Released()) == "moved"
    await desk.settle(await desk.task(held.id), Released())
    await desk.apply(replay(await desk.task(held.id), desk.now))
    await desk.apply(machine.event_only(await desk.task(held.id), "task.late_result", None))
    (held,) = await desk.claim()
    await desk.settle(held, BAD)
    events = await desk.events_of(held.id)
    assert [event.n for event in events] == list(range(1, len(events) + 1))
    assert (await desk.task(held.id)).events == len(events)


async def test_what_a_field_holds_comes_back_as_it_went(desk: Desk) -> None:
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
        parent="p",
        key="k" * 200,
    )
    await desk.insert(submission(full))
    found = await desk.task(full.id)
    assert found == submission(full).task
    assert isinstance(found, Task)
    assert all(
        type(value) is type(getattr(submission(full).task, name))
        for name, value in msgspec.structs.asdict(found).items()
    )
