"""Agents that keep their own record under `task:{task_id}`, as the second seed tells them to."""

from __future__ import annotations

import json
import uuid
from datetime import datetime
from typing import Any

import pytest

from tests.agents.agency import CREATE, Agency, open_agency

pytestmark = [pytest.mark.slow, pytest.mark.contract("R-4", "S2-5")]

DAY_S = 24 * 3600
FIELDS = {
    "task_id", "task_type", "status", "session_id", "params", "result", "error", "created_at",
    "updated_at", "completed_at", "timeout", "priority",
}  # fmt: skip
LEDGERS = pytest.mark.parametrize("ledger", ["sqlite", "redis"])


def metadata(task: str) -> dict[str, Any]:
    """As its storage schema has it, when the task is created."""
    return {
        "task_id": task, "task_type": "report.generate", "status": "pending",
        "session_id": "user-123", "params": {"quarter": "Q4"}, "result": None, "error": None,
        "created_at": "2024-01-01T12:00:00.000Z", "updated_at": "2024-01-01T12:00:00.000Z",
        "completed_at": None, "timeout": 300, "priority": "normal",
    }  # fmt: skip


async def store(agency: Agency, task: str, form: str) -> None:
    plain = metadata(task)
    if form == "string":
        await agency.redis.set(f"task:{task}", json.dumps(plain), ex=DAY_S)
    elif form == "hash":
        flat = {name: v if isinstance(v, str) else json.dumps(v) for name, v in plain.items()}
        await agency.redis.hset(f"task:{task}", mapping=flat)
        await agency.redis.expire(f"task:{task}", DAY_S)
    await agency.redis.sadd("session:user-123:tasks", task)
    await agency.redis.expire("session:user-123:tasks", DAY_S)


async def status(agency: Agency, task: str) -> str:
    if await agency.redis.type(f"task:{task}") != b"hash":
        return ""
    return (await agency.redis.hget(f"task:{task}", "status") or b"").decode()


async def look_up(agency: Agency, task: str) -> dict[str, Any]:
    """What the seed's retrieval tool reads."""
    found = await agency.redis.hgetall(f"task:{task}")
    plain = {name.decode(): value.decode() for name, value in found.items()}
    assert set(plain) == FIELDS, sorted(set(plain) ^ FIELDS)
    for name in ("created_at", "updated_at"):
        assert plain[name].endswith("Z")
        datetime.fromisoformat(plain[name])
    for name in ("params", "result", "error"):
        plain[name] = json.loads(plain[name])
    return plain


@LEDGERS
@pytest.mark.contract("S2-2", "S2-6")
@pytest.mark.parametrize(
    ("form", "when"),
    [
        ("none", ""),
        ("hash", "before"),
        ("string", "before"),
        ("string", "after"),
        ("hash", "after"),
    ],
)
async def test_an_agents_own_record_harms_neither_its_task_nor_its_neighbours(
    ledger: str, form: str, when: str
) -> None:
    async with open_agency(ledger) as agency:
        await agency.join()
        first = str(uuid.uuid4())
        if when == "before":
            await store(agency, first, form)
        await agency.ask(task_id=first)
        if when == "after":
            await store(agency, first, form)
        second = await agency.ask(session_id="user-456")
        for _ in (first, second):
            entry, event = await agency.get()
            await agency.finish(entry, event["data"]["task_id"], {"file_url": "x" * 5_000})
        for task, session in ((first, "user-123"), (second, "user-456")):
            assert (await agency.over(task))["state"] == "succeeded"
            (notice,) = await agency.notices(session)
            assert notice["data"]["task_id"] == task

            async def completed(task: str = task) -> bool:
                return await status(agency, task) == "completed"

            await agency.until(completed)
            seen = await look_up(agency, task)
            assert seen["result"] == {"file_url": "x" * 5_000}
            assert (seen["error"], seen["priority"], seen["timeout"]) == (None, "normal", "300")
            assert seen["completed_at"] >= seen["created_at"]
            assert 0 < await agency.redis.ttl(f"task:{task}") <= DAY_S
        assert (await agency.http.get("/api/v2/tasks")).status_code == 200
        assert (await agency.http.get("/health")).json()["status"] == "healthy"
        assert await agency.length(CREATE) == 0


@LEDGERS
@pytest.mark.parametrize("form", ["hash", "string"])
async def test_a_record_that_comes_after_the_end_does_not_stay(ledger: str, form: str) -> None:
    async with open_agency(ledger, builtin_worker=True) as agency:
        task = await agency.submit(type="echo", session_id="user-123", payload={"n": 1})
        await agency.over(task)

        async def completed() -> bool:
            return await status(agency, task) == "completed"

        await agency.until(completed)
        await store(agency, task, form)
        assert not await completed()
        await agency.until(completed)


@LEDGERS
@pytest.mark.parametrize("name", ["task:{task}:result", "session:user-123:tasks"])
async def test_a_foreign_key_beside_the_record_makes_room(ledger: str, name: str) -> None:
    async with open_agency(ledger, builtin_worker=True) as agency:
        held = await agency.submit(type="later", session_id="user-123")
        for key in (name.format(task=held), name.format(task="another")):
            await agency.redis.delete(key)
            await agency.redis.hset(key, "something", "else")
        task = await agency.submit(type="echo", session_id="user-123", payload={"n": 1})
        await agency.over(task)

        async def cached() -> Any:
            return await agency.redis.get(f"task:{task}:result")

        assert json.loads(await agency.until(cached))["result"] == {"n": 1}
        assert task.encode() in await agency.redis.smembers("session:user-123:tasks")
