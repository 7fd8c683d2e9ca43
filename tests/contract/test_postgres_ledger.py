"""What many servers on one Postgres need besides the contract that every ledger keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import psycopg
import pytest

from onward.core.contract import Fate, Key, Query, Verdict
from onward.core.errors import LedgerUnavailable, NotLetIn
from onward.core.limits import Bound
from onward.core.outcome import Released, Succeeded
from onward.core.task import Letter, State, new_id
from onward.ledgers.postgres import PostgresBackend
from onward.ledgers.postgres.batch import RESCAN_MS
from onward.ledgers.postgres.bell import PostgresBell
from onward.ledgers.postgres.writer import TransactionWriter
from onward.ledgers.sql.dialect import Step
from onward.ledgers.sql.store import matching
from tests.contract.driver import Driver, submission
from tests.contract.peers import Peer
from tests.servers import fresh_postgres_url, shared_postgres
from tests.support import NOW, a_task, an_ask, wait_until


@pytest.fixture(params=["postgres15", "postgres18"])
def url(request: pytest.FixtureRequest) -> str:
    return fresh_postgres_url(request.param)


@pytest.fixture
async def servers(url: str) -> AsyncIterator[list[Driver]]:
    """Two servers on one database."""
    drivers = [Driver(PostgresBackend(url)) for _ in range(2)]
    yield drivers
    for driver in drivers:
        await driver.backend.close()


@pytest.fixture
def other(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection that is no server's."""
    return psycopg.connect(url, options="-c search_path=onward")


# Many servers write at once.


async def test_two_servers_never_claim_one_task(servers: list[Driver]) -> None:
    await servers[0].insert(*[submission(a_task(id=f"t{at}")) for at in range(60)])

    async def drain(driver: Driver) -> list[str]:
        found: list[str] = []
        while claimed := await driver.claim("q", limit=7):
            found += [task.id for task in claimed]
        return found

    one, two = await asyncio.gather(*map(drain, servers))
    assert sorted([*one, *two]) == sorted(f"t{at}" for at in range(60))
    assert one == sorted(one, key=lambda id: int(id[1:])), "each gets them in their order"
    assert await servers[0].store.counts() == await servers[1].recount()


async def test_what_another_server_hands_back_goes_first_before_long(servers: list[Driver]) -> None:
    here, elsewhere = servers
    await here.insert(*[submission(a_task(id=f"t{at:02}")) for at in range(30)])
    first, *_ = await here.claim("q", limit=5)
    await elsewhere.settle(first, Released())
    assert first.id == "t00"
    assert [task.id for task in await here.claim("q", limit=2)] == ["t05", "t06"]
    here.now += RESCAN_MS
    assert [task.id for task in await here.claim("q", limit=2)] == ["t00", "t07"]


async def test_what_a_server_hands_back_itself_goes_first_at_once(servers: list[Driver]) -> None:
    here, _ = servers
    await here.insert(*[submission(a_task(id=f"t{at:02}")) for at in range(30)])
    _, second, *_ = await here.claim("q", limit=5)
    await here.settle(second, Released())
    assert [task.id for task in await here.claim("q", limit=2)] == ["t01", "t05"]


async def test_a_claim_that_finds_too_little_looks_at_its_whole_lane(servers: list[Driver]) -> None:
    here, elsewhere = servers
    await here.insert(*[submission(a_task(id=f"t{at:02}")) for at in range(8)])
    first, *_ = await here.claim("q", limit=5)
    await elsewhere.settle(first, Released())
    assert sorted(task.id for task in await here.claim("q", limit=9)) == [
        "t00",
        "t05",
        "t06",
        "t07",
    ]
    assert await here.claim("q", limit=9) == []


async def test_a_cap_holds_over_all_servers(servers: list[Driver]) -> None:
    async def submit(driver: Driver, at: int) -> Fate:
        inserted = await driver.insert(submission(a_task(id=f"t{at}"), cap=10))
        return inserted.receipts[0].fate

    fates = await asyncio.gather(*[submit(servers[at % 2], at) for at in range(40)])
    assert sorted(fates) == [Fate.FRESH] * 10 + [Fate.FULL] * 30


