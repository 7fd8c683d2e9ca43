"""A Redis that forgets is noticed: it keeps nothing, it came back empty, or it is another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from onward.core import clock
from onward.core.clock import SharedClock, measured, uptime_ms, wall_ahead_ms, wall_ms
from onward.core.errors import LedgerUnavailable, NotLetIn
from onward.ledgers.redis import RedisBackend
from onward.ledgers.redis.client import refused
from tests.contract.driver import Driver
from tests.running_app import App, running_app
from tests.servers import FLAVOURS, fresh_url, shared
from tests.support import wait_until


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    fresh_url(str(request.param))
    return str(request.param)


@pytest.fixture
async def backend(flavour: str) -> AsyncIterator[RedisBackend]:
    backend = RedisBackend(shared(flavour).url)
    await backend.maintain()
    yield backend
    await backend.close()


@pytest.fixture
def client(flavour: str) -> Any:
    return shared(flavour).client


async def warned(url: str, **options: Any) -> tuple[list[str], list[Any]]:
    backend = RedisBackend(url, **options)
    with capture_logs() as lines:
        await backend.maintain()
    await backend.close()
    return list(backend.warnings), [line for line in lines if line["log_level"] == "warning"]


async def test_a_redis_that_keeps_nothing_or_evicts_is_warned_of(flavour: str, client: Any) -> None:
    url = shared(flavour).url
    warnings, lines = await warned(url)
    assert "keeps nothing" in warnings[0]
    assert [line["reason"] for line in lines] == warnings
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        warnings, _ = await warned(url)
        assert "evicts (allkeys-lru)" in warnings[1]
        assert await warned(url, volatile=True) == ([], []), "it is wanted"
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    client.config_set("save", "3600 1")
    try:
        assert await warned(url) == ([], [])
    finally:
        client.config_set("save", "")


async def test_writes_that_redis_refused_are_warned_of(flavour: str, client: Any) -> None:
    client.lpush("onward:faults", "1 ZADD onward:x: WRONGTYPE")
    warnings, _ = await warned(shared(flavour).url, volatile=True)
    client.zadd("onward:aside", {"t": 1})
    assert warnings == ["Redis refused 1 writes of the ledger: run onward doctor"]
    warnings, _ = await warned(shared(flavour).url, volatile=True)
    assert warnings[1] == "1 tasks cannot be read, and were set aside: run onward doctor"


async def test_who_may_not_read_the_configuration_is_not_warned(flavour: str, client: Any) -> None:
    client.execute_command(
        *("ACL", "SETUSER", "plain", "on", ">secret", "~*", "&*", "+@all", "-config")
    )
    try:
        server = shared(flavour)
        warnings, _ = await warned(f"unix://plain:secret@{server.socket}")
        assert warnings == []
    finally:
        client.acl_deluser("plain")


@pytest.mark.parametrize("forbidden", ["linsert", "ltrim", "xdel", "hincrby"])
async def test_a_command_that_an_acl_forbids_is_found_out_before_a_task_is_written(
    flavour: str, client: Any, forbidden: str
) -> None:
    client.execute_command(
        *("ACL", "SETUSER", "narrow", "on", ">secret", "~*", "&*", "+@all", f"-{forbidden}")
    )
    backend = RedisBackend(f"unix://narrow:secret@{shared(flavour).socket}")
    try:
        with pytest.raises(NotLetIn, match=forbidden.upper()):
            await Driver(backend).submit()
        assert not client.exists("onward:index")
    finally:
        await backend.close()
        client.acl_deluser("narrow")


async def test_a_rehearsal_leaves_nothing_behind(backend: RedisBackend, client: Any) -> None:
    assert sorted(client.keys()) == [b"onward:epoch", b"onward:layout"]


@pytest.mark.parametrize("restarted", [True, False])
async def test_an_emptied_redis_is_not_taken_for_the_ledger(
    backend: RedisBackend, client: Any, restarted: bool
) -> None:
    driver = Driver(backend)
    await driver.submit()
    client.flushall()
    if restarted:
        client.function_flush("SYNC")
    with capture_logs() as lines, pytest.raises(LedgerUnavailable, match="the ledger is gone"):
        await driver.submit()
    assert [line["log_level"] for line in lines] == ["error"]
    for call in (backend.maintain, driver.all, driver.submit):
        with pytest.raises(LedgerUnavailable, match="the ledger is gone"):
            await call()
    assert client.keys() == []
    assert not restarted or client.function_list() == []


async def test_another_ledger_in_its_place_is_told_and_its_own_is_known_again(
    backend: RedisBackend, client: Any
) -> None:
    epoch = client.get("onward:epoch")
    client.set("onward:epoch", "another")
    with pytest.raises(LedgerUnavailable, match="the ledger was replaced") as lost:
        await backend.maintain()
    assert "restart every server" in str(lost.value.hint)
    with pytest.raises(LedgerUnavailable):
        await Driver(backend).submit()
    client.set("onward:epoch", epoch)
    await backend.maintain()
    await Driver(backend).submit()


async def test_every_server_of_a_ledger_knows_the_same_one(flavour: str) -> None:
    url = shared(flavour).url
    servers = [RedisBackend(url) for _ in range(3)]
    await asyncio.gather(*(server.maintain() for server in servers))
    await asyncio.gather(*(server.maintain() for server in servers))
    for server in servers:
        await server.close()


async def test_health_is_degraded_while_it_may_forget_and_fails_when_it_has(
    flavour: str, client: Any
) -> None:
    url = shared(flavour).url
    terms = {"archive": "", "redis_volatile": False}
    async with running_app(ledger=url, builtin_worker=True, **terms) as app:
        health = await app.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        part = health.json()["details"]["ledger"]
        assert part["status"] == "degraded"
        assert "keeps nothing" in part["warnings"][0]
        client.flushall()
        health = await unhealthy(app)
        assert "the ledger is gone" in health.json()["details"]["ledger"]["error"]


async def unhealthy(app: App) -> httpx2.Response:
    return await wait_until(lambda: app.get("/health"), holds=lambda said: said.status_code == 503)


async def test_no_stream_is_made_in_a_redis_that_has_lost_the_ledger(
    flavour: str, client: Any
) -> None:
    url = shared(flavour).url
    with capture_logs() as lines:
        async with running_app(ledger=url, redis=url, builtin_worker=True, archive="") as app:
            await wait_until(lambda: client.keys("onward:fed:*"))
            client.flushall()
            await unhealthy(app)
            # A look of each feed may have been half way through when the ledger went.
            await both_feeds_look(lines)
            client.flushall()
            for _ in range(3):
                await both_feeds_look(lines)
            assert client.keys("*") == []


async def both_feeds_look(lines: list[Any]) -> None:
    before = len(lines)

    def feeds() -> set[str]:
        return {
            each["streams"] for each in lines[before:] if each["event"] == "stream out of reach"
        }

    await wait_until(feeds, holds=lambda found: len(found) == 2)


@pytest.mark.parametrize(
    "said",
    [
        "MOVED 3999 127.0.0.1:6381",
        "ASK 3999 127.0.0.1:6381",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN Hash slot not served",
        "LOADING Redis is loading the dataset in memory",
        "READONLY You can't write against a read only replica.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "NOREPLICAS Not enough good replicas to write.",
        "MISCONF Redis is configured to save RDB snapshots",
        "BUSY Redis is busy running a script.",
        "OOM command not allowed when used memory > 'maxmemory'.",
    ],
)
def test_what_passes_by_itself_is_worth_another_try(said: str) -> None:
    from redis.asyncio.connection import DefaultParser

    parser: Any = DefaultParser
    error = parser.parse_error(said)
    assert isinstance(refused(error), LedgerUnavailable), repr(error)


def test_a_fault_of_our_own_is_not() -> None:
    assert isinstance(refused(ResponseError("user_function:1: attempt to index")), ResponseError)


async def test_a_time_that_came_late_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def a_minute_ahead() -> float:
        return wall_ms() + 60_000

    assert await measured(a_minute_ahead, 7) > wall_ahead_ms() + 50_000
    monkeypatch.setattr(clock, "LONGEST_TRIP_S", 0)
    assert await measured(a_minute_ahead, 7) == 7


async def test_a_wall_clock_that_is_set_is_not_seen_in_the_ledgers_time(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SharedClock(lambda: backend.ahead_ms)
    before = clock.now() - uptime_ms()
    monkeypatch.setattr(time, "time_ns", lambda: (before + uptime_ms() + 60_000) * 1_000_000)
    for measure in (False, True):
        if measure:
            await backend.maintain()
        clock.adopt()
        assert abs(clock.now() - uptime_ms() - before) < 30_000
