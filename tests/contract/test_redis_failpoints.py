"""A call that fails at any of its commands leaves a Redis ledger in which everything agrees."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from redis import Redis
from redis.exceptions import ResponseError

from onward.core.contract import Ask, Key, LeaseRenewal, Move, Verdict
from onward.core.limits import Bound, Rate
from onward.core.outcome import Failed, Parked, Released, Succeeded
from onward.core.policy import Overrides
from onward.core.task import Letter
from onward.faults import Fault
from onward.ledgers.redis import RedisBackend, client
from onward.ledgers.redis.repair import RowRepair
from tests.contract.driver import Driver, submission
from tests.faults.redis_invariants import check_redis_invariants
from tests.servers import FLAVOURS, fresh_url, shared
from tests.support import NOW, a_task, an_ask

BOOM = Fault(kind="Boom", message="no", retryable=True)
IN_5_S = Overrides(backoff_ms=(5_000,)).encode()
FROM = "call, write_, faults = redis.call, redis.pcall, {}"
# Counts every command of the next call, reads and writes alike; the one that is meant is executed,
# and answered with an error.
TRIPPING = """
local calls = 0
local function tripping(inner, raises)
  return function(...)
    local reply = inner(...)
    calls = calls + 1
    if calls ~= %d then return reply end
    if raises then error('tripped') end
    return { err = 'tripped' }
  end