async def test_one_key_is_one_task_whichever_server_it_comes_to(servers: list[Driver]) -> None:
    async def submit(driver: Driver, at: int) -> str:
        keyed = submission(a_task(id=f"t{at}"), key=Key("s", "k", "body"))
        return (await driver.insert(keyed)).receipts[0].task

    tasks = await asyncio.gather(*[submit(servers[at % 2], at) for at in range(20)])
    assert len(set(tasks)) == 1
    assert [task.id for task in await servers[0].all()] == tasks[:1]


async def test_a_key_of_a_submission_that_found_no_room_is_free_again(
    servers: list[Driver],
) -> None:
    driver = servers[0]
    await driver.submit()
    keyed = submission(a_task(id="later"), cap=1, key=Key("s", "k", "body"))
    again = submission(a_task(id="twin"), cap=1, key=Key("s", "k", "body"))
    assert [one.fate for one in (await driver.insert(keyed, again)).receipts] == [Fate.FULL] * 2
    await driver.claim("q")
    assert (await driver.insert(keyed)).receipts[0].fate is Fate.FRESH


async def test_letters_from_two_servers_are_all_kept(servers: list[Driver]) -> None:
    await servers[0].submit(id="parent", waiting_for="event")

    async def post(driver: Driver, at: int) -> None:
        letter = Letter(to="parent", name="n", body=str(at))
        await driver.store.post([letter], now=NOW)

    await asyncio.gather(*[post(servers[at % 2], at) for at in range(30)])
    (claimed,) = await servers[0].claim("q")
    assert sorted(int(letter.body) for letter in claimed.letters) == list(range(30))


async def test_counts_are_the_same_after_they_were_added_up(servers: list[Driver]) -> None:
    first, second = servers
    for at in range(30):
        await servers[at % 2].submit(id=f"t{at}", queue=f"q{at % 3}")
    before = await first.store.counts()
    await asyncio.gather(*[_database(driver).compact(0) for driver in servers])
    assert await second.store.counts() == before == await first.recount()


# The log.


async def test_the_log_is_not_read_past_a_transaction_under_way(
    servers: list[Driver], other: psycopg.Connection[tuple[Any, ...]]
) -> None:
    first, second = servers
    await first.submit(id="before")
    other.execute("INSERT INTO event (tid, n, generation, type, at) VALUES (1, 9, 1, 'slow', 0)")
    await second.submit(id="after")
    page = await first.store.events(after="", limit=100)
    assert {event.task for event in page.items} == {"before"}
    again = await first.store.events(after=page.next or "", limit=100)
    assert not again.items
    other.commit()
    later = await first.store.events(after=again.next or "", limit=100)
    assert [event.type for event in later.items][:2] == ["slow", "task.created"]
    other.close()


async def test_a_number_that_was_rolled_back_holds_nothing_up(
    servers: list[Driver], other: psycopg.Connection[tuple[Any, ...]]
) -> None:
    await servers[0].submit(id="before")
    other.execute("INSERT INTO event (tid, n, generation, type, at) VALUES (1, 9, 1, 'slow', 0)")
    other.rollback()
    other.close()
    await servers[1].submit(id="after")
    assert {event.task for event in await servers[0].log()} == {"before", "after"}


async def test_a_gap_that_is_settled_is_settled_for_every_reader(
    servers: list[Driver], other: psycopg.Connection[tuple[Any, ...]], url: str
) -> None:
    """One waits at the gap, the other reads beyond it, and there is always a writer under way."""
    slow = "INSERT INTO event (tid, n, generation, type, at) VALUES (1, %s, 1, 'slow', 0)"
    first, second = servers
    await first.submit(id="before")
    other.execute(slow, (8,))
    await second.submit(id="after")
    waiting = await first.store.events(after="", limit=100)
    assert {event.task for event in waiting.items} == {"before"}
    ((beyond,),) = await _execute(first, "SELECT max(seq) FROM event")
    with psycopg.connect(url, options="-c search_path=onward") as steady:
        steady.execute(slow, (9,))
        other.rollback()  # its number stays a gap
        other.close()
        await second.submit(id="later")
        assert not (await first.store.events(after=str(beyond), limit=100)).items
        found = await first.store.events(after=waiting.next or "", limit=100)
        assert {event.task for event in found.items} == {"after"}
        steady.rollback()
    found = await first.store.events(after=found.next or "", limit=100)
    assert {event.task for event in found.items} == {"later"}


