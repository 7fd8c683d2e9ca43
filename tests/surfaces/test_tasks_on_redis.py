"""The tasks door on a Redis ledger: the seed's keys as redis-cli shows them, and /health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.house import House, open_house
from tests.servers import RedisServer, fresh_url, shared
from tests.support import wait_until
from tests.surfaces.summarizing import dead, fail, read, submitted, summarizer


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    url = fresh_url("valkey")
    async with open_house(ledger=url, archive=f"sqlite:///{tmp_path}/archive.db") as opened:
        yield opened


def cli(*words: Any) -> Any:
    client: Any = shared("valkey").client
    return _text(client.execute_command(*words))


def _text(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode()
    if isinstance(reply, list):
        return [_text(part) for part in reply]
    if isinstance(reply, dict):
        return {_text(key): _text(value) for key, value in reply.items()}
    return reply


async def eventually(holds: Callable[[], Awaitable[bool]], timeout: float = 30) -> None:
    async with asyncio.timeout(timeout):
        while not await holds():  # noqa: ASYNC110 what is waited for is in another process
            await asyncio.sleep(0.05)


def fields(key: str) -> dict[str, str]:
    found = cli("HGETALL", key)
    return found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))


@pytest.mark.contract("S3-14", "R-4")
async def test_a_task_is_a_hash_and_its_id_stands_in_the_primary_list(house: House) -> None:
    first = await submitted(house)
    second = await submitted(house, "x" * 100)
    assert cli("LRANGE", "tasks:pending:primary", 0, -1) == [first, second], "first in, first out"
    task = fields(f"task:{first}")
    assert (task["type"], task["queue"], task["profile"]) == ("summarize", "summarize", "tasks")
    assert task["state"] == "queued"
    assert task["payload"] == '{"content":"Long text"}'
    assert int(task["created_at"]) == house.clock.now()
    assert cli("GET", f"task:{second}:payload") == f'{{"content":"{"x" * 100}"}}'
    assert fields("metrics:tasks:by_state") == {"queued": "2"}
    assert fields("metrics:queue:depths") == {"summarize:primary:queued": "2"}
    await house.worker(group=None, services=["other"], workerId="w")
    await submitted(house, type_="other")
    await submitted(house, type_="other")
    assert cli("LLEN", "tasks:pending:primary:other") == 1


@pytest.mark.contract("S3-14", "S3-8", "S3-9")
async def test_a_failed_task_waits_in_the_sorted_set_and_then_in_the_retry_list(
    house: House,
) -> None:
    worker = await summarizer(house)
    task = await submitted(house)
    await fail(house, worker)
    await wait_until(lambda: cli("EXISTS", "tasks:scheduled"))
    ((member, score),) = cli("ZRANGE", "tasks:scheduled", 0, -1, "WITHSCORES")
    assert member == task
    assert 5 <= score - house.clock.now() / 1000 <= 5.5, "a Unix timestamp, in seconds"
    kept = fields(f"task:{task}")
    assert (kept["state"], kept["lane"], kept["retries"]) == ("scheduled", "retry", "1")
    assert cli("EXISTS", "tasks:pending:primary", "tasks:pending:retry") == 0
    await worker.close()
    await house.advance(5_500)
    assert cli("LRANGE", "tasks:pending:retry", 0, -1) == [task]
    assert cli("EXISTS", "tasks:scheduled") == 0


@pytest.mark.contract("S3-14", "S3-4", "S3-3")
async def test_a_dead_task_is_in_the_dead_letters_until_it_is_retried_or_deleted(
    house: House,
) -> None:
    worker = await summarizer(house)
    task = await dead(house, worker)
    await wait_until(lambda: cli("EXISTS", "dlq:tasks"))
    await worker.close()
    assert cli("LRANGE", "dlq:tasks", 0, -1) == [task]
    why = fields(f"dlq:task:{task}")
    assert (why["task_id"], why["queue"]) == (task, "summarize")
    assert "no such model" in why["error"]
    assert fields(f"task:{task}")["state"] == "dead"
    retried = await house.post(f"/api/v1/tasks/{task}/retry", None)
    assert retried.status_code == 200, retried.text
    assert cli("EXISTS", "dlq:tasks", f"dlq:task:{task}") == 0
    assert cli("LRANGE", "tasks:pending:retry", 0, -1) == [task]

    worker = await summarizer(house)
    await fail(house, worker, status=400)
    await wait_until(lambda: cli("EXISTS", "dlq:tasks"))
    deleted = await house.http.delete(f"/api/v1/tasks/{task}")
    assert (deleted.status_code, deleted.json()) == (200, {"task_id": task, "state": "DLQ"})
    assert cli("EXISTS", "dlq:tasks", f"dlq:task:{task}", f"task:{task}") == 0


@pytest.mark.contract("S3-3")
async def test_a_deleted_task_is_gone_from_the_archive_too(house: House) -> None:
    worker = await summarizer(house)
    task = await submitted(house)
    await worker.answer((await worker.task())["taskId"], "short")
    await wait_until(lambda: fields("metrics:tasks:by_state").get("succeeded") == "1")
    deleted = await house.http.delete(f"/api/v1/tasks/{task}")
    assert deleted.json() == {"task_id": task, "state": "COMPLETED"}
    assert (await house.get(f"/api/v1/tasks/{task}")).status_code == 404
    assert (await house.get("/api/v1/tasks/")).json() == []
    assert (await house.get(f"/api/v2/tasks/{task}")).status_code == 404


@pytest.mark.contract("S3-3")
async def test_a_task_that_only_the_archive_has_can_be_read_and_deleted(house: House) -> None:
    worker = await summarizer(house)
    task = await submitted(house)
    await worker.answer((await worker.task())["taskId"], "short")
    await wait_until(lambda: fields("metrics:tasks:by_state").get("succeeded") == "1")

    async def departed() -> bool:
        await house.advance(24 * 3_600_000)
        return not cli("EXISTS", f"task:{task}")

    await eventually(departed)
    assert (await read(house, task))["result"] == "short"
    deleted = await house.http.delete(f"/api/v1/tasks/{task}")
    assert deleted.json() == {"task_id": task, "state": "COMPLETED"}
    assert (await house.get(f"/api/v1/tasks/{task}")).status_code == 404


@pytest.mark.contract("S3-7")
async def test_health_tells_of_the_redis_that_is_the_ledger(tmp_path: Path) -> None:
    server = RedisServer("valkey")
    try:
        async with open_house(ledger=server.url, archive="", builtin_worker=True) as house:
            well = await house.get("/health")
            assert (well.status_code, well.json()["status"]) == (200, "healthy")
            assert well.json()["components"]["redis"] is True
            server.kill()
            ill = await house.get("/health")
            assert (ill.status_code, ill.json()["status"]) == (503, "unhealthy")
            assert ill.json()["components"]["redis"] is False
            assert ill.json()["components"]["ledger"] is False
            refused = await house.post("/api/v1/tasks/summarize/", {"content": "x"})
            assert (refused.status_code, list(refused.json())) == (503, ["detail"])
            assert "try again" in refused.json()["detail"]
        # And it can be stopped without its ledger.
    finally:
        server.close()


@pytest.mark.contract("S3-7")
async def test_without_the_redis_of_its_stream_workers_a_server_is_unwell_and_works() -> None:
    server = RedisServer("valkey")
    try:
        async with open_house(redis=server.url, builtin_worker=True) as house:
            assert (await house.get("/health")).json()["status"] == "healthy"
            server.kill()
            ill = await house.get("/health")
            assert (ill.status_code, ill.json()["status"]) == (503, "unhealthy")
            assert ill.json()["components"]["redis"] is False
            assert ill.json()["components"]["ledger"] is True
            assert (await house.get("/ready")).status_code == 200, "submissions are taken"
            assert (await house.post("/api/v1/tasks/summarize/", {"content": "x"})).is_success
            server.start()
    finally:
        server.close()