end
"""


def library_that_fails_at(n: int) -> str:
    first, rest = client.LIBRARY.split("\n", 1)
    assert FROM in rest
    to = "call, write_, faults = tripping(redis.call, true), tripping(redis.pcall), {}"
    return f"{first}\n{TRIPPING % n}{rest.replace(FROM, to)}"


@pytest.fixture(params=FLAVOURS)
async def flavour(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    yield str(request.param)
    shared(str(request.param)).client.function_load(client.LIBRARY, replace=True)


Moves = tuple[tuple[Move, ...], tuple[Ask, ...]]


async def one_ends_and_one_is_tried_again(driver: Driver) -> Moves:
    """With a letter to a parent that waits, and free hands that take what is queued."""
    parent = await driver.submit(waiting_for="event", expires_at=NOW + 60_000)
    child, other = await driver.running(queue="a"), await driver.running(queue="b")
    await driver.submit_some(2, queue="c", payload=f'"{"x" * 100}"')
    over = driver.decide(child, Succeeded(f'"{"x" * 100}"'))
    over = msgspec.structs.replace(over, letters=(Letter(to=parent.id, name="end", body="1"),))
    return (over, driver.decide(other, Failed(BOOM))), (an_ask("c", limit=2),)


async def one_parks_with_children_and_one_goes_back(driver: Driver) -> Moves:
    """It has read one letter of two, so that it is woken at once."""
    run, other = await driver.running(queue="a"), await driver.running(queue="b")
    await driver.submit_some(2, queue="b")
    await driver.post(run.id, "1", "2")
    parked = driver.decide(run, Parked(seen=1, journal="{}", waiting_for="event"))
    keyed = submission(a_task(queue="d"), key=Key("s", "k", "body"))
    parked = msgspec.structs.replace(parked, spawn=(submission(a_task(session="s")), keyed))
    return (parked, driver.decide(other, Released())), ()


async def one_dies_and_one_is_offered(driver: Driver) -> Moves:
    dying = await driver.running(queue="a")
    await driver.submit(queue="b")
    (offered,) = await driver.claim("b", lease_ms=None)
    dead = driver.decide(dying, Failed(msgspec.structs.replace(BOOM, retryable=False)))
    return (dead, driver.decide(offered, Succeeded("1"))), ()


EACH = Bound("each", True, 1, None, ("p", "r"))
MAIL = Bound("mail", False, 1, Rate(10, 1_000), (), ("mail",))


async def one_of_a_partition_ends_and_one_is_tried_again_in_order(driver: Driver) -> Moves:
    """Both partitions are out, in two queues; types are passed over in a third."""
    fields: dict[str, Any] = {"queue": "p", "strict": True, "overrides": IN_5_S}
    for partition in ("a", "b"):
        await driver.submit_some(2, partition=partition, **fields)
        await driver.submit(queue="r", partition=partition)
    ending, failing = await driver.claim("p", limit=4, bounds=(EACH,))
    assert await driver.claim("p", "r", limit=4, bounds=(EACH,)) == []
    for type_ in ("mail", "mail", "mail", "page"):
        await driver.submit(queue="c", type=type_, tags='["x"]')
    moves = driver.decide(ending, Succeeded("1")), driver.decide(failing, Failed(BOOM))
    return moves, (an_ask("c", limit=4, bounds=(MAIL,)),)


SCENES: list[Callable[[Driver], Awaitable[Moves]]] = [
    one_ends_and_one_is_tried_again,
    one_parks_with_children_and_one_goes_back,
    one_dies_and_one_is_offered,
    one_of_a_partition_ends_and_one_is_tried_again_in_order,
]


async def rows(redis: Any, *moves: Move) -> list[Any]:
    return [redis.hgetall(f"onward:task:{move.task}") for move in moves]


def check(redis: Any) -> None:
    if redis.exists("onward:aside"):  # a claim could not read them, and now they can be read
        path = redis.connection_pool.connection_kwargs["path"]
        with Redis(unix_socket_path=path, decode_responses=True) as client:
            mending = RowRepair(client, "", mends=True, quiet=True, progress=lambda _: None)
            assert list(mending.faults())
    check_redis_invariants(redis, all_over=False)


@pytest.mark.parametrize("scene", SCENES)
async def test_a_failure_after_any_command_of_two_moves_leaves_all_in_agreement(
    flavour: str, scene: Callable[[Driver], Awaitable[Moves]]
) -> None:
    n, tripped, verdicts = 0, True, list[Verdict]()
    while tripped:
        n += 1
        backend, redis = RedisBackend(fresh_url(flavour)), shared(flavour).client
        redis.function_load(client.LIBRARY, replace=True)
        driver = Driver(backend)
        moves, asks = await scene(driver)
        before = await rows(redis, *moves)
        redis.function_load(library_that_fails_at(n), replace=True)
        try:
            verdicts = list((await driver.apply(*moves, asks=asks)).verdicts)
        except ResponseError:  # before the first write
            verdicts = [Verdict.REFUSED] * 2
        redis.function_load(client.LIBRARY, replace=True)
        faults = redis.lrange("onward:faults", 0, -1)
        tripped = any(b"tripped" in fault for fault in faults) or Verdict.REFUSED in verdicts
        check(redis)
        for verdict, row, now in zip(verdicts, before, await rows(redis, *moves), strict=True):
            assert verdict in (Verdict.APPLIED, Verdict.REFUSED)
            assert (row == now) == (verdict is Verdict.REFUSED), f"command {n}"
        await backend.close()
    assert n > 20, "that was not all of it"
    assert verdicts == [Verdict.APPLIED] * 2


async def insert(driver: Driver) -> None:
    keyed = submission(a_task(session="s", queue="new"), key=Key("s", "k", "b"))
    await driver.insert(keyed, submission(a_task(queue="c")), asks=(an_ask("a", limit=2),))


async def claim(driver: Driver) -> None:
    await driver.claim("a", limit=3)


async def claim_in_turn(driver: Driver) -> None:
    await driver.claim("p", "c", limit=9, bounds=(EACH, MAIL))


async def extend(driver: Driver) -> None:
    renewal = LeaseRenewal("held", 1, NOW + 60_000, None, (("task.progress", "1"),))
    await driver.store.extend([renewal, renewal], now=NOW)


async def post(driver: Driver) -> None:
    await driver.post("waits", "1", "2")


async def purge(driver: Driver) -> None:
    await driver.store.purge(["over", "over too"], now=NOW)


@pytest.mark.parametrize("work", [insert, claim, claim_in_turn, extend, post, purge])
async def test_the_same_holds_for_every_other_call(
    flavour: str, work: Callable[[Driver], Awaitable[None]]
) -> None:
    n, tripped = 0, True
    while tripped:
        n += 1
        backend, redis = RedisBackend(fresh_url(flavour)), shared(flavour).client
        redis.function_load(client.LIBRARY, replace=True)
        driver = Driver(backend)
        await driver.submit_some(2, queue="a", payload=f'"{"x" * 100}"')
        for at, type_ in enumerate(("mail", "mail", "page")):
            await driver.submit(queue="c", type=type_)
            await driver.submit_some(2, queue="p", partition=f"{at}", type=type_)
        await driver.submit(id="waits", waiting_for="event", partition="w")
        await driver.running(id="held", queue="r")
        for id in ("over", "over too"):
            await driver.finished(id=id, queue="f", session="t")
        redis.function_load(library_that_fails_at(n), replace=True)
        tripped = False
        try:
            await work(driver)
        except ResponseError:  # before the first write
            tripped = True
        redis.function_load(client.LIBRARY, replace=True)
        tripped = tripped or bool(redis.exists("onward:faults"))
        check(redis)
        await backend.close()
    assert n > 5, "that was not all of it"