async def test_another_users_open_transaction_does_not_hold_the_log(
    servers: list[Driver], url: str
) -> None:
    stranger = psycopg.connect(url)
    stranger.execute("CREATE TABLE theirs (n int)")
    stranger.execute("INSERT INTO theirs VALUES (1)")
    await servers[0].submit(id="t")
    assert {event.task for event in await servers[1].log()} == {"t"}
    stranger.close()


# Faults.


class LostReply(TransactionWriter):
    """The reply to a COMMIT is lost; the COMMIT itself perhaps too."""

    committed = True

    async def _commit(self, connection: asyncpg.Connection, xid: str | None) -> None:
        if self.committed:
            await connection.execute("COMMIT")
        connection.terminate()
        await super()._commit(connection, xid)


@pytest.mark.parametrize("committed", [True, False])
async def test_the_fate_of_an_unanswered_commit_is_asked_for(url: str, committed: bool) -> None:
    driver = Driver(PostgresBackend(url))
    await driver.submit(id="before")
    database = _database(driver)
    writer = LostReply(database._connect_writer, database._bound, database._fate)
    writer.committed = committed
    sound, database._intake = database._intake, writer
    if committed:
        assert (await driver.insert(submission(a_task(id="t")))).receipts[0].fate is Fate.FRESH
    else:
        with pytest.raises(LedgerUnavailable):
            await driver.insert(submission(a_task(id="t")))
    database._intake = sound
    found = [task.id for task in await driver.all()]
    assert found == (["before", "t"] if committed else ["before"])
    await driver.backend.close()


