"""A ledger of the last layout, as its own version wrote it, is brought to this one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.exceptions import ResponseError

from onward.core.contract import Fate, Key
from onward.core.errors import Invalid
from onward.core.limits import Bound
from onward.core.task import State
from onward.ledgers.redis import RedisBackend, layout
from tests.contract.driver import Driver, submission
from tests.faults.redis_invariants import check_nothing_was_refused, check_redis_invariants
from tests.servers import FLAVOURS, fresh_url, shared
from tests.support import a_task, wait_until

OLD = Path(__file__).with_name("layout_2.jsonl")
STATES = {"queued": 18, "running": 4, "scheduled": 2, "waiting": 1, "dead": 1, "succeeded": 1}


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def old_ledger(flavour: str, prefix: str = "") -> Any:
    fresh_url(flavour)
    redis: Any = shared(flavour).client
    for line in OLD.read_text().splitlines():
        command, key, *rest = json.loads(line)
        if prefix:
            rest = [f"{prefix}{part}" if part.startswith("onward:key:") else part for part in rest]
        redis.execute_command(command, prefix + key, *rest)
    return redis


async def opened(flavour: str, prefix: str = "") -> Driver:
    backend = RedisBackend(shared(flavour).url, prefix=prefix)
    try:
        await backend.functions.prepare()
    except BaseException:
        await backend.close()
        raise
    return Driver(backend)


async def check_all(driver: Driver, redis: Any) -> None:
    check_redis_invariants(redis, all_over=False)
    check_nothing_was_refused(redis)
    tasks = await driver.all()
    assert {state: sum(task.state == state for task in tasks) for state in STATES} == STATES
    assert await driver.store.counts() == await driver.recount()
    # Two queues stood in one list: each has its own tasks, in order.
    for queue, ids in {
        "summarize": [*range(3), 12, 13, 14],
        "high": range(3, 6),
        "orders": range(6, 9),
        "orders:high": range(9, 12),
    }.items():
        claimed = await driver.claim(queue, limit=9)
        assert [task.id for task in claimed] == [f"queued-{n}" for n in ids]
        assert all(len(task.payload) > 80 for task in claimed)
    assert [task.id for task in await driver.claim("back", limit=9)] == ["back-20", "queued-21"]
    lettered = await driver.task("lettered-23")
    assert lettered.state is State.RUNNING
    assert redis.llen("onward:mail:lettered-23") == 4
    assert len((await driver.task("over-25")).result or "") > 80
    found = await driver.backend.sessions.get("agent|1")
    assert found is not None
    assert found.tasks == 2
    again = submission(a_task(queue="k"), key=Key("s", "k", "body"))
    (receipt,) = (await driver.insert(again)).receipts
    assert (receipt.fate, receipt.task) == (Fate.KNOWN, "keyed-26")
    charged = msgspec.structs.replace(a_task(queue="k"), id="keyed-99", fence=9)
    effect = await driver.backend.effects.begin(charged, "charge", now=driver.now)
    assert effect is not None
    assert effect.value == '"done"'
    assert await driver.backend.documents.get("service", "summarize", now=driver.now) is not None
    assert redis.zscore("onward:ends", "server\x1fgone") is not None
    foreign = [key for key in redis.scan_iter() if not key.startswith(b"onward:")]
    assert foreign == [], "what only the old version wrote is gone"
    left = redis.exists("onward:migrating", "onward:sorting")
    assert (left, redis.get("onward:layout")) == (0, b"4")


@pytest.mark.parametrize("step", [200, 1])
async def test_every_task_keeps_its_state_place_and_parts(
    flavour: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "STEP", step)
    redis = old_ledger(flavour)
    driver = await opened(flavour)
    await check_all(driver, redis)
    await driver.backend.close()


async def test_it_goes_on_wherever_it_was_stopped(
    flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "STEP", 5)
    steps = 0
    while True:
        redis = old_ledger(flavour)
        stopped = await interrupted(flavour, after=steps)
        driver = await opened(flavour)
        await check_all(driver, redis)
        await driver.backend.close()
        if not stopped:
            break
        steps += 1
    assert steps > 10


async def interrupted(flavour: str, after: int) -> bool:
    """So many commands of a migration, and no more; whether that was before its end."""
    backend = RedisBackend(shared(flavour).url)
    command, left = backend.functions.command, after

    async def counted(*arguments: Any) -> Any:
        nonlocal left
        if left == 0:
            raise asyncio.CancelledError
        left -= 1
        return await command(*arguments)

    backend.functions.command = counted  # type: ignore[method-assign]
    try:
        await backend.functions.prepare()
    except asyncio.CancelledError:
        return True
    finally:
        await backend.close()
    return False


@pytest.mark.slow
async def test_it_goes_on_after_its_process_was_killed(flavour: str) -> None:
    redis = old_ledger(flavour)
    code = (
        "import asyncio\n"
        "from onward.ledgers.redis import RedisBackend, layout\n"
        "layout.STEP = 1\n"
        f"backend = RedisBackend({shared(flavour).url!r})\n"
        "asyncio.run(backend.functions.prepare())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])  # noqa: ASYNC220 killed below
    try:
        await wait_until(lambda: redis.get("onward:layout") == b"4")
    finally:
        process.kill()
        process.wait()
    driver = await opened(flavour)
    await check_all(driver, redis)
    await driver.backend.close()


async def test_two_servers_that_start_at_once_migrate_together(
    flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "STEP", 1)
    redis = old_ledger(flavour)
    one, two = await asyncio.gather(opened(flavour), opened(flavour))
    await check_all(one, redis)
    for driver in (one, two):
        await driver.backend.close()


async def test_a_server_that_looked_before_another_migrated_begins_nothing_anew(
    flavour: str,
) -> None:
    redis = old_ledger(flavour)
    late = RedisBackend(shared(flavour).url)
    command = late.functions.command

    async def after_the_other(*arguments: Any) -> Any:
        if layout._BEGIN in arguments:
            await (await opened(flavour)).backend.close()
        return await command(*arguments)

    late.functions.command = after_the_other  # type: ignore[method-assign]
    await late.functions.prepare()
    await check_all(Driver(late), redis)
    await late.close()


async def test_it_waits_for_servers_of_the_old_version_to_stop(flavour: str) -> None:
    redis = old_ledger(flavour)
    redis.hset("onward:doc:server", "s1", f"1\x1f{int(redis.time()[0]) * 1000 + 60_000}\x1f{{}}")
    with pytest.raises(Invalid, match="still run: s1") as refused:
        await opened(flavour)
    assert "stop all servers" in str(refused.value.hint)
    assert redis.get("onward:layout") == b"2", "nothing is touched"
    redis.hdel("onward:doc:server", "s1")
    theirs = "redis.register_function('onward3_insert', function() return 'theirs' end)"
    redis.function_load(f"#!lua name=onward3\n{theirs}", replace=True)
    driver = await opened(flavour)
    assert not redis.function_list("onward3"), "one that comes back cannot write beside us"
    await driver.backend.close()


async def test_what_others_put_under_the_old_names_is_left_alone(flavour: str) -> None:
    redis = old_ledger(flavour)
    redis.rpush("tasks:pending:primary", "foreign")
    redis.delete("tasks:scheduled")
    redis.set("tasks:scheduled", "a string")
    redis.hset("task:foreign", "status", "PENDING")
    redis.delete("task:queued-14")
    redis.set("task:queued-14", "metadata of an agent")
    redis.delete("tasks:pending:primary:orders:high")
    redis.set("tasks:pending:primary:orders:high", "another string")
    driver = await opened(flavour)
    assert redis.lrange("tasks:pending:primary", 0, -1) == [b"queued-14", b"foreign"]
    assert redis.get("tasks:scheduled") == b"a string"
    assert redis.get("tasks:pending:primary:orders:high") == b"another string"
    assert redis.exists("task:foreign", "task:queued-14") == 2
    assert (await driver.store.get(["queued-14"]))[0] is None
    assert redis.zscore("onward:index", "queued-14") is None, "no task of ours is left of it"
    assert await driver.store.counts() == await driver.recount()
    await driver.backend.close()


async def test_what_others_put_there_after_a_task_was_moved_does_not_replace_it(
    flavour: str,
) -> None:
    redis = old_ledger(flavour)
    redis.set("onward:counts", "of no use")  # fails half way through the first step
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await opened(flavour)
    assert redis.exists("onward:task:queued-0") == 1
    redis.hset("task:queued-0", "status", "PENDING")
    redis.delete("onward:counts")
    driver = await opened(flavour)
    assert (await driver.task("queued-0")).queue == "summarize"
    assert redis.hgetall("task:queued-0") == {b"status": b"PENDING"}
    await driver.backend.close()


async def test_a_prefix_stays_in_front(flavour: str) -> None:
    redis = old_ledger(flavour, prefix="{onward}:")
    driver = await opened(flavour, prefix="{onward}:")
    assert await driver.store.counts() == await driver.recount()
    assert [key for key in redis.scan_iter() if not key.startswith(b"{onward}:onward:")] == []
    await driver.backend.close()


async def layout_3(flavour: str) -> Any:
    """What runs was not counted by type."""
    driver = Driver(RedisBackend(fresh_url(flavour)))
    for n in range(7):
        await driver.running(queue=f"q{n % 2}", type=("mail", "page")[n % 3 == 0])
    await driver.submit(queue="q0")
    await driver.backend.close()
    redis: Any = shared(flavour).client
    redis.delete(*redis.keys("onward:occupied:*"))
    redis.set("onward:layout", "3")
    return redis


@pytest.mark.contract("L-3")
@pytest.mark.parametrize("step", [200, 2])
async def test_what_runs_since_the_last_layout_counts_under_bounds(
    flavour: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "STEP", step)
    redis = await layout_3(flavour)
    theirs = "redis.register_function('onward6_insert', function() return 'theirs' end)"
    redis.function_load(f"#!lua name=onward6\n{theirs}", replace=True)
    one, two = await asyncio.gather(opened(flavour), opened(flavour))
    check_redis_invariants(redis, all_over=False)
    assert (redis.get("onward:layout"), redis.exists("onward:migrating")) == (b"4", 0)
    assert not redis.function_list("onward6"), "one that comes back cannot claim beside us"
    bound = Bound("few", False, 4, None, ("q0",))
    assert (await one.usage(bound)).used == 4
    assert await one.claim("q0", bounds=(bound,)) == []
    for driver in (one, two):
        await driver.backend.close()
