"""What agents are told on Redis of tasks that ended elsewhere, and the keys they may look up."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onward.core.task import Event
from onward.doors.agents.streams import AgentStreams
from tests.agents.agent_app import (
    COMPLETED,
    CREATE,
    DEAD,
    FAILED,
    TIMEOUT,
    AgentApp,
    open_agent_app,
)

pytestmark = [pytest.mark.slow, pytest.mark.contract("S2-2")]

DAY_S = 24 * 3600
LEDGERS = pytest.mark.parametrize("ledger", ["sqlite", "redis"])


@pytest.fixture(params=["sqlite", "redis"])
async def agents(request: pytest.FixtureRequest) -> AsyncIterator[AgentApp]:
    async with open_agent_app(request.param, builtin_worker=True) as opened:
        yield opened


async def hash_of(agents: AgentApp, task: str, prefix: str = "") -> dict[str, str]:
    found = await agents.redis.hgetall(f"{prefix}task:{task}")
    return {name.decode(): value.decode() for name, value in found.items()}


@pytest.mark.contract("R-2", "S2-6")
async def test_what_ended_natively_is_told_to_the_agents_group_and_to_the_session(
    agents: AgentApp,
) -> None:
    task = await agents.submit(type="echo", payload={"n": 1}, session_id="user-1")
    await agents.over(task)
    (heard,) = await agents.hear(COMPLETED)
    data = heard["data"]
    assert (data["task_id"], data["status"], data["result"]) == (task, "success", {"n": 1})
    assert data["duration_ms"] >= 0
    assert data["completed_by"].startswith("builtin-")
    (notice,) = await agents.notices("user-1")

    async def kept() -> Any:
        return (await agents.http.get("/api/v2/sessions/user-1/notifications")).json()["items"]

    (item,) = await agents.until(kept)
    shown = {name: value for name, value in item.items() if name != "read"}
    assert notice["data"] == shown, "one notice, by whatever way"
    assert notice["event_id"] == shown["notification_id"]
    assert 0 < await agents.redis.ttl("user:stream:notifications:user-1") <= 7 * DAY_S
    assert await agents.length(CREATE) == 0, "served natively, it was never on the stream"


async def test_what_is_told_by_us_is_not_taken_for_a_services_answer(agents: AgentApp) -> None:
    task = await agents.submit(type="echo", session_id="user-1")
    await agents.over(task)
    await agents.told(COMPLETED)

    async def read() -> bool:
        (group,) = [
            one for one in await agents.redis.xinfo_groups(COMPLETED) if one["name"] == b"onward"
        ]
        return bool(group["pending"] == 0 and group["lag"] == 0)

    await agents.until(read)
    assert "task.late_result" not in await agents.types(task)


async def test_a_task_without_a_session_is_announced_to_none(agents: AgentApp) -> None:
    quiet = await agents.submit(type="echo")
    await agents.over(quiet)
    task = await agents.submit(type="echo", session_id="user-1")
    await agents.over(task)
    told = await agents.told(COMPLETED)
    assert [event["data"]["task_id"] for event in told] == [task]


async def test_a_rejected_and_a_canceled_task_are_told_as_failed(agents: AgentApp) -> None:
    asked = await agents.submit(type="echo", session_id="user-1", requires_approval=True)
    (open_,) = (await agents.http.get("/api/v2/approvals?status=open")).json()["items"]
    reply = await agents.http.post(f"/api/v2/approvals/{open_['id']}/reject", json={})
    assert reply.status_code == 200, reply.text
    await agents.over(asked)
    (told,) = await agents.told(FAILED)
    assert (told["data"]["task_id"], told["data"]["status"]) == (asked, "failed")
    assert set(told["data"]["error"]) == {"code", "message", "details"}
    stopped = await agents.submit(type="nobody", session_id="user-1")
    await agents.cancel(stopped)
    told = (await agents.told(FAILED, 2))[1]
    assert (told["data"]["task_id"], told["data"]["error"]["code"]) == (stopped, "CANCELED")
    kinds = [notice["event_type"] for notice in await agents.notices("user-1")]
    assert kinds == ["approval_requested", "task_failed"], "whoever cancels knows"


@pytest.mark.contract("S2-7")
async def test_a_timeout_is_told_once_and_the_completion_after_it(agents: AgentApp) -> None:
    await agents.join()
    task = await agents.submit(
        type="report.generate", queue="agents", session_id="user-1", timeout_ms=1000
    )
    entry, event = await agents.get()
    assert event["data"]["timeout"] == 1
    (told,) = await agents.told(TIMEOUT)
    assert told["data"]["task_id"] == task
    assert told["data"]["status"] == "timeout"
    assert told["data"]["message"] == "Task exceeded timeout of 1 seconds"
    assert 1000 <= told["data"]["elapsed_ms"] < 3000
    await agents.finish(None, task, "late, but here")
    assert (await agents.over(task))["result"] == "late, but here"
    kinds = [notice["data"]["type"] for notice in await agents.notices("user-1", 2)]
    assert kinds == ["task_timeout", "task_completed"]
    assert len(await agents.on(TIMEOUT)) == 1
    assert entry


@pytest.mark.contract("S2-7")
async def test_a_task_without_a_worker_is_not_late(agents: AgentApp) -> None:
    await agents.join()
    task = await agents.submit(
        type="report.generate", queue="agents", session_id="user-1", timeout_ms=300
    )
    await agents.phase(task, "offered")

    async def quiet() -> bool:
        return not await agents.on(TIMEOUT)

    await agents.holds(quiet, 1.5)
    entry, _ = await agents.get()
    (told,) = await agents.told(TIMEOUT)
    assert told["data"]["elapsed_ms"] >= 1500
    assert told["data"]["message"] == "Task exceeded timeout of 0 seconds"
    await agents.finish(entry, task)
    await agents.over(task)


@pytest.mark.contract("S2-5", "S2-4")
async def test_keys_for_looking_up_last_a_day_after_the_end(agents: AgentApp) -> None:
    task = await agents.submit(
        type="echo", payload={"n": 1}, session_id="user-1", timeout_ms=300_000
    )
    await agents.over(task)

    async def cached() -> Any:
        return await agents.redis.get(f"task:{task}:result")

    body = json.loads(await agents.until(cached))
    assert body["result"] == {"n": 1}
    assert set(body) == {"result", "cached_at"}
    assert body["cached_at"].endswith("Z")
    assert await agents.redis.smembers("session:user-1:tasks") == {task.encode()}
    assert DAY_S - 60 < await agents.redis.ttl(f"task:{task}:result") <= DAY_S
    assert DAY_S - 60 < await agents.redis.ttl("session:user-1:tasks") <= DAY_S
    assert await agents.redis.exists(f"task:{task}")
    assert (await agents.read(task))["result"] == {"n": 1}, "the ledger reads its own as before"


@pytest.mark.contract("S2-5")
async def test_a_long_result_is_cached_the_same_way(agents: AgentApp) -> None:
    payload = {"text": "x" * 500}
    task = await agents.submit(type="echo", payload=payload, session_id="user-1")
    await agents.over(task)

    async def cached() -> Any:
        return await agents.redis.get(f"task:{task}:result")

    assert json.loads(await agents.until(cached))["result"] == payload
    assert (await agents.read(task))["result"] == payload, "the ledger has its own"


@LEDGERS
@pytest.mark.contract("S2-5", "S2-4")
async def test_the_agents_fields_are_kept_up_to_date_in_the_tasks_hash(ledger: str) -> None:
    async with open_agent_app(ledger, redis_prefix="here:") as agents:
        await agents.join()
        task = await agents.submit(
            type="report.generate", queue="agents", payload={"quarter": "Q4"},
            session_id="user-1", timeout_ms=300_000,
        )  # fmt: skip

        async def said(status: str) -> dict[str, str] | None:
            found = await hash_of(agents, task, "here:")
            return found if found.get("status") == status else None

        pending = await agents.until(lambda: said("pending"))
        assert (pending["task_id"], pending["timeout"]) == (task, "300")
        assert (pending["session_id"], pending["completed_at"]) == ("user-1", "")
        assert json.loads(pending["params"]) == {"quarter": "Q4"}
        entry, _ = await agents.get()
        await agents.until(lambda: said("processing"))
        await agents.finish(entry, task, [1])
        completed = await agents.until(lambda: said("completed"))
        assert (json.loads(completed["result"]), completed["timeout"]) == ([1], "300")
        assert completed["completed_at"].endswith("Z")
        assert await agents.redis.exists("here:session:user-1:tasks")
        assert (await agents.read(task))["result"] == [1]
        assert (completed["error"], completed["priority"]) == ("null", "normal")
        assert completed["completed_at"] >= completed["created_at"]
        assert DAY_S - 60 < await agents.redis.ttl(f"here:task:{task}") <= DAY_S


@LEDGERS
async def test_every_key_of_the_door_but_its_streams_goes_by_itself(ledger: str) -> None:
    async with open_agent_app(ledger, builtin_worker=True) as agents:
        task = await agents.submit(type="echo", session_id="user-1")
        await agents.over(task)
        await agents.notices("user-1")
        for pattern in ("session:*", "user:*", "onward:told:*", "task:*"):
            keys = [key async for key in agents.redis.scan_iter(match=pattern)]
            assert keys, pattern
            for key in keys:
                assert await agents.redis.ttl(key) > 0, key


@pytest.mark.contract("S2-8")
async def test_dead_letters_stay_a_week_and_other_news_a_day() -> None:
    async with open_agent_app() as agents:
        now = int(time.time() * 1000)
        day = DAY_S * 1000
        for stream, age in ((DEAD, 8 * day), (DEAD, 6 * day), (COMPLETED, 2 * day), (FAILED, 10)):
            await agents.redis.xadd(stream, {"data": "{}"}, id=f"{now - age}-0")
        await agents.app.onward._agent_feed._channel.trim(now)
        lengths = [await agents.length(stream) for stream in (DEAD, COMPLETED, FAILED)]
        assert lengths == [1, 0, 1]


async def test_events_seen_twice_are_told_once_and_an_answer_across_batches_is_no_echo(
    agents: AgentApp,
) -> None:
    await agents.join()
    native = await agents.submit(type="echo", session_id="user-1")
    await agents.over(native)
    task = await agents.submit(type="report.generate", queue="agents", session_id="user-1")
    entry, _ = await agents.get()
    await agents.finish(entry, task)
    await agents.over(task)
    await agents.notices("user-1", 2)
    onward = agents.app.onward
    again = AgentStreams(
        onward.backend, agents.redis, onward.clock, prefix="", catalog=onward.catalog
    )
    log: list[Event] = []
    for id in (native, task):
        log += (await onward.backend.tasks.events(after="0", limit=100, task=id)).items
    for event in log:
        await again.project([event])
    assert not again._tally, "told before, so nothing is counted as published"
    assert len(await agents.on(COMPLETED)) == 2, "the service's own, and ours of the native one"
    assert len(await agents.notices("user-1", 2)) == 2


class Second(AgentApp):
    """A server that finds another one on duty."""

    async def on_duty(self) -> bool:
        return bool(self.app.onward.ready)


async def test_two_servers_tell_each_thing_once() -> None:
    async with open_agent_app("redis", builtin_worker=True) as agents:
        await agents.join()
        other = Second(agents.settings)
        other.builtin_worker = True
        await other.open()
        natives = [await other.submit(type="echo", session_id="user-1") for _ in range(20)]
        for task in natives:
            await agents.over(task)
        task = await other.submit(type="report.generate", queue="agents", session_id="user-1")
        entry, _ = await agents.get()
        await agents.finish(entry, task)
        await other.over(task)
        assert len(await agents.notices("user-1", 21)) == 21
        told = [event["data"]["task_id"] for event in await agents.told(COMPLETED, 21)]
        assert sorted(told) == sorted([*natives, task])
        await other.shut()
        await other.redis.aclose()


@LEDGERS
async def test_a_server_that_was_away_tells_what_it_had_not_told(
    ledger: str, tmp_path: Path
) -> None:
    where = ledger if ledger == "redis" else f"sqlite:///{tmp_path}/ledger.db"
    async with open_agent_app(where, builtin_worker=True) as agents:
        first = await agents.submit(type="echo", session_id="user-1")
        await agents.over(first)
        await agents.told(COMPLETED)
        second = await agents.submit(type="echo", session_id="user-1")
        await agents.shut()
        await agents.open()
        await agents.over(second)
        told = await agents.told(COMPLETED, 2)
        assert [event["data"]["task_id"] for event in told] == [first, second]