async def test_a_write_is_two_statements_between_begin_and_commit(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a trip, with the rows of its tasks locked: what it changes, and what it notes."""
    driver = Driver(PostgresBackend(url))
    sent: list[str] = []
    fetch = asyncpg.Connection.fetch

    async def counted(self: asyncpg.Connection, text: str, *given: Any) -> Any:
        if not text.startswith("LISTEN"):  # the bell's, which connects by itself
            sent.append(text)
        return await fetch(self, text, *given)

    await driver.submit(id="before")  # connects
    monkeypatch.setattr(asyncpg.Connection, "fetch", counted)
    await driver.insert(submission(a_task(id="t")))
    assert len(sent) == 2
    (held, _) = await driver.claim("q", limit=2)
    assert len(sent) == 4
    await driver.settle(held, Succeeded("1"))
    assert len(sent) == 6
    assert (await driver.recount()) == (await driver.store.counts())
    await driver.backend.close()


async def test_a_deadlock_is_tried_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(PostgresBackend(url))
    await driver.submit(id="before")
    once = [asyncpg.DeadlockDetectedError("deadlock detected")]
    drive = TransactionWriter._drive

    async def unlucky(self: TransactionWriter, *given: Any) -> Any:
        if once:
            raise once.pop()
        return await drive(self, *given)

    monkeypatch.setattr(TransactionWriter, "_drive", unlucky)
    assert (await driver.submit(id="t")).id == "t"
    await driver.backend.close()


async def test_a_connection_whose_driver_is_out_of_step_is_made_anew(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut in mid-operation leaves asyncpg's protocol waiting for an answer that never comes."""
    driver = Driver(PostgresBackend(url))
    await driver.submit(id="before")
    stale = _database(driver)._intake._connection
    assert stale is not None

    async def out_of_step(*_: Any) -> None:
        raise asyncpg.InternalClientError(
            "cannot switch to state 15; another operation is in progress"
        )

    execute = asyncpg.Connection.execute
    monkeypatch.setattr(
        asyncpg.Connection,
        "execute",
        lambda self, *given: out_of_step() if self is stale else execute(self, *given),
    )
    with pytest.raises(LedgerUnavailable):
        await driver.submit(id="during")
    assert (await driver.submit(id="after")).id == "after"
    assert stale.is_closed()
    await driver.backend.close()


async def test_a_plan_that_others_stand_in_the_way_of_is_left_behind_alone(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(PostgresBackend(url))
    await driver.submit(id="before")
    bound = _database(driver)._bound

    def blocked(step: Step) -> Any:
        if step.rows and any("stuck" in row for row in step.rows):
            raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
        return bound(step)

    monkeypatch.setattr(_database(driver)._intake, "_bound", blocked)
    tasks = [submission(a_task(id=id)) for id in ("first", "stuck", "last")]
    results = await asyncio.gather(*map(driver.insert, tasks), return_exceptions=True)
    assert [isinstance(one, LedgerUnavailable) for one in results] == [False, True, False]
    await driver.backend.close()


async def test_connections_that_were_cut_are_made_anew(servers: list[Driver]) -> None:
    driver, watching = servers
    await driver.submit(id="before")
    await watching.submit(id="other")
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onward'"
    await _execute(driver, f"{cut} AND pid <> pg_backend_pid()")
    await wait_until(lambda: _works(driver))
    assert {task.id for task in await driver.all()} >= {"before", "other"}


async def test_a_plan_that_fails_costs_its_neighbours_nothing(url: str) -> None:
    """They share a transaction if they wait for the connection at the same time."""
    driver = Driver(PostgresBackend(url))
    await driver.submit()
    bad = submission(a_task(id="bad", payload='"\x00"'))
    good = [submission(a_task(id=f"t{at}")) for at in range(5)]
    results = await asyncio.gather(
        *[driver.insert(one) for one in (*good[:3], bad, *good[3:])], return_exceptions=True
    )
    assert [type(one).__name__ for one in results if isinstance(one, Exception)] == ["ValueError"]
    assert {task.id for task in await driver.all()} >= {f"t{at}" for at in range(5)}
    await driver.backend.close()


# News.


async def test_servers_hear_of_each_others_work(servers: list[Driver]) -> None:
    ours, theirs = Peer(), Peer()
    for driver, peer in zip(servers, (ours, theirs), strict=True):
        driver.backend.bell.attach(peer)
        await driver.backend.maintain()
    await servers[0].backend.maintain()  # each has been heard of by now
    await servers[0].submit(id="t")
    await wait_until(lambda: theirs.queues == ["q"])
    (held,) = await servers[1].claim("q")
    assert await servers[1].settle(held, Succeeded("1")) is Verdict.APPLIED
    await wait_until(lambda: "t" in ours.ended)
    assert not theirs.ended, "a server hears only of others"


async def test_very_long_names_still_ring(servers: list[Driver]) -> None:
    theirs = Peer()
    servers[1].backend.bell.attach(theirs)
    await servers[1].backend.maintain()
    await servers[0].submit(id="t", queue="q" * 9_000)
    await servers[0].submit(id="short")
    await wait_until(lambda: "q" in theirs.queues)


async def test_many_endings_and_long_names_reach_another_server(servers: list[Driver]) -> None:
    theirs = Peer()
    servers[1].backend.bell.attach(theirs)
    await servers[1].backend.maintain()
    ids = [new_id() for _ in range(150)]
    queue = "café-" * 1_000  # 5,000 characters, 6,000 bytes
    bell = servers[0].backend.bell
    assert isinstance(bell, PostgresBell)
    bell.publish({queue, "short"}, {**dict.fromkeys(ids, True), "going-on": False})
    await wait_until(lambda: len(theirs.ended) == 150)
    await wait_until(lambda: sorted(theirs.queues) == sorted([queue, "short"]))
    assert sorted(theirs.tasks) == sorted([*ids, "going-on"])
    assert "going-on" not in theirs.ended


async def test_a_name_that_no_message_can_hold_rings_the_log(servers: list[Driver]) -> None:
    theirs = Peer()
    bells = [server.backend.bell for server in servers]
    bells[1].attach(theirs)
    await servers[1].backend.maintain()
    assert isinstance(bells[0], PostgresBell)
    async with bells[1].listen("log") as listener:
        bells[0].publish({"é" * 4_000}, {})
        async with asyncio.timeout(30):
            await listener.wait()
    assert not theirs.queues


# Opening.


async def test_a_newer_ledger_is_not_opened(
    url: str, other: psycopg.Connection[tuple[Any, ...]]
) -> None:
    backend = PostgresBackend(url)
    await backend.maintain()
    await backend.close()
    other.execute("UPDATE ledger SET version = 99")
    other.commit()
    other.close()
    with pytest.raises(LedgerUnavailable, match="newer Onward"):
        await PostgresBackend(url).maintain()


async def test_a_ledger_without_a_newer_field_gets_its_column(
    url: str, other: psycopg.Connection[tuple[Any, ...]]
) -> None:
    driver = Driver(PostgresBackend(url))
    await driver.submit(id="old")
    await driver.backend.close()
    other.execute("ALTER TABLE task DROP COLUMN overdue, DROP COLUMN progress")
    other.commit()
    other.close()
    driver = Driver(PostgresBackend(url))
    assert (await driver.task("old")).overdue is False
    assert (await driver.submit(id="new", progress="1")).progress == "1"
    await driver.backend.close()


async def test_servers_that_start_together_make_the_tables_once(url: str) -> None:
    backends = [PostgresBackend(url) for _ in range(4)]
    await asyncio.gather(*[backend.maintain() for backend in backends])
    await Driver(backends[0]).submit(id="t")
    assert [task.id for task in await Driver(backends[3]).all()] == ["t"]
    for backend in backends:
        await backend.close()


async def test_a_database_that_is_not_there_is_told_as_such() -> None:
    url = shared_postgres("postgres15").url("nowhere")
    with pytest.raises(NotLetIn, match="nowhere"):
        await PostgresBackend(url).maintain()


async def test_a_user_who_may_not_make_the_schema_is_shown_the_grant() -> None:
    server = shared_postgres("postgres15")
    url = server.fresh_url()
    server.admin.execute("DROP ROLE IF EXISTS onlooker")
    server.admin.execute("CREATE ROLE onlooker LOGIN")
    theirs = url.replace("//onward@", "//onlooker@")
    with pytest.raises(NotLetIn, match="refuses to create the schema onward") as refused:
        await PostgresBackend(theirs).maintain()
    assert "GRANT CREATE ON DATABASE" in (refused.value.hint or "")
    assert "TO onlooker" in (refused.value.hint or "")


# Plans.


@pytest.mark.parametrize(
    "query",
    [
        Query(states=frozenset({State.DEAD})),
        Query(states=frozenset({State.DEAD}), fingerprint="x"),
        Query(states=frozenset({State.WAITING}), waiting_for="approval"),
        Query(approval="rejected"),
        Query(session="s"),
        Query(parent="p"),
    ],
)
async def test_a_search_for_trouble_reads_an_index(url: str, query: Query) -> None:
    driver = Driver(PostgresBackend(url))
    asked = [an_ask("q", limit=1)]
    await driver.insert(*[submission(a_task()) for _ in range(50)], asks=tuple(asked))
    plan = await _explained(driver, query)
    assert "Seq Scan" not in plan
    await driver.backend.close()


async def _explained(driver: Driver, query: Query) -> str:
    where, values = matching(query)
    text, *arguments = _database(driver)._bound(Step("find", (10, *values), where=where))
    rows = await _execute(driver, f"EXPLAIN {text}", *arguments)
    return "\n".join(str(row[0]) for row in rows)


def _database(driver: Driver) -> Any:
    assert isinstance(driver.backend, PostgresBackend)
    return driver.backend.database


async def _execute(driver: Driver, statement: str, *arguments: Any) -> Sequence[Any]:
    connection = await _database(driver).connect()
    try:
        return list(await connection.fetch(statement, *arguments))
    finally:
        await connection.close()


async def _works(driver: Driver) -> bool:
    try:
        await driver.submit()
    except LedgerUnavailable:
        return False
    return True


# Notes of what bounds count.


async def test_notes_of_a_queue_that_is_not_claimed_from_any_more_are_read(
    servers: list[Driver], other: psycopg.Connection[tuple[Any, ...]]
) -> None:
    def notes() -> int:
        with other.transaction():
            found = other.execute("SELECT count(*) FROM ring_freed").fetchone()
        return 0 if found is None else int(found[0])

    here, elsewhere = servers
    bounds = (Bound("each", True, 1, None, ("q",)),)
    first, second = await here.submit_some(2, partition="a")
    (held,) = await here.claim(limit=2, bounds=bounds)
    assert await elsewhere.settle(held, Succeeded("1")) is Verdict.APPLIED
    for queue in ("left", "behind"):
        await here.finished(queue=queue, partition="a")
    with other:
        assert notes() == 3
        await elsewhere.backend.maintain()
        assert notes() == 3, "they may be younger than the next claim"
        await elsewhere.backend.maintain()
        assert notes() == 0
    assert held.id == first.id
    assert [task.id for task in await here.claim(limit=2, bounds=bounds)] == [second.id]
