"""Tasks of a Redis ledger that were torn by hand: found as they are, and put back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from onward.cli.redis_tasks import examine_tasks
from onward.core.limits import Bound
from onward.core.outcome import Failed, Succeeded
from onward.faults import Fault
from onward.ledgers.redis import RedisBackend, repair
from onward.ledgers.redis.repair import RowRepair
from tests.contract.driver import Driver
from tests.faults.redis_invariants import check_redis_invariants
from tests.servers import FLAVOURS, RedisServer, fresh_url, shared
from tests.support import NOW, ids

NO_MORE = Failed(Fault(kind="Boom", message="no", retryable=False))


@pytest.fixture(params=FLAVOURS)
def server(request: pytest.FixtureRequest) -> RedisServer:
    fresh_url(str(request.param))
    return shared(str(request.param))


@pytest.fixture
async def driver(server: RedisServer) -> AsyncIterator[Driver]:
    backend = RedisBackend(server.url)
    driver = Driver(backend)
    for n in range(5):
        await driver.submit(id=f"queued-{n}", queue="a:b", payload=f'"{"x" * 100}"')
    for n in range(4):
        await driver.submit(queue="p", partition="xyz"[n % 3], type=("mail", "page")[n == 3])
    bounds = (Bound("each", True, 1, None, ("p",)), Bound("mail", False, 0, None, (), ("mail",)))
    (held,) = await driver.claim("p", bounds=bounds[:1])
    await driver.submit(queue="p", partition="x")
    assert held.partition == "x"
    assert await driver.claim("p", bounds=bounds[:1]) != []
    assert await driver.claim("p", limit=9, bounds=bounds[:1]) != []
    await driver.submit(queue="m", type="mail")
    assert await driver.claim("m", bounds=bounds[1:]) == []
    await driver.running(id="running", queue="r")
    await driver.submit(id="scheduled", run_at=NOW + 10)
    await driver.submit(id="asked", waiting_for="approval")
    await driver.settle(await driver.running(id="dead", queue="d"), NO_MORE)
    await driver.settle(await driver.running(id="over", queue="o"), Succeeded("1"))
    yield driver
    await backend.close()


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    with redis.Redis(unix_socket_path=str(server.socket), decode_responses=True) as client:
        yield client


def faults(client: Any, *, mends: bool = False, quiet: bool = True) -> set[tuple[str, str]]:
    looked: list[int] = []
    found = RowRepair(client, "", mends=mends, quiet=quiet, progress=looked.append).faults()
    return set(found)


RING = "onward:ring:1:primary:p"
QUEUE = "onward:queue:1:primary:a:b"
LACKS_ONE = ("queued, and not in its list", "1 of 1:primary:a:b")
TEARS: dict[str, tuple[tuple[Any, ...], set[tuple[str, str]]]] = {
    "in no list": (("LREM", QUEUE, 0, "queued-1"), {LACKS_ONE}),
    "no list at all": (("DEL", QUEUE), {("queued, and not in its list", "5 of 1:primary:a:b")}),
    "twice in its list": (("RPUSH", QUEUE, "queued-1"), {("twice in its queue", "queued-1")}),
    "in another's list": (
        ("RPUSH", "onward:queue:0:primary:a:b", "queued-1"),
        {("in queue 0:primary:a:b by mistake", "queued-1")},
    ),
    "a list with nobody": (
        ("RPUSH", QUEUE, "ghost"),
        {("in queue 1:primary:a:b by mistake", "ghost")},
    ),
    "without a lease": (
        ("ZREM", "onward:running", "running"),
        {("not in onward:running as its row says", "running")},
    ),
    "with another lease": (
        ("ZADD", "onward:running", 5, "running"),
        {("not in onward:running as its row says", "running")},
    ),
    "without an alarm": (
        ("ZREM", "onward:alarms", "scheduled"),
        {("not in onward:alarms as its row says", "scheduled")},
    ),
    "a lease of nobody": (
        ("ZADD", "onward:running", 5, "ghost"),
        {("no such task, in onward:running", "ghost")},
    ),
    "over, and running": (
        ("ZADD", "onward:running", 5, "over"),
        {("in onward:running by mistake", "over")},
    ),
    "not among the dead": (
        ("ZREM", "onward:dead", "dead"),
        {("not in onward:dead as its row says", "dead")},
    ),
    "not among the approvals": (
        ("ZREM", "onward:approvals", "asked"),
        {("not in onward:approvals as its row says", "asked")},
    ),
    "not in the index": (("ZREM", "onward:index", "dead"), {("not in onward:index", "dead")}),
    "an index of nobody": (
        ("ZADD", "onward:index", 99, "ghost"),
        {("no such task, in onward:index", "ghost")},
    ),
    "counts": (
        ("HSET", "onward:counts", "a:b:primary:queued", 7, "z:running", 1),
        {("counted 5, kept 7", "a:b:primary:queued"), ("counted 0, kept 1", "z:running")},
    ),
    "out": (
        ("ZREM", "onward:out:1:primary:p", "x"),
        {("queued, and has no turn", f"x {RING[7:]}")},
    ),
    "in a ring by mistake": (
        ("ZADD", RING, 5, "ghost"),
        {("has turns, and nothing is queued", f"ghost {RING[7:]}")},
    ),
    "never back": (
        ("DEL", "onward:back:x"),
        {("out, and would not come back", "1:primary:p back:x")},
    ),
    "back by mistake": (
        ("SADD", "onward:back:z", "1:primary:p"),
        {("is not out", "1:primary:p back:z")},
    ),
    "a type that was passed over": (
        ("DEL", "onward:passed:1:primary:m"),
        {("was passed over, and is not noted", "mail passed:1:primary:m")},
    ),
    "no rings": (("DEL", "onward:rings"), {("has a ring, and is not noted", "1:primary:p rings")}),
    "rings of nobody": (
        ("HSET", "onward:rings", "1:primary:q", ""),
        {("has no ring", "1:primary:q rings")},
    ),
    "what occupies": (
        ("HSET", "onward:occupied:type:mail", "r", 7),
        {("counted 1, kept 7", "type:mail:r")},
    ),
    "in a partition": (
        ("HDEL", "onward:occupied:in:p\x1fx", "mail"),
        {("counted 1, kept 0", "in:p\x1fx:mail")},
    ),
    "set aside": (
        ("ZADD", "onward:aside", 5, "queued-1"),
        {("in onward:aside by mistake", "queued-1")},
    ),
}


@pytest.mark.parametrize("step", [200, 2])
@pytest.mark.parametrize("tear", TEARS)
async def test_each_tear_is_found_and_mended(
    driver: Driver,
    server: RedisServer,
    client: Any,
    tear: str,
    step: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repair, "STEP", step)
    command, found = TEARS[tear]
    assert faults(client) == set()
    client.execute_command(*command)
    assert found <= faults(client)
    assert found <= faults(client), "looking changes nothing"
    assert found <= faults(client, mends=True)
    assert faults(client) == set()
    check_redis_invariants(server.client, all_over=False)
    assert ids(await driver.claim("a:b", limit=9)) == [f"queued-{n}" for n in range(5)]


async def test_a_row_that_cannot_be_read_is_named_and_left(driver: Driver, client: Any) -> None:
    client.hdel("onward:task:queued-1", "type")
    assert ("its row cannot be read", "queued-1") in faults(client)
    (found, *_) = [
        finding
        for finding in examine_tasks(client, "", repair=True)
        if "cannot be read" in finding.found
    ]
    assert "hgetall onward:task:queued-1" in found.todo
    assert client.exists("onward:task:queued-1")
    assert ids(await driver.claim("a:b", limit=9)) == [
        "queued-0",
        *(f"queued-{n}" for n in (2, 3, 4)),
    ]


async def test_nothing_is_mended_while_a_server_runs(driver: Driver, client: Any) -> None:
    now = int(client.time()[0]) * 1000
    docs = driver.backend.documents
    await docs.put("server", "s1", "{}", now=now, expires_at=now + 60_000)
    client.lrem(QUEUE, 0, "queued-1")
    client.hset("onward:counts", "z:running", 1)
    warning, tasks = examine_tasks(client, "", repair=True)
    assert (warning.mark, warning.about) == ("!", "repair")
    assert warning.found == "nothing was repaired: 1 server runs with this ledger"
    assert "stop all" in warning.todo
    assert "counts were not compared" in tasks.found
    assert client.llen(QUEUE) == 4
    (found,) = examine_tasks(client, "", repair=False)
    assert "counts were not compared" in found.found


async def test_the_doctor_tells_what_it_found_and_what_it_repaired(
    driver: Driver, client: Any
) -> None:
    (well,) = examine_tasks(client, "", repair=False)
    assert (well.mark, well.found) == ("✓", "16, each where its row says")
    client.delete(QUEUE)
    client.lpush("onward:faults", "1 ZADD onward:x: WRONGTYPE")
    torn, refused = examine_tasks(client, "", repair=False)
    assert torn.mark == "✗"
    assert torn.found == "1 × queued, and not in its list: 5 of 1:primary:a:b"
    assert "--repair" in torn.todo
    assert "refused 1 writes, lately 1 ZADD onward:x" in refused.found
    mended, _ = examine_tasks(client, "", repair=True)
    assert (mended.mark, mended.found.startswith("repaired: 1 ×")) == ("✓", True)
    assert [finding.mark for finding in examine_tasks(client, "", repair=False)] == ["✓"]
