"""What only the Redis ledger has: its ring, its own indexes, its connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from onward.core import machine
from onward.core.contract import Ask, Query
from onward.core.errors import Invalid, LedgerUnavailable
from onward.core.lanes import wants
from onward.core.outcome import Failed, Outcome, Released, Succeeded
from onward.core.task import Ending, State, TaskId
from onward.faults import Fault
from onward.ledgers.redis import RedisBackend, bell, client, store
from tests.contract.driver import Driver, submission
from tests.contract.peers import Peer, listening
from tests.servers import FLAVOURS, fresh_url, shared
from tests.support import LEASE_MS, NOW, a_task, an_ask, wait_until

NO_MORE = Failed(Fault(kind="Boom", message="no", retryable=False))


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def backend(flavour: str) -> AsyncIterator[RedisBackend]:
    backend = RedisBackend(fresh_url(flavour))
    yield backend
    await backend.close()


@pytest.fixture
def driver(backend: RedisBackend) -> Driver:
    return Driver(backend)


# The ring.


@pytest.mark.contract("N-4")
async def test_another_server_hears_of_new_work_and_how_it_ended(
    driver: Driver, flavour: str
) -> None:
    peer = Peer()
    async with listening(flavour, peer):
        held = await driver.running(queue="q")
        await driver.settle(held, Succeeded('"done"'))
        failing = await driver.running(queue="r")
        await driver.settle(failing, NO_MORE)
        await wait_until(lambda: len(peer.ended) == 2)
    assert {"q", "r"} <= set(peer.queues)
    assert peer.ended[held.id] == Ending(held.id, State.SUCCEEDED, '"done"', None, NOW)
    row = await driver.task(failing.id)
    assert peer.ended[failing.id] == Ending.of(row)


async def test_a_long_result_is_not_told_only_that_it_is_there(
    driver: Driver, flavour: str
) -> None:
    peer = Peer()
    async with listening(flavour, peer):
        held = await driver.running()
        await driver.settle(held, Succeeded(f'"{"x" * 1_000}"'))
        await wait_until(lambda: held.id in peer.ended)
    assert peer.ended == {held.id: None}


async def test_an_end_that_is_none_is_not_announced(driver: Driver, flavour: str) -> None:
    peer = Peer()
    async with listening(flavour, peer):
        held = await driver.running(queue="q")
        await driver.settle(held, Released())  # back in its queue
        (again,) = await driver.claim("q")
        dead = await driver.settle(again, NO_MORE)
        await wait_until(lambda: held.id in peer.ended)
        peer.endings.clear()
        task = await driver.task(held.id)
        await driver.intervene(task, machine.abandon)
        await driver.submit(queue="last")
        await wait_until(lambda: "last" in peer.queues)
    assert dead == "applied"
    assert peer.ended == {}, "it had ended before"


async def test_a_server_does_not_hear_itself(
    backend: RedisBackend, driver: Driver, flavour: str
) -> None:
    own, other = Peer(), Peer()
    async with listening(flavour, own, to=backend), listening(flavour, other):
        await driver.finished(queue="q")
        await wait_until(lambda: bool(other.ended))
        await Driver(backend).submit(queue="last")
        await wait_until(lambda: "last" in other.queues)
    assert (own.queues, own.ended) == ([], {})


async def test_a_server_alone_announces_nothing(
    backend: RedisBackend, driver: Driver, flavour: str
) -> None:
    redis = shared(flavour).client
    async with listening(flavour, Peer(), to=backend):
        redis.config_resetstat()
        await driver.finished()
    assert "cmdstat_publish" not in redis.info("commandstats")


async def test_followers_on_another_server_are_woken(driver: Driver, flavour: str) -> None:
    elsewhere = RedisBackend(shared(flavour).url)
    async with listening(flavour, Peer(), to=elsewhere):
        task = await driver.submit(queue="q")
        async with elsewhere.bell.listen(f"task:{task.id}") as listener, asyncio.timeout(30):
            (held,) = await driver.claim("q")
            await listener.wait()
            await driver.hold(held, ("task.progress", "1"))
            await listener.wait()
            await driver.post(task.id, "1")
            await listener.wait()
            await driver.settle(held, Succeeded("1"))
            await listener.wait()
    await elsewhere.close()


async def test_who_may_not_publish_can_work_all_the_same(driver: Driver, flavour: str) -> None:
    server = shared(flavour)
    server.client.execute_command(  # type: ignore[no-untyped-call]
        *("ACL", "SETUSER", "quiet", "on", ">secret", "~*", "+@all", "resetchannels")
    )
    quiet = RedisBackend(f"unix://quiet:secret@{server.socket}")
    try:
        async with listening(flavour, Peer()):
            over = await Driver(quiet).finished()
    finally:
        await quiet.close()
        server.client.acl_deluser("quiet")
    assert (await driver.task(over.id)).state is State.SUCCEEDED


async def test_a_connection_that_died_without_a_word_is_replaced(
    driver: Driver, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell, "ANSWER_S", 0.2)
    elsewhere, peer = RedisBackend(shared(flavour).url), Peer()
    async with listening(flavour, peer, to=elsewhere):
        await elsewhere.maintain()
        line = elsewhere.bell._connection
        assert line is not None
        line._transport.pause_reading()
        await elsewhere.maintain()
        await wait_until(lambda: elsewhere.bell._connection not in (None, line))
        await driver.submit(queue="q")
        await wait_until(lambda: "q" in peer.queues)
    await elsewhere.close()


async def test_a_malformed_ring_is_passed_over(driver: Driver, flavour: str) -> None:
    peer = Peer()
    async with listening(flavour, peer):
        shared(flavour).client.publish("onward:bell", b"\xc1 what?")
        await driver.submit(queue="q")
        await wait_until(lambda: peer.queues == ["q"])


# Its own indexes.


async def found(driver: Driver, *states: State, queue: str | None = None) -> list[TaskId]:
    query = Query(states=frozenset(states), queue=queue)
    return [task.id for task in (await driver.store.find(query)).items]


@pytest.mark.parametrize("steps", [1_000, 2], ids=["by themselves", "among all"])
async def test_tasks_of_a_state_are_found_newest_first_a_page_at_a_time(
    driver: Driver, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "STEPS", steps)
    held = [await driver.running(queue=f"r{n}") for n in range(5)]
    await driver.submit(queue="r1")
    dead = await driver.running()
    await driver.settle(dead, NO_MORE)
    later = await driver.submit(run_at=NOW + 60_000)
    await driver.finished()
    newest_first = [task.id for task in reversed(held)]
    assert await found(driver, State.RUNNING) == newest_first
    assert await found(driver, State.DEAD) == [dead.id]
    assert await found(driver, State.SCHEDULED, State.DEAD) == [later.id, dead.id]
    assert await found(driver, State.RUNNING, queue="r1") == [held[1].id]
    assert await found(driver, State.CANCELED) == []
    pages: list[TaskId] = []
    after: str | None = None
    while True:
        query = Query(states=frozenset({State.RUNNING}), after=after, limit=2)
        page = await driver.store.find(query)
        pages += [task.id for task in page.items]
        after = page.next
        if after is None:
            break
    assert pages == newest_first


def members(flavour: str, key: str) -> set[str]:
    redis = shared(flavour).client
    return {id.decode() for id in redis.zrange(key, 0, -1) if isinstance(id, bytes)}


async def test_few_running_tasks_are_found_without_a_walk(driver: Driver, flavour: str) -> None:
    held = await driver.running()
    for _ in range(50):
        await driver.finished()
    redis = shared(flavour).client
    redis.config_resetstat()
    assert await found(driver, State.RUNNING) == [held.id]
    assert await found(driver, State.FAILED) == [], "there are none, and the counts say so"
    assert redis.info("commandstats")["cmdstat_hmget"]["calls"] == 1


async def test_what_runs_is_known_however_it_came_and_went(driver: Driver, flavour: str) -> None:
    def running() -> set[str]:
        return members(flavour, "onward:running")

    adopted = machine.adopted(a_task(), "stream")
    await driver.insert(adopted)
    born = submission(a_task(queue="b"))
    await driver.insert(born, asks=(an_ask("b"),))
    claimed = await driver.running(queue="c")
    assert running() == {adopted.task.id, born.task.id, claimed.id}
    await driver.settle(claimed, Released())
    await driver.settle(await driver.task(born.task.id), NO_MORE)
    await driver.settle(await driver.task(adopted.task.id), Succeeded("1"))
    assert running() == set()


async def test_a_task_has_one_alarm_that_goes_where_it_goes(driver: Driver, flavour: str) -> None:
    def alarms() -> tuple[set[str], set[str]]:
        return members(flavour, "onward:running"), members(flavour, "onward:alarms")

    task = a_task(start_by=NOW + 10)
    await driver.insert(submission(task))
    assert alarms() == (set(), {task.id})
    (held,) = await driver.claim("q")
    assert alarms() == ({task.id}, set())
    await driver.settle(held, Succeeded("1"))
    assert alarms() == (set(), {task.id})
    hurried = submission(a_task(queue="b", expires_at=NOW + 10))
    await driver.insert(hurried, asks=(an_ask("b"),))
    assert alarms() == ({hurried.task.id}, {task.id})


async def test_what_is_due_comes_in_order_whether_it_runs_or_waits(driver: Driver) -> None:
    running = [await driver.running(expires_at=NOW + at) for at in (50, 20)]
    waiting = [a_task(expires_at=NOW + at) for at in (40, 10)]
    await driver.insert(*map(submission, waiting))
    in_order = [waiting[1].id, running[1].id, waiting[0].id, running[0].id]
    for limit in (4, 3, 1):
        due = await driver.store.due(now=NOW + 100, limit=limit)
        assert [task.id for task in due] == in_order[:limit]


async def test_moves_that_travel_together_keep_what_is_their_own(driver: Driver) -> None:
    await driver.insert(*[submission(a_task(id=f"t{n}")) for n in range(8)])
    held = await driver.claim("q", limit=8)
    outcomes: list[Outcome] = [
        *(Succeeded("1"), Succeeded("2"), Succeeded(f'"{"x" * 900}"'), NO_MORE, Released()),
        *(Failed(Fault(kind="Boom", message="other", retryable=False)), Released(), Succeeded("1")),
    ]
    moves = [driver.decide(task, outcome) for task, outcome in zip(held, outcomes, strict=True)]
    await driver.apply(*moves)
    over = [await driver.task(task.id) for task in held]
    results = [outcome.result if isinstance(outcome, Succeeded) else None for outcome in outcomes]
    assert [task.result for task in over] == results
    assert [task.error and task.error.count("other") for task in over] == [
        *[None] * 3,
        0,
        None,
        1,
        None,
        None,
    ]
    assert [task.id for task in await driver.claim("q", limit=8)] == ["t4", "t6"]


async def test_moves_that_differ_in_a_clock_or_an_event_only_are_told_apart(driver: Driver) -> None:
    held = [await driver.running(queue=f"q{n}") for n in range(3)]
    moves = [driver.decide(task, Succeeded("1")) for task in held]
    moves[1] = msgspec.structs.replace(moves[1], due_at=NOW + 1)
    moves[2] = msgspec.structs.replace(moves[2], events=(("task.succeeded", '{"a":1}'),))
    await driver.apply(*moves)
    due = [(await driver.task(task.id)).due_at for task in held]
    assert due == [moves[0].due_at, NOW + 1, moves[2].due_at]
    said = [(await driver.events_of(task.id))[-1].data for task in held]
    assert said == [moves[0].events[0][1], moves[1].events[0][1], '{"a":1}']


async def test_a_lane_that_gave_its_share_gives_the_rest_as_well(driver: Driver) -> None:
    await driver.submit_some(10)
    queue = (await driver.all())[0].queue
    ask = Ask("w", 8, wants((queue,), 8, 0, 0.3), LEASE_MS)
    assert len(await driver.store.claim([ask], now=NOW)) == 8


async def test_a_ledger_of_another_layout_is_left_alone(flavour: str) -> None:
    url, redis = fresh_url(flavour), shared(flavour).client

    async def opened() -> None:
        backend = RedisBackend(url)
        try:
            await Driver(backend).submit()
        finally:
            await backend.close()

    await opened()
    await opened()
    redis.set("onward:layout", "9")
    with pytest.raises(Invalid, match="layout 9"):
        await opened()
    redis.delete("onward:layout")  # from before there was a number
    with pytest.raises(Invalid, match="layout 1") as refused:
        await opened()
    assert "ONWARD_REDIS_PREFIX" in str(refused.value.hint)
    assert redis.zcard("onward:index") == 2


async def test_a_task_born_with_a_past_is_claimed_with_it(driver: Driver) -> None:
    """As one that was brought over from elsewhere: nobody has moved it here yet."""
    task = a_task(queue="q", attempt=2, failures=2, retries=1, journal="7")
    await driver.insert(submission(task))
    (claimed,) = await driver.claim("q")
    assert (claimed.attempt, claimed.failures, claimed.retries) == (3, 2, 1)
    assert (claimed.journal, claimed.rev) == ("7", 1)


async def test_counts_that_are_back_at_nothing_are_not_kept(driver: Driver, flavour: str) -> None:
    held = await driver.running()
    await driver.settle(held, Released())
    fields = shared(flavour).client.hgetall(f"onward:task:{held.id}")
    assert b"attempt" not in fields
    assert (await driver.task(held.id)).attempt == 0


async def test_many_long_payloads_come_with_one_claim(driver: Driver) -> None:
    payloads = {f"t{n}": f'"{n}{"x" * (0 if n % 3 else 100)}"' for n in range(600)}
    await driver.insert(*[submission(a_task(id=id, payload=text)) for id, text in payloads.items()])
    claimed = await driver.claim("q", limit=600)
    assert {task.id: task.payload for task in claimed} == payloads


# Its connections.


async def test_functions_of_another_version_stay_as_they_are(flavour: str) -> None:
    fresh_url(flavour)
    redis = shared(flavour).client
    theirs = "redis.register_function('onward_insert', function() return 'theirs' end)"
    redis.function_load(f"#!lua name=onward\n{theirs}", replace=True)
    backend = RedisBackend(shared(flavour).url)
    await Driver(backend).submit()
    assert redis.fcall("onward_insert", 0) == b"theirs"
    await backend.close()
    redis.function_delete("onward")


async def test_a_connection_that_was_closed_meanwhile_costs_no_call(
    driver: Driver, flavour: str
) -> None:
    await driver.submit()
    redis = shared(flavour).client
    for turn in range(3):
        await asyncio.gather(*[driver.all() for _ in range(4)])  # several connections
        redis.client_kill_filter(_type="normal", skipme=True)
        await wait_until(lambda: len(redis.client_list()) == 1)
        await asyncio.sleep(0)  # the loop looks at its sockets, and sees them closed
        await asyncio.sleep(0)
        await driver.submit(queue=f"q{turn}")
    assert len(await driver.all()) == 4


async def test_a_redis_that_does_not_answer_is_said_to_be_away(
    driver: Driver, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await driver.submit()
    monkeypatch.setattr(client, "CALL_TIMEOUT_S", 0.05)
    redis = shared(flavour).client
    redis.client_pause(60_000, all=False)
    try:
        with pytest.raises(LedgerUnavailable):
            await driver.submit(queue="late")
    finally:
        redis.client_unpause()
    monkeypatch.undo()
    assert (await driver.submit(queue="after")).state is State.QUEUED, "and not the late reply"


async def test_a_caller_who_goes_away_leaves_no_reply_for_the_next(
    driver: Driver, flavour: str
) -> None:
    await driver.submit()
    redis = shared(flavour).client
    redis.client_pause(300)
    going = asyncio.ensure_future(driver.store.counts())
    await asyncio.sleep(0.02)
    going.cancel()
    await asyncio.wait([going])
    redis.client_unpause()
    assert len(await driver.all()) == 1


async def test_a_kind_goes_with_the_last_of_its_documents(
    backend: RedisBackend, flavour: str
) -> None:
    docs, client = backend.documents, shared(flavour).client

    def left_ms() -> int:
        return int(client.pttl("onward:doc:k"))

    await docs.put("k", "a", "{}", now=NOW, expires_at=NOW + 60_000)
    await docs.put("k", "b", "{}", now=NOW, expires_at=NOW + 10_000)
    assert 50_000 < left_ms() <= 60_000
    await docs.put("k", "b", "{}", now=NOW, expires_at=NOW + 90_000)
    assert 80_000 < left_ms() <= 90_000
    await docs.put("k", "c", "{}", now=NOW)
    assert left_ms() == -1
    await docs.put("k", "d", "{}", now=NOW, expires_at=NOW + 10)
    assert left_ms() == -1


async def test_a_sessions_tasks_are_found_without_a_walk(driver: Driver, flavour: str) -> None:
    redis, tasks = shared(flavour).client, driver.backend.tasks
    await driver.submit_some(50)
    mine = await driver.finished(session="s|1", queue="mine")

    async def of(session: str, *states: State) -> list[str]:
        query = Query(session=session, states=frozenset(states))
        return [task.id for task in (await tasks.find(query)).items]

    redis.config_resetstat()
    assert await of("s|1") == [mine.id]
    assert await of("s|1", State.RUNNING) == await of("s") == []
    assert redis.info("commandstats")["cmdstat_hmget"]["calls"] == 2
    await tasks.purge([mine.id], now=NOW)
    assert await of("s|1") == []
    assert not redis.exists("onward:session:s|1")
