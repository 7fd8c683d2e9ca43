"""Rows of a Redis ledger that cannot be read, and calls that are too big: no other row suffers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from onward.core.clock import ManualClock
from onward.core.contract import Fate, Key, Query, Verdict
from onward.core.follow import history
from onward.core.outcome import Failed, Released, Succeeded
from onward.core.tail import Tail
from onward.core.task import Event, State
from onward.faults import Fault
from onward.ledgers.redis import RedisBackend
from tests.contract.driver import Driver, submission
from tests.faults.redis_invariants import check_nothing_was_refused, check_redis_invariants
from tests.servers import FLAVOURS, fresh_url, shared
from tests.support import NOW, a_task, ids

MANY = 6_000  # more than Lua's stack holds as arguments


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def driver(flavour: str) -> AsyncIterator[Driver]:
    backend = RedisBackend(fresh_url(flavour))
    yield Driver(backend)
    await backend.close()


@pytest.fixture
def redis(driver: Driver, flavour: str) -> Any:
    return shared(flavour).client


def row(task: str) -> str:
    return f"onward:task:{task}"


async def test_a_move_with_thousands_of_events_tears_nobody(driver: Driver, redis: Any) -> None:
    one, big, two = [await driver.running(queue=queue) for queue in "abc"]
    again = Failed(Fault(kind="Boom", message="no", retryable=True))
    moves = [
        driver.decide(one, again),
        driver.decide(big, Succeeded("1")),
        driver.decide(two, Released()),
    ]
    notes = (("run.note", None),) * MANY
    moves[1] = msgspec.structs.replace(moves[1], events=(*notes, *moves[1].events))
    assert (await driver.apply(*moves)).verdicts == [Verdict.APPLIED] * 3
    check_redis_invariants(redis, all_over=False)
    check_nothing_was_refused(redis)
    assert await driver.store.purge([big.id], now=NOW) == 1
    check_redis_invariants(redis, all_over=False)


async def test_a_hold_with_thousands_of_notes_is_written(driver: Driver, redis: Any) -> None:
    held = await driver.running()
    assert await driver.hold(held, *[("task.progress", "1")] * MANY) == "held"
    check_redis_invariants(redis, all_over=False)


async def test_a_second_end_is_refused_and_its_neighbours_are_not(
    driver: Driver, redis: Any
) -> None:
    over = await driver.finished(queue="over")
    one, two = await driver.running(queue="a"), await driver.running(queue="b")
    second = msgspec.structs.replace(
        driver.decide(one, Succeeded("1")),
        task=over.id,
        expect=State.SUCCEEDED,
        fence=over.fence,
        rev=over.rev,
    )
    moves = driver.decide(one, Released()), second, driver.decide(two, Succeeded("1"))
    verdicts = (await driver.apply(*moves)).verdicts
    assert verdicts == [Verdict.APPLIED, Verdict.REFUSED, Verdict.APPLIED]
    check_redis_invariants(redis, all_over=False)
    assert ids(await driver.claim("a")) == [one.id]


@pytest.mark.parametrize("how", ["string", "half", "number"])
async def test_a_row_that_cannot_be_read_spoils_no_batch(
    driver: Driver, redis: Any, how: str
) -> None:
    await driver.submit_some(3, queue="q", session="s", expires_at=NOW + 10)
    first, odd, last = await driver.all()
    spoil(redis, odd.id, how)
    assert [task and task.id for task in await driver.store.get(ids([first, odd, last]))] == [
        first.id,
        None,
        last.id,
    ]
    assert ids((await driver.store.find(Query())).items) == [last.id, first.id]
    assert (await driver.backend.sessions.get("s")) is not None
    due = await driver.store.due(now=NOW + 20, limit=1)
    assert ids(due) == [first.id]
    assert ids(await driver.store.due(now=NOW + 20, limit=10)) == [first.id, last.id]
    assert redis.zscore("onward:alarms", odd.id) is None
    assert redis.zscore("onward:aside", odd.id) is not None, "it is on record"
    if how != "number":  # which the claim does not look at
        assert ids(await driver.claim("q", limit=3)) == [first.id, last.id]


def spoil(redis: Any, task: str, how: str) -> None:
    if how == "string":
        redis.delete(row(task))
        redis.set(row(task), "somebody else's")
    elif how == "half":
        redis.hdel(row(task), "type")
    else:
        redis.hset(row(task), "expires_at", "2026-01-01T00:00:00")


async def test_hundreds_of_alarms_without_a_task_keep_none_from_ringing(
    driver: Driver, redis: Any
) -> None:
    task = await driver.submit(run_at=NOW + 10)
    redis.zadd("onward:alarms", {f"ghost {n}": 1 for n in range(600)})
    redis.zadd("onward:running", {f"ghost {n}": 1 for n in range(600, 900)})
    assert ids(await driver.store.due(now=NOW + 20, limit=256)) == [task.id]
    assert redis.zcard("onward:alarms") == 1
    assert redis.zcard("onward:running") == redis.zcard("onward:aside") == 0


async def test_a_row_that_cannot_be_read_refuses_its_own_move_only(
    driver: Driver, redis: Any
) -> None:
    one, odd, two = [await driver.running(queue=queue) for queue in "abc"]
    redis.hset(row(odd.id), "events", "many")
    moves = [driver.decide(held, Succeeded("1")) for held in (one, odd, two)]
    verdicts = (await driver.apply(*moves)).verdicts
    assert verdicts == [Verdict.APPLIED, Verdict.REFUSED, Verdict.APPLIED]
    assert redis.hget(row(odd.id), "state") == b"running"


async def test_an_id_that_stands_in_a_queue_twice_is_claimed_once(
    driver: Driver, redis: Any
) -> None:
    task = await driver.submit(queue="q")
    redis.rpush("onward:queue:1:primary:q", task.id, "ghost")
    assert ids(await driver.claim("q", limit=5)) == [task.id]
    assert ids(await driver.claim("q", limit=5)) == []


async def test_an_unreadable_id_that_stands_in_a_queue_twice_is_counted_once(
    driver: Driver, redis: Any
) -> None:
    odd, task = await driver.submit(queue="q"), await driver.submit(queue="q")
    spoil(redis, odd.id, "half")
    redis.lpush("onward:queue:1:primary:q", odd.id)
    assert ids(await driver.claim("q", limit=5)) == [task.id]
    assert redis.hget("onward:counts", "q:primary:queued") is None


async def test_a_foreign_entry_in_the_log_is_passed_over(driver: Driver, redis: Any) -> None:
    await driver.submit()
    redis.xadd("onward:events", {"what": "is this"})
    task = await driver.submit()
    page = await driver.store.events(after="", limit=10)
    assert [event.type for event in page.items] == ["task.created"] * 2
    assert page.items[-1].task == task.id
    assert (await driver.store.events(after=page.next or "", limit=10)).items == []


async def test_a_batch_of_such_entries_keeps_no_reader_from_the_rest(
    driver: Driver, redis: Any, clock: ManualClock
) -> None:
    read: list[str] = []

    class Reader:
        name = "reader"

        async def project(self, events: Sequence[Event]) -> None:
            read.extend(event.task for event in events)

    for _ in range(5):
        redis.xadd("onward:events", {"what": "is this"})
    task = await driver.submit()
    tail = Tail(driver.backend, Reader(), clock, batch=2)
    for _ in range(4):
        await tail.step()
    assert read == [task.id]


async def test_an_event_that_is_gone_keeps_no_reader_from_the_rest(
    driver: Driver, redis: Any
) -> None:
    task = await driver.running()
    for n in (1, 2):
        redis.xdel("onward:events", redis.hget(row(task.id), f"e{n}"))
        redis.hdel(row(task.id), f"e{n}")
    await driver.settle(task, Succeeded("1"))
    assert [event.type async for event in history(driver.store, task.id)] == ["task.succeeded"]
    page = await driver.store.events(after="0", limit=1, task=task.id)
    assert (page.items, page.next, page.more) == ([], "1", True)


async def test_a_cursor_that_cannot_be_read_keeps_everything(driver: Driver) -> None:
    task = await driver.finished()
    for odd in ("no JSON", '"no place"'):
        await driver.backend.documents.put("cursor", "reader", odd, now=NOW)
        assert await driver.store.purge([task.id], now=NOW) == 0
    await driver.backend.documents.delete("cursor", "reader")
    assert await driver.store.purge([task.id], now=NOW) == 1


async def test_a_page_with_a_row_that_cannot_be_read_is_not_the_last(
    driver: Driver, redis: Any
) -> None:
    tasks = [await driver.submit() for _ in range(5)]
    spoil(redis, tasks[3].id, "number")
    page = await driver.store.find(Query(limit=2))
    assert ids(page.items) == [tasks[4].id]
    rest = await driver.store.find(Query(limit=5, after=page.next))
    assert ids(rest.items) == ids(tasks[2::-1])


async def test_a_key_of_the_wrong_kind_keeps_the_rest_of_a_move_from_nothing(
    driver: Driver, redis: Any
) -> None:
    held = await driver.running(queue="a")
    redis.delete("onward:scheduled")
    redis.set("onward:scheduled", "a string")
    again = Failed(Fault(kind="Boom", message="no", retryable=True))
    await driver.settle(held, again)
    assert (await driver.task(held.id)).state is State.SCHEDULED
    assert await driver.store.counts() == await driver.recount()
    assert redis.zscore("onward:alarms", held.id) is not None
    (fault,) = redis.lrange("onward:faults", 0, -1)
    assert b"ZADD onward:scheduled" in fault


async def test_ended_documents_are_deleted(driver: Driver, redis: Any) -> None:
    docs = driver.backend.documents
    await docs.put("server", "dead", "{}", now=NOW, expires_at=NOW + 10)
    await docs.put("server", "again", "{}", now=NOW, expires_at=NOW + 10)
    await docs.put("server", "again", "{}", now=NOW, expires_at=NOW + 60_000)
    await docs.put("server", "alive", "{}", now=NOW)
    await docs.put("other", "k", "{}", now=NOW + 20)
    assert sorted(redis.hkeys("onward:doc:server")) == [b"again", b"alive"]
    assert redis.zcard("onward:ends") == 1


async def test_a_submission_whose_key_cannot_be_read_is_refused_by_itself(
    driver: Driver, redis: Any
) -> None:
    redis.set("onward:key:s|k", "a string")
    keyed = submission(a_task(), key=Key("s", "k", "body"))
    inserted = await driver.insert(submission(a_task()), keyed, submission(a_task()))
    fates = [receipt.fate for receipt in inserted.receipts]
    assert fates == [Fate.FRESH, Fate.REFUSED, Fate.FRESH]
    check_redis_invariants(redis, all_over=False)
