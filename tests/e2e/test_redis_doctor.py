"""`onward doctor` before a real Redis: what it finds, and what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from onward.cli import redis_checkup
from onward.cli.checkup import BAD, GOOD, ODD, Finding
from onward.cli.redis_checkup import examine_redis
from onward.cli.terminal import REFUSED, USAGE
from onward.ledgers.redis import RedisBackend
from onward.ledgers.redis.client import NAME
from onward.settings import Settings
from tests.contract.driver import Driver
from tests.e2e.shell import run
from tests.processes import free_port
from tests.servers import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-1")]

SOUND = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer("valkey", *SOUND)
    yield server
    server.close()


def look(redis: RedisServer, **settings: Any) -> dict[str, Finding]:
    chosen = Settings(ledger=redis.url, **settings)
    return {finding.about: finding for finding in examine_redis(chosen)}


def test_a_sound_redis_has_nothing_to_mend(redis: RedisServer) -> None:
    found = look(redis)
    assert {finding.mark for finding in found.values()} == {GOOD}, {
        name: finding.found for name, finding in found.items()
    }
    assert found.keys() == {
        "ledger",
        "eviction",
        "durability",
        "memory",
        "role",
        "functions",
        "redis clock",
        "prefix",
    }
    assert "Valkey" in found["ledger"].found
    assert found["functions"].found == "can be loaded"
    assert redis.client.function_list() == [], "a doctor leaves nothing behind"
    assert redis.client.dbsize() == 0


@pytest.mark.parametrize(
    ("setting", "value", "about", "mark", "says"),
    [
        ("appendfsync", "everysec", "durability", ODD, "up to two seconds"),
        ("appendfsync", "no", "durability", BAD, "a power cut loses"),
        ("appendonly", "no", "durability", BAD, "every task since the last snapshot"),
        ("maxmemory-policy", "allkeys-lru", "eviction", ODD, "deletes tasks"),
        ("maxmemory", "2mb", "memory", ODD, "used of 2 MiB"),
    ],
)
def test_each_weakness_is_named_with_its_cure(
    redis: RedisServer, setting: str, value: str, about: str, mark: str, says: str
) -> None:
    if setting == "maxmemory":  # a share of it, whatever an empty server takes
        used = int(redis.client.info("memory")["used_memory"])
        redis.client.config_set(setting, int(used / 0.8))
        says = "used of"
    else:
        redis.client.config_set(setting, value)
    finding = look(redis)[about]
    assert (finding.mark, says in finding.found) == (mark, True), finding.found
    assert finding.todo
    assert "redis-cli" not in finding.todo or f"redis-cli {cli_arguments(redis)} " in finding.todo


def cli_arguments(redis: RedisServer) -> str:
    return f"-s {redis.url.removeprefix('unix://').partition('?')[0]}"


def test_eviction_with_a_limit_must_be_mended(redis: RedisServer) -> None:
    redis.client.config_set("maxmemory-policy", "volatile-ttl")
    redis.client.config_set("maxmemory", "512mb")
    assert look(redis)["eviction"].mark == BAD
    redis.client.config_set("maxmemory-policy", "noeviction")
    used = int(redis.client.info("memory")["used_memory"])
    redis.client.config_set("maxmemory", used + 1000)
    assert look(redis)["memory"].mark == BAD


def test_it_sees_a_ledger_its_functions_and_a_reader_that_fell_behind(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use() -> None:
        backend = RedisBackend(redis.url)
        await Driver(backend).submit()
        await backend.documents.put("cursor", "archive:lost", '"0-0"', now=0)
        await backend.close()

    asyncio.run(use())
    found = look(redis)
    assert found["functions"].found == "loaded"
    assert "a ledger is there" in found["prefix"].found
    assert "archive" not in found
    monkeypatch.setattr(redis_checkup, "BEHIND_S", -1)
    assert "onward log forget archive:lost" in look(redis)["archive"].todo
    redis.client.function_load(
        f"#!lua name={NAME}\nredis.register_function('f', function() end)", True
    )
    assert look(redis)["functions"].mark == ODD


def test_foreign_keys_and_a_forbidding_acl_are_noticed(redis: RedisServer) -> None:
    redis.client.set("theirs", 1)
    assert look(redis)["prefix"].mark == ODD
    assert look(redis, redis_prefix="{onward}:")["prefix"].mark == GOOD
    redis.client.acl_setuser(
        "narrow", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-function"]
    )
    settings = Settings(ledger=f"{redis.url}?username=narrow&password=secret")
    found = {finding.about: finding for finding in examine_redis(settings)}
    assert found["functions"].mark == BAD
    assert "ACL" in found["functions"].todo


def test_who_may_not_speak_on_the_channels_is_told_how_to(redis: RedisServer) -> None:
    redis.client.acl_setuser(
        "shy", enabled=True, nopass=True, keys=["*"], commands=["+@all"], reset_channels=True
    )
    settings = Settings(ledger=f"{redis.url}?username=shy&password=secret")
    found = {finding.about: finding for finding in examine_redis(settings)}["channels"]
    assert found.mark == ODD
    client: Any = redis.client
    client.execute_command(*found.todo.replace("'", "").split())
    assert "channels" not in {finding.about for finding in examine_redis(settings)}


def test_the_command_says_it_and_a_dead_redis_is_no_stack_trace(
    redis: RedisServer, tmp_path: Path
) -> None:
    done = run("doctor", "--ledger", redis.url, cwd=tmp_path)
    assert "appendfsync always" in done.stdout
    redis.kill()
    done = run("doctor", "--ledger", redis.url, cwd=tmp_path)
    assert done.returncode == 1
    assert "start Redis" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_replica_another_layout_and_a_missing_password_are_noticed(redis: RedisServer) -> None:
    redis.client.zadd("onward:index", {"a task": 1})
    found = look(redis)["layout"]
    assert (found.mark, "layout 1" in found.found) == (BAD, True), "of before there were numbers"
    redis.client.set("onward:layout", "9")
    found = look(redis)["layout"]
    assert (found.mark, "layout 9" in found.found) == (BAD, True)
    redis.client.replicaof("127.0.0.1", 1)
    assert look(redis)["role"].mark == BAD
    redis.client.replicaof("NO", "ONE")
    redis.client.config_set("requirepass", "secret")
    found = look(redis)["ledger"]
    assert (found.mark, found.found.endswith("a password is needed")) == (BAD, True)
    assert "password" in found.todo


def refused(cwd: Path, *arguments: str) -> str:
    done = run("serve", "--port", str(free_port()), *arguments, cwd=cwd)
    assert done.returncode in (USAGE, REFUSED), done.stderr
    assert "Traceback" not in done.stderr
    assert "→" in done.stderr, "what to do"
    return done.stderr


def refused_worker(cwd: Path, *via: str, code: int = REFUSED) -> str:
    (cwd / "jobs.py").write_text(
        "from onward import Worker\nworker = Worker()\n@worker.service\ndef nod() -> None: ...\n"
    )
    done = run("worker", "jobs.py:worker", "--via", *via, cwd=cwd)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    return done.stderr


def test_a_server_that_cannot_have_its_redis_says_why(redis: RedisServer, tmp_path: Path) -> None:
    assert "http://x" in refused(tmp_path, "--redis", "http://x")
    for place in ("127.0.0.1:99999/0", "127.0.0.1:abc/0", "127.0.0.1/xyz"):
        for option in ("--ledger", "--redis"):
            said = refused(tmp_path, option, f"redis://me:secret@{place}")
            assert (option in said, "secret" in said) == (True, False)
    assert "out of range" in refused(tmp_path, "--ledger", f"{redis.url}?db=99")
    redis.client.set("onward:layout", "9")
    assert "layout 9" in refused(tmp_path, "--ledger", redis.url)
    assert redis.client.keys() == [b"onward:layout"], "nothing is touched"
    redis.client.config_set("requirepass", "secret")
    assert "refuses us" in refused(tmp_path, "--ledger", redis.url)
    assert "does not let us in" in refused_worker(tmp_path, "streams", "--redis", redis.url)
    assert "correct user" in refused_worker(tmp_path, "ledger", "--ledger", redis.url)
    assert "--via socket" in refused_worker(tmp_path, "ledger", code=USAGE)
    redis.kill()
    assert "onward doctor" in refused(tmp_path, "--ledger", redis.url)


def test_a_password_is_not_in_a_command_for_the_shell() -> None:
    assert redis_checkup._shell("redis://:secret@h:1/2") == "redis-cli -u redis://h:1/2"


def test_torn_tasks_are_named_and_repaired_on_request(redis: RedisServer, tmp_path: Path) -> None:
    async def submit() -> None:
        backend = RedisBackend(redis.url)
        await Driver(backend).submit(id="t", queue="q")
        await backend.close()

    asyncio.run(submit())
    redis.client.delete("onward:queue:1:primary:q")
    doctor, port = ("doctor", "--ledger", redis.url), str(free_port())
    done = run(*doctor, cwd=tmp_path, ONWARD_PORT=port)
    assert (done.returncode, "queued, and not in its list: 1 of 1:primary:q" in done.stdout) == (
        1,
        True,
    ), done.stdout
    done = run(*doctor, "--repair", cwd=tmp_path, ONWARD_PORT=port)
    assert (done.returncode, "repaired: 1 ×" in done.stdout) == (0, True), done.stdout
    assert redis.client.lrange("onward:queue:1:primary:q", 0, -1) == [b"t"]


def test_users_that_redis_refused_are_named(redis: RedisServer) -> None:
    assert "refused users" not in look(redis)
    redis.client.acl_setuser("gpu1", enabled=True, nopass=True, commands=["+ping"])
    stranger: Any = redis.client.client()  # type: ignore[no-untyped-call]
    stranger.execute_command("AUTH", "gpu1", "any")
    for _ in range(2):
        with pytest.raises(NoPermissionError):
            stranger.execute_command("XRANGE", "stream:result", "-", "+")
    stranger.close()
    found = look(redis)["refused users"]
    assert found.mark == ODD
    assert "gpu1: command xrange × 2" in found.found
    assert "acl log reset" in found.todo
