"""Agents that keep their own record under `task:{task_id}`, as the second seed tells them to."""

from __future__ import annotations

import json
import uuid
from datetime import datetime
from typing import Any

import pytest

from tests.agents.agent_app import CREATE, AgentApp, open_agent_app

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


async def store(agents: AgentApp, task: str, form: str) -> None:
    plain = metadata(task)
    if form == "string":
        await agents.redis.set(f"task:{task}", json.dumps(plain), ex=DAY_S)
    elif form == "hash":
        flat = {name: v if isinstance(v, str) else json.dumps(v) for name, v in plain.items()}
        await agents.redis.hset(f"task:{task}", mapping=flat)
        await agents.redis.expire(f"task:{task}", DAY_S)
    await agents.redis.sadd("session:user-123:tasks", task)
    await agents.redis.expire("session:user-123:tasks", DAY_S)


async def status(agents: AgentApp, task: str) -> str:
    if await agents.redis.type(f"task:{task}") != b"hash":
        return ""
    return (await agents.redis.hget(f"task:{task}", "status") or b"").decode()


async def look_up(agents: AgentApp, task: str) -> dict[str, Any]:
    """What the seed's retrieval tool reads."""
    found = await agents.redis.hgetall(f"task:{task}")
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
    async with open_agent_app(ledger) as agents:
        await agents.join()
        first = str(uuid.uuid4())
        if when == "before":
            await store(agents, first, form)
        await agents.ask(task_id=first)
        if when == "after":
            await store(agents, first, form)
        second = await agents.ask(session_id="user-456")
        for _ in (first, second):
            entry, event = await agents.get()
            await agents.finish(entry, event["data"]["task_id"], {"file_url": "x" * 5_000})
        for task, session in ((first, "user-123"), (second, "user-456")):
            assert (await agents.over(task))["state"] == "succeeded"
            (notice,) = await agents.notices(session)
            assert notice["data"]["task_id"] == task

            async def completed(task: str = task) -> bool:
                return await status(agents, task) == "completed"

            await agents.until(completed)
            seen = await look_up(agents, task)
            assert seen["result"] == {"file_url": "x" * 5_000}
            assert (seen["error"], seen["priority"], seen["timeout"]) == (None, "normal", "300")
            assert seen["completed_at"] >= seen["created_at"]
            assert 0 < await agents.redis.ttl(f"task:{task}") <= DAY_S
        assert (await agents.http.get("/api/v2/tasks")).status_code == 200
        assert (await agents.http.get("/health")).json()["status"] == "healthy"
        assert await agents.length(CREATE) == 0


@LEDGERS
@pytest.mark.parametrize("form", ["hash", "string"])
async def test_a_record_that_comes_after_the_end_does_not_stay(ledger: str, form: str) -> None:
    async with open_agent_app(ledger, builtin_worker=True) as agents:
        task = await agents.submit(type="echo", session_id="user-123", payload={"n": 1})
        await agents.over(task)

        async def completed() -> bool:
            return await status(agents, task) == "completed"

        await agents.until(completed)
        await store(agents, task, form)
        assert not await completed()
        await agents.until(completed)


@LEDGERS
@pytest.mark.parametrize("name", ["task:{task}:result", "session:user-123:tasks"])
async def test_a_foreign_key_beside_the_record_makes_room(ledger: str, name: str) -> None:
    async with open_agent_app(ledger, builtin_worker=True) as agents:
        held = await agents.submit(type="later", session_id="user-123")
        for key in (name.format(task=held), name.format(task="another")):
            await agents.redis.delete(key)
            await agents.redis.hset(key, "something", "else")
        task = await agents.submit(type="echo", session_id="user-123", payload={"n": 1})
        await agents.over(task)

        async def cached() -> Any:
            return await agents.redis.get(f"task:{task}:result")

        assert json.loads(await agents.until(cached))["result"] == {"n": 1}
        assert task.encode() in await agents.redis.smembers("session:user-123:tasks")
